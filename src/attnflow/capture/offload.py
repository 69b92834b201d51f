"""Layers in host memory: copied there while the next layer runs, and back while the layer above is used.

The copies run on a separate stream. A tensor's memory is not reused before the copy from it has ended
(`record_stream`), and a copy is not read before it has arrived. The host waits for the device before it schedules more
than two layers ahead: otherwise it would schedule all of them, and allocate memory for each. Without CUDA nothing
moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
"""A layer: a dataclass that contains tensors, such as `attnflow.capture.linear.Operands`."""

AHEAD = 2
"""Layers that are being copied or used at a time."""

SHARED = ("mask", "bias", "sinks")
"""Fields that layers share, or that are small: these are not moved."""


class Moment(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None: ...


class Way(Protocol):
    """Brings layers back from where they are kept."""

    def bring(self, layer: T) -> Callable[[], T]: ...

    def now(self) -> Moment: ...


@dataclass(frozen=True)
class Lane:
    """The stream of the copies between a device and the host.

    leaving: the moments at which layers have left.
    """

    device: torch.device
    stream: torch.cuda.Stream
    leaving: deque[Moment] = field(default_factory=deque)

    def send(self, layer: T) -> T:
        """Return a copy of the layer in pinned host memory, valid once the lane has got that far."""
        if len(self.leaving) == AHEAD:
            self.leaving.popleft().synchronize()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        kept = _each(layer, self._send)
        self.leaving.append(self.stream.record_event())
        return kept

    def _send(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return x
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        with torch.cuda.stream(self.stream):
            host.copy_(x, non_blocking=True)
        x.record_stream(self.stream)
        return host

    def bring(self, layer: T) -> Callable[[], T]:
        """Begin to copy back; return a function that returns the copy for the device's next work."""
        with torch.cuda.stream(self.stream):  # after the copies to the host, which are on this stream too
            copy = _each(layer, lambda x: x.to(self.device, non_blocking=True))
            arrived = self.stream.record_event()

        def ready() -> T:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(arrived)

            def used(x: Tensor) -> Tensor:
                x.record_stream(current)
                return x

            return _each(copy, used)

        return ready

    def now(self) -> Moment:
        moment: Moment = torch.cuda.current_stream(self.device).record_event()
        return moment


def lane_of(device: torch.device) -> Lane | None:
    """Return the lane of a device with separate memory; None if there is nothing to move."""
    return Lane(device, torch.cuda.Stream(device)) if device.type == "cuda" else None


def downwards(layers: Sequence[T], way: Way | None) -> Iterator[T]:
    """Yield the layers from the top one down. With a way, each is copied while the one above it is used.

    A layer is fetched once the work with the layer two above it has ended, so at most two are on the device, provided
    that the caller releases each when the next one comes.
    """
    if way is None:
        yield from reversed(layers)
        return
    waiting = reversed(layers)
    coming = deque(way.bring(layer) for layer in islice(waiting, AHEAD))
    working: deque[Moment] = deque()
    while coming:
        yield coming.popleft()()
        working.append(way.now())
        if len(working) == AHEAD:
            working.popleft().synchronize()
            coming.extend(way.bring(layer) for layer in islice(waiting, 1))


def _each(x: T, change: Callable[[Tensor], Tensor]) -> T:
    """Change all tensors of a dataclass, including those in nested dataclasses, except shared ones."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return _each(value, change) if is_dataclass(value) and not isinstance(value, type) else value

    if not is_dataclass(x) or isinstance(x, type):
        return x
    return replace(x, **{f.name: changed(getattr(x, f.name)) for f in fields(x) if f.name not in SHARED})
