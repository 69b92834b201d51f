"""What can go wrong, by whose fault it is: the input, the model, or the job."""

from __future__ import annotations


class InputError(ValueError):
    """An argument that cannot be used. The message says what it was, what was expected and what to do."""


class ModelError(InputError):
    """A model that cannot be explained, or not in this way: its attention fails a check, or it lacks what is needed."""


class TextError(InputError):
    """A text that cannot be explained, or not in this way. kind: why, in a word or two, for whoever counts."""

    kind = ""

    @classmethod
    def of(cls, kind: str, message: str) -> TextError:
        error = cls(message)
        error.kind = kind
        return error


class JobError(RuntimeError):
    """A job that could not go on: its workers died, Ray or the disk failed. The same call resumes it."""


class AttentionWarning(UserWarning):
    """Input that can be used, but that is probably not what was meant."""
