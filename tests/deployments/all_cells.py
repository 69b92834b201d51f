"""Every cell, in the order of the page. Each group has its own file."""

from __future__ import annotations

from deployments import (
    family_cells,
    loading_cells,
    mask_cells,
    picture_cells,
    quantised_cells,
    running_cells,
    sentence_cells,
)
from deployments.cells import Cell

CELLS: list[Cell] = [
    *loading_cells.CELLS,
    *quantised_cells.CELLS,
    *running_cells.CELLS,
    *mask_cells.CELLS,
    *family_cells.CELLS,
    *picture_cells.CELLS,
    *sentence_cells.CELLS,
]
