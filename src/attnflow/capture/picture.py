"""An image within a text: which positions of a vision-language model represent which of its patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow._arrays import FloatArray
from attnflow.capture.wiring import Wiring
from attnflow.errors import InputError


@dataclass(frozen=True)
class Picture:
    """An image within a text.

    rows, columns: the size of the grid of positions that represent it.
    places: their positions, row by row.
    """

    rows: int
    columns: int
    places: tuple[int, ...]

    def laid_out(self, values: Sequence[float] | FloatArray) -> FloatArray:
        """Return the values of the image from values over all inputs: ``[row, column]``.

        >>> Picture(1, 2, (1, 2)).laid_out([0.5, 0.25, 0.125, 0.125])
        array([[0.25 , 0.125]])
        """
        row = np.asarray(values)
        if row.ndim != 1 or len(row) <= max(self.places):
            raise InputError(
                f"values have shape {row.shape}: expected one row over all inputs, with more than "
                f"{max(self.places)} values"
            )
        laid: FloatArray = row[list(self.places)].reshape(self.rows, self.columns)
        return laid

    def name(self, number: int) -> str:
        """Return the name of a place in words, given its number.

        >>> Picture(2, 2, (0, 1, 2, 3)).name(2)
        'image, row 2 column 1'
        """
        return f"image, row {number // self.columns + 1} column {number % self.columns + 1}"


def image_places(config: Any, ids: Sequence[int]) -> list[int]:
    """Return the positions of the token that represents an image in a text, repeated once per place."""
    token = next((n for name in ("image_token_id", "image_token_index") if (n := getattr(config, name, None))), None)
    return [] if token is None else [i for i, number in enumerate(ids) if number == token]


def picture_of(wiring: Wiring | None, places: Sequence[int]) -> Picture | None:
    """Return the image at these positions, if each represents one patch or a square of patches.

    Models merge 2×2 patches (Qwen2-VL) or 4×4 (SmolVLM) into one position.
    """
    squares = None if wiring is None else wiring.squares(len(places))
    if squares is None:
        return None
    rows, columns = squares.shape
    return Picture(rows, columns, tuple(places[number] for number in squares.ravel().tolist()))
