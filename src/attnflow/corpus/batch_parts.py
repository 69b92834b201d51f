"""Conversion between sheets and batches: where each text starts, and how the results of batches are put back together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture.predict import Likeliest
from attnflow.corpus.text_arrays import Floats, Ints, Sheet


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the texts of a sheet begin: `starts` in its tokens, `query_starts` in its queries."""

    sheet: Sheet
    starts: Ints
    query_starts: Ints

    @staticmethod
    def of(sheet: Sheet) -> Layout:
        counts = sheet.query_counts
        return Layout(sheet, np.cumsum(sheet.lengths) - sheet.lengths, np.cumsum(counts) - counts)

    def queries(self, text: int) -> list[int]:
        first = int(self.query_starts[text])
        return [int(i) for i in self.sheet.queries[first : first + int(self.sheet.query_counts[text])]]


@dataclass(frozen=True, eq=False)
class Part:
    """The results for some texts of a sheet.

    members: their places on the sheet.
    values: one padded array [text, query, input] per column.
    several: whether the query axis covers all positions of a text, so that the explained ones have yet to be selected.
    places: [text], the positions that answer, if the scores are about answers.
    """

    members: Ints
    values: Mapping[str, NDArray[np.floating]]
    several: bool
    likeliest: tuple[str, Ints, NDArray[np.float64], NDArray[np.bool_]] | None
    record: str
    places: Ints | None = None


class Copies:
    """Tensors being copied from the model's device to memory while the device continues to work."""

    def __init__(self, tensors: Sequence[Tensor], answers: Likeliest | None) -> None:
        self.kind = None if answers is None else answers.kind
        more = [] if answers is None else [answers.numbers, answers.chances]
        self.answered = None if answers is None or answers.answered is None else answers.answered
        self.event: Any = None
        self.copies = [self._begun(x) for x in (*tensors, *more)]
        if self.copies and (*tensors, *more)[0].is_cuda:
            self.event = torch.cuda.Event()
            self.event.record()

    def _begun(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return x.cpu()
        room = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        return room.copy_(x, non_blocking=True)

    def arrays(
        self,
    ) -> tuple[list[NDArray[np.floating]], tuple[str, Ints, NDArray[np.float64], NDArray[np.bool_]] | None]:
        """Wait for the copies; return the tensors, and the kind, numbers, chances and answered of `Likeliest`."""
        if self.event is not None:
            self.event.synchronize()
        arrays = [x.numpy() for x in self.copies]
        if self.kind is None:
            return arrays, None
        *others, numbers, chances = arrays
        present = np.ones(len(numbers), bool) if self.answered is None else self.answered.numpy()
        return others, (self.kind, numbers, chances, present)


def finite_texts(part: Part, sheet: Sheet, layout: Layout) -> NDArray[np.bool_]:
    """Return for each text whether all of its scores are finite, and its answer is not NaN. Padding is ignored."""
    lengths = sheet.lengths[part.members]
    finite = np.ones(len(part.members), bool)
    if part.likeliest is not None:
        _, _, chances, present = part.likeliest
        finite &= ~(np.isnan(chances).any(1) & present)
    for x in part.values.values():
        if np.isfinite(x).all():
            continue
        if part.several:
            texts = enumerate(zip(part.members.tolist(), lengths.tolist(), strict=True))
            finite &= np.array([np.isfinite(x[i, layout.queries(text), :n]).all() for i, (text, n) in texts])
        else:
            finite &= (np.isfinite(x) | (np.arange(x.shape[-1]) >= lengths[:, None])[:, None]).all((1, 2))
    return finite


def write_part(part: Part, layout: Layout, starts: Ints, cells: Ints, values: Mapping[str, Floats]) -> None:
    """Write the scores of a part into the arrays of all texts."""
    if part.several:
        for number, text in enumerate(part.members.tolist()):
            if cells[text]:
                rows, n, first = layout.queries(text), int(layout.sheet.lengths[text]), int(starts[text])
                for name, x in part.values.items():
                    values[name][first : first + int(cells[text])] = x[number, rows, :n].ravel()
        return
    for name, x in part.values.items():
        steps = np.arange(x.shape[-1])
        inside = steps < cells[part.members][:, None]  # a failed text has no cells
        values[name][(starts[part.members][:, None] + steps)[inside]] = x[:, 0][inside]
