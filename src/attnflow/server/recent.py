"""A cache of recent values, so that repeated requests about an input compute nothing twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Key = tuple[Any, ...]


class Recent(Generic[T]):
    """A least-recently-used cache. Only the computing thread uses it.

    most: maximum number of values. room: maximum total size. size: returns the size of a value.
    """

    def __init__(self, most: int, room: int = 0, size: Callable[[T], int] = lambda value: 0) -> None:
        self.most, self.room, self.size = most, room, size
        self.by_key: OrderedDict[Key, T] = OrderedDict()

    def get(self, key: Key, make: Callable[[], T]) -> T:
        values = self.by_key
        value = values[key] if key in values else values.setdefault(key, make())
        values.move_to_end(key)
        while values and (len(values) > self.most or sum(map(self.size, values.values())) > self.room):
            values.popitem(last=False)
        return value
