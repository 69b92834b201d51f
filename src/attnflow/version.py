"""The version, where every room can read it without importing the public face."""

__version__ = "0.1.0"
