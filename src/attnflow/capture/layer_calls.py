"""How a model calls its layers: the states come first, everything else is shared or small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor

from attnflow.errors import ModelError

Output: TypeAlias = Tensor | tuple[Any, ...]
"""What a layer gives: its states, alone or first of several things."""


def states_of(args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """The states [text, position, width] that enter a layer."""
    states = args[0] if args else named.get("hidden_states")
    if not isinstance(states, Tensor) or states.dim() != 3:
        raise ModelError(
            "a layer of this model does not get its states [text, position, width] first, and edges are about them: "
            "trace it without edges"
        )
    return states


def with_states(
    args: tuple[Any, ...], named: Mapping[str, Any], states: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other states in their place."""
    return ((states, *args[1:]), dict(named)) if args else ((), {**named, "hidden_states": states})


def output_of(out: Output) -> Tensor:
    """The states that leave a layer."""
    states: Tensor = out[0] if isinstance(out, tuple) else out
    return states


def with_output(out: Output, states: Tensor) -> Output:
    """What a layer gave, with other states in their place."""
    return (states, *out[1:]) if isinstance(out, tuple) else states
