"""Calls of a model's layers: states come first; all other arguments are shared or small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor

from attnflow.errors import ModelError

Output: TypeAlias = Tensor | tuple[Any, ...]
"""The output of a layer: its states, alone or as the first of several items."""


def states_of(args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Return the states [text, position, width] that enter a layer."""
    states = args[0] if args else named.get("hidden_states")
    if not isinstance(states, Tensor) or states.dim() != 3:
        raise ModelError(
            "a layer of this model does not take its states [text, position, width] as its first argument, but edges "
            "need them: trace it without edges"
        )
    return states


def with_states(
    args: tuple[Any, ...], named: Mapping[str, Any], states: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the call with other states."""
    return ((states, *args[1:]), dict(named)) if args else ((), {**named, "hidden_states": states})


def output_of(out: Output) -> Tensor:
    """Return the states that leave a layer."""
    states: Tensor = out[0] if isinstance(out, tuple) else out
    return states


def with_output(out: Output, states: Tensor) -> Output:
    """Return the output of a layer with other states."""
    return (states, *out[1:]) if isinstance(out, tuple) else states
