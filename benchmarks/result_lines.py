"""Results of tasks as JSON lines, one per case and method, appended as they come, so that a run is resumable."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.model import Model

Result = TypeVar("Result")

HALVES = ("seen", "unseen")
"""Even seeds are for tuning, odd ones are reported."""

KEY = ("model", "task", "half", "seed", "method")


class ResultFile:
    """A growing file of results. Results in it are not measured again.

    A line that was cut off when a run was killed is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: set[tuple[Any, ...]] = set()
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                self.keys.add(tuple(row[name] for name in KEY))
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    f"line {number} of {str(path)!r} is not a result: expected JSON with {', '.join(KEY)}; give "
                    "another file"
                ) from None

    def has(self, **key: Any) -> bool:
        """Return whether there is a result of this model, task, half, seed and method."""
        return tuple(key[name] for name in KEY) in self.keys

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a result. Measures without a value (NaN) are left out."""
        measures = {name: x for name, x in row["measures"].items() if math.isfinite(x)}
        line = json.dumps({**row, "measures": measures})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.keys.add(tuple(row[name] for name in KEY))


class Meter:
    """The cost of some work: seconds, and how many texts the model ran forward, counting each text of a batch.

    positions: of all these texts together; on a cache, only those that run.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.forwards = 0
        self.positions = 0

    def measure(self, work: Callable[[], Result]) -> tuple[Result, float, int]:
        """Return the result of the work, its seconds, including the GPU's, and its forward passes."""
        before = self.forwards
        handle = self.model.model.register_forward_pre_hook(self.count_texts, with_kwargs=True)
        self.model.accept_hooks()
        try:
            self._wait()
            start = time.perf_counter()
            result = work()
            self._wait()
            return result, time.perf_counter() - start, self.forwards - before
        finally:
            handle.remove()
            self.model.accept_hooks()

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def count_texts(self, module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Count texts, as a hook before the model's forward pass."""
        tensors = (x for x in (*args, *named.values()) if isinstance(x, torch.Tensor) and x.dim() > 1)
        first = next(tensors, torch.zeros(1, 1))
        self.forwards += len(first)
        self.positions += first.shape[0] * first.shape[1]


def seeds_of(half: str, count: int) -> range:
    """Return the first `count` seeds of a half.

    >>> list(seeds_of("unseen", 3))
    [1, 3, 5]
    """
    check_half(half)
    first = HALVES.index(half)
    return range(first, first + 2 * count, 2)


def check_half(half: str) -> None:
    if half not in HALVES:
        raise InputError(f"half {half!r}: expected one of {', '.join(HALVES)}")
