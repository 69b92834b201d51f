"""Processes that share the heads of a model (tensor parallelism), and sums over them.

Each process sees the attention of its own heads. All results are sums over heads, so they are sums over processes. A
mean over heads is the mean of the processes' means, because each has the same number of heads; the mean of something
that every process has whole is itself. All processes run the same lines in the same order: a process that waits for a
sum that another never requests waits for ever. So all processes must take the same decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from attnflow.errors import InputError, ModelError

if TYPE_CHECKING:
    from attnflow.capture.collect import Call

WORKS = "the mean over heads, edges='answer', memory='linear' and answer() work there"
"""What works on several processes, for refusals."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes that share the heads of a model.

    group: that of torch.distributed.
    count: the number of processes.
    """

    group: Any
    count: int

    def reduce(self, x: Tensor, worst: bool = False) -> Tensor:
        """Sum a tensor over the processes in place, or take the largest. This is the only communication."""
        distributed.all_reduce(x, distributed.ReduceOp.MAX if worst else distributed.ReduceOp.SUM, group=self.group)
        return x

    def sum(self, x: Tensor) -> Tensor:
        """Return ``Σ x`` over the processes."""
        return self.reduce(x.clone(memory_format=torch.contiguous_format))

    def mean(self, x: Tensor) -> Tensor:
        """Return ``Σ x / count`` over the processes, for a mean over the heads of each."""
        return self.sum(x) / self.count

    def worst(self, gap: float, device: torch.device) -> float:
        """Return the largest gap of any process, so that all of them decide the same."""
        return float(self.reduce(torch.tensor([gap], dtype=torch.float64, device=device), worst=True))

    def join(self, calls: Sequence[Call]) -> None:
        """Turn means over the heads of one process into means over all heads."""
        for call in calls:
            for x in (call.mean, call.lengths):
                if x is not None:
                    self.reduce(x).div_(self.count)


def ranks_of(model: Any) -> Ranks | None:
    """Return the processes over which transformers has split the heads of a model; None for a model in one process.

    Refuse models that are split in any way other than by heads.
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or (getattr(model, "_tp_size", None) or 1) < 2:
        return None
    names = mesh.mesh_dim_names or ()
    if "pp" in names and mesh["pp"].size() > 1:
        raise ModelError(
            "the layers of this model are split over several processes (pipeline parallelism), so no process sees all "
            "of them: load it with device_map='auto', which uses one process, or with tensor parallelism"
        )
    plan = getattr(model, "tp_plan", None) or {}
    if "sequence_parallel" in plan.values():
        raise ModelError(
            "the plan of this model splits positions over the processes (sequence_parallel), but attention connects "
            "positions: load it with the plan 'auto'"
        )
    heads = mesh["tp"] if "tp" in names else mesh
    return Ranks(heads.get_group(), int(heads.size()))


def sharing_heads(model: Any, config: Any, calls: Sequence[Call]) -> Ranks | None:
    """Return the processes that share the heads of these calls; None if each has all heads, as in some plans.

    Refuse attention of which this process sees some heads, if it is unknown which process has the others.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    ranks, heads = ranks_of(model), getattr(config, "num_attention_heads", None)
    seen = {call.head_count for call in calls}
    if seen == {heads} or (ranks is None and not _is_spread(model, heads, seen)):
        return None
    if ranks is not None and isinstance(heads, int) and seen == {heads / ranks.count}:
        return ranks
    raise ModelError(
        f"this process sees {' or '.join(map(str, sorted(seen)))} heads per layer, but the configuration says {heads}: "
        "the heads are split over several processes in an unknown way. Load the model through transformers with "
        "DistributedConfig(tp_size=…, tp_plan='auto')"
    )


def _is_spread(model: Any, heads: Any, seen: set[int]) -> bool:
    """Return whether parts of the model, or some of its heads, must be elsewhere."""
    return bool(spread_modules(model)) or (isinstance(heads, int) and max(seen, default=heads) < heads)


def spread_modules(model: Any) -> list[Any]:
    """Return the modules whose parameters are split over the processes."""
    if not distributed.is_available() or not distributed.is_initialized():
        return []
    return [m for m in model.modules() if any(hasattr(p, "placements") for p in m.parameters(recurse=False))]


def check_alone(model: Any, what: str) -> None:
    """Refuse what needs all heads in one process."""
    if ranks_of(model) is not None:
        raise InputError(
            f"{what}, but the heads of this model are split over several processes (tensor parallelism): {WORKS}"
        )


def whole(x: Tensor) -> Tensor:
    """Return a split parameter, or a number computed from one, assembled from all processes."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full
