"""Exceptions and warnings, by cause: the input, the model, or the job."""

from __future__ import annotations


def a_type(value: object) -> str:
    """Return the type of a value with its article, for messages.

    >>> a_type("bert"), a_type(7)
    ('a str', 'an int')
    """
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


class InputError(ValueError):
    """An argument that cannot be used. The message says what was given, what was expected and what to do."""


class ModelError(InputError):
    """A model that cannot be explained, or not in this way: its attention fails a check, or something is missing."""


class TextError(InputError):
    """A text that cannot be explained, or not in this way. kind: the reason in a word or two, for counting."""

    kind = ""

    @classmethod
    def of(cls, kind: str, message: str) -> TextError:
        error = cls(message)
        error.kind = kind
        return error


class LongAnswer(TextError):
    """An answer of several tokens where one is expected. tokens: their numbers."""

    tokens: tuple[int, ...] = ()


class JobError(RuntimeError):
    """A job that could not continue: its workers died, Ray or the disk failed. The same call resumes it."""


class AttentionWarning(UserWarning):
    """A warning about input that can be used, but is probably not what was meant."""
