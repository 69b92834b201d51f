"""A model and a text become a `Trace`: tokens, prediction and attention, checked against the model without hooks."""

from attnflow.capture.hub import load
from attnflow.capture.model import Model, wrap
from attnflow.capture.trace import Trace

__all__ = ["Model", "Trace", "load", "wrap"]
