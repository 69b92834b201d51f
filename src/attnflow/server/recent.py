"""What was used last, within a number and a size: more questions about the same input compute nothing again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Key = tuple[Any, ...]


class Recent(Generic[T]):
    """Values by their keys. The computing thread alone uses it.

    most: how many are kept. room, size: how much all of them may take together, and how much one takes.
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
