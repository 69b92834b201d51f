"""Layers in host memory: copied there while the next layer runs, and back while the layer above is used.

The copies run on a stream of their own. A tensor's memory is not used again before the copy from it has ended
(`record_stream`), nobody reads a copy before it has arrived, and the host waits for the device before it orders more than
two layers ahead: it would otherwise order all of them, and memory for each. Without CUDA nothing moves.
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
"""A layer: a dataclass with tensors in it, such as `attnflow.capture.linear.Operands`."""

AHEAD = 2
"""Layers that are on their way, or in use, at a time."""

SHARED = ("mask", "bias", "sinks")
"""What layers have in common, or is small: it stays where it is."""


class Moment(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None: ...


class Way(Protocol):
    """How layers come back from where they are kept."""

    def bring(self, layer: T) -> Callable[[], T]: ...

    def now(self) -> Moment: ...


@dataclass(frozen=True)
class Lane:
    """The stream of the copies between a device and the host. leaving: the moments at which layers have left."""

    device: torch.device
    stream: torch.cuda.Stream
    leaving: deque[Moment] = field(default_factory=deque)

    def send(self, layer: T) -> T:
        """The same in pinned host memory, once the lane has got so far."""
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
        """Begins to copy back; the function that it gives hands the copy out, for what the device does next."""
        with torch.cuda.stream(self.stream):  # behind the copies to the host, which are on this stream too
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
    """The lane of a device that has a memory of its own; None where there is nothing to move."""
    return Lane(device, torch.cuda.Stream(device)) if device.type == "cuda" else None


def downwards(layers: Sequence[T], way: Way | None) -> Iterator[T]:
    """The layers from the top one down; by a way, each is coming while the one above it is used.

    A layer is sent for once the work with the layer two above it has ended, so that two are on the device at most: who
    uses them lets each go when the next one comes.
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
    """A dataclass with the tensors in it changed, also those in dataclasses of its fields, but for what is shared."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return _each(value, change) if is_dataclass(value) and not isinstance(value, type) else value

    if not is_dataclass(x) or isinstance(x, type):
        return x
    return replace(x, **{f.name: changed(getattr(x, f.name)) for f in fields(x) if f.name not in SHARED})
