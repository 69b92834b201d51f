"""The compiled maximum-flow solver, loaded when flow is first used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from attnflow._core._native import Graph as Graph


class Native(Protocol):
    """The interface of the compiled module."""

    @property
    def Graph(self) -> type[Graph]: ...

    def instruction_set(self) -> str: ...

    def text_flows(
        self,
        layers: Sequence[NDArray[np.floating[Any]]],
        lengths: NDArray[np.int32],
        pairs: NDArray[np.int32],
        threads: int,
    ) -> tuple[NDArray[np.float64], dict[str, int]]: ...


def native() -> Native:
    """Return the compiled module.

    Everything but flow works without it, so a source tree is usable on machines without a compiler.
    """
    try:
        return cast(Native, importlib.import_module("attnflow._core._native"))
    except ModuleNotFoundError as e:
        if e.name != "attnflow._core._native":
            raise
        raise ImportError(
            "flow needs attnflow's compiled core, which this installation does not have. Install the package (pip install "
            "., with a C++17 compiler) instead of running from the source tree; rollout works without it"
        ) from None
