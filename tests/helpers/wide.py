"""Double precision throughout: models compute norms and softmax in single precision, which would hide equality."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_CASTS = (torch.Tensor.float, torch.Tensor.to)


class Wide(TorchFunctionMode):
    """While active, keep tensors in double precision."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            single = torch.float32 in args[1:] or kwargs.get("dtype") == torch.float32
            if func is torch.Tensor.float or (func in _CASTS and single):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class Living(TorchDispatchMode):
    """While active, count the bytes of living new tensors, their peak, and the largest number of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = self.largest = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)}
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.numel())
                if x.untyped_storage()._cdata not in inputs:  # a view allocates nothing
                    self._count(x.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        if storage._cdata in self._seen:
            return
        size, key = storage.nbytes(), storage._cdata
        self._seen.add(key)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.bytes -= size
