"""The vision tower below an image within a text: which patches the states that the text reads come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow._arrays import FloatArray, to_numpy
from attnflow.capture.collect import Call
from attnflow.capture.passes import Step
from attnflow.capture.wiring import Wiring
from attnflow.errors import InputError
from attnflow.graph import check_residual

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tower:
    """The attention of a vision tower, up to the layer whose states the text reads.

    rows, columns: those of the patches of the image.
    steps: its layers, over its own positions.
    patch: the patch of each of these positions, row by row, or -1 for a class token.
    reads: the position of the text that each of them feeds, or -1.
    """

    rows: int
    columns: int
    steps: tuple[Step, ...]
    patch: tuple[int, ...]
    reads: tuple[int, ...]

    def patches(self, values: Sequence[float] | FloatArray, residual: float = 0.5) -> Floats:
        """Convert values over all inputs of the text to values of patches: ``[row, column]``.

        The value of a place of the image is divided equally among the states of the tower that were merged into it, and
        each of these by its row of attention rollout. What ends at class tokens belongs to no patch.
        """
        check_residual(residual)
        row = np.asarray(values, np.float64)
        if row.ndim != 1 or len(row) <= max(self.reads):
            raise InputError(
                f"values have shape {row.shape}: expected one row over all inputs, with more than "
                f"{max(self.reads)} values"
            )
        reads = np.array(self.reads)
        feeding = reads >= 0
        merged = np.bincount(reads[feeding], minlength=len(row))
        state = np.zeros(len(reads))
        state[feeding] = row[reads[feeding]] / merged[reads[feeding]]
        for step in reversed(self.steps):
            state = state @ to_numpy(step.graph(residual)).astype(np.float64)
        patch = np.array(self.patch)
        total = np.bincount(patch[patch >= 0], state[patch >= 0], self.rows * self.columns)
        return np.asarray(total, np.float64).reshape(self.rows, self.columns)


def tower_of(calls: Sequence[Call], wiring: Wiring | None, places: Sequence[int], number: int) -> Tower | None:
    """Return the tower of text ``number`` of a batch; None if its attention was not seen or several layers feed the
    text."""
    if wiring is None or len(wiring.layers) != 1:
        return None
    size = len(wiring.place)
    layers: dict[int, list[torch.Tensor]] = {}
    for call in calls:
        if call.path.startswith(wiring.path + ".") and call.mean is not None:
            name = call.path[len(wiring.path) + 1 :].split(".")[0]
            if name.isdigit():
                layers.setdefault(int(name), []).append(call.mean)
    steps = []
    for layer in range(wiring.layers[0] + 1):
        blocks = layers.get(layer, [])
        if len(blocks) == 1 and len(blocks[0]) > number:
            matrix = blocks[0][number]
        else:  # models that attend within windows make one call per window
            matrix = torch.block_diag(*(block[0] for block in blocks))
        if matrix.shape != (size, size):
            return None
        steps.append(Step(matrix))
    reads = tuple(places[n] if n >= 0 else -1 for n in wiring.place.tolist())
    return Tower(wiring.rows, wiring.columns, tuple(steps), tuple(wiring.patch.tolist()), reads)
