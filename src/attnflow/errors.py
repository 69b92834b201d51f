"""What a user's mistake raises: one type, so that the command line can tell it from a fault of ours."""

from __future__ import annotations


class InputError(ValueError):
    """An argument that cannot be used. The message says what was given, what was expected and what to do."""


class TextError(InputError):
    """A text that cannot be explained, whatever it is asked. kind: why, in a word or two, for whoever counts."""

    kind = ""

    @classmethod
    def of(cls, kind: str, message: str) -> TextError:
        found = cls(message)
        found.kind = kind
        return found


class AttentionWarning(UserWarning):
    """Input that can be used, but that is probably not what was meant."""
