"""Public names that will go away: they keep working for a while, and say what to use instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def deprecated(
    instead: str, *, since: str, removed_in: str
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a public function that will be removed: calls still work, and each warns.

    instead: what to use, such as "rollout()".
    since: the release that deprecated it.
    removed_in: the release that removes it, at least one minor release later (docs/stability.md).

    >>> import warnings
    >>> @deprecated("rollout()", since="0.2", removed_in="1.0")
    ... def roll(x):
    ...     return 2 * x
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     roll(2)
    4
    >>> print(caught[0].message)
    roll() is deprecated since attnflow 0.2 and will be removed in 1.0: use rollout()
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        message = (
            f"{function.__qualname__.rpartition('<locals>.')[2]}() is deprecated since attnflow {since} and will be "
            f"removed in {removed_in}: use {instead}"
        )

        @wraps(function)
        def warn_and_call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        warn_and_call.__doc__ = f"Deprecated since {since}: use {instead}.\n\n{function.__doc__ or ''}".rstrip()
        return warn_and_call

    return decorate
