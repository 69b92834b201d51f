"""The processes that share the heads of a model (tensor parallelism), and what is added up over them.

Each process sees the attention of its own heads. Everything that a result is made of is a sum over heads, so the sum over
processes of what each has is the whole: a mean over heads is the mean of the processes' means, because each has as many
heads, and of one that every process has whole the mean is itself. All processes run the same lines, one after the other:
who waits for a sum that another never asks for waits for ever. What decides the way is therefore decided by all.
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

WORKS = "the mean over heads, edges='answer', memory='linear' and answer() are right there"
"""What is right over several processes, for refusals."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes that share the heads of a model. group: of torch.distributed. count: how many they are."""

    group: Any
    count: int

    def reduce(self, x: Tensor, worst: bool = False) -> Tensor:
        """Adds up a tensor over the processes, in place, or takes the largest: the only place where anything travels."""
        distributed.all_reduce(x, distributed.ReduceOp.MAX if worst else distributed.ReduceOp.SUM, group=self.group)
        return x

    def sum(self, x: Tensor) -> Tensor:
        """``Σ x`` over the processes."""
        return self.reduce(x.clone(memory_format=torch.contiguous_format))

    def mean(self, x: Tensor) -> Tensor:
        """``Σ x / count`` over the processes, of what is a mean over heads in each of them."""
        return self.sum(x) / self.count

    def worst(self, gap: float, device: torch.device) -> float:
        """The largest gap that any process found, so that all of them decide alike."""
        return float(self.reduce(torch.tensor([gap], dtype=torch.float64, device=device), worst=True))

    def join(self, calls: Sequence[Call]) -> None:
        """Makes the means over the heads of one process those over all heads."""
        for call in calls:
            for x in (call.mean, call.lengths):
                if x is not None:
                    self.reduce(x).div_(self.count)


def ranks_of(model: Any) -> Ranks | None:
    """The processes over which transformers has spread the heads of a model; None for a model in one process.

    Refuses what is spread in another way than by heads.
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None or (getattr(model, "_tp_size", None) or 1) < 2:
        return None
    names = mesh.mesh_dim_names or ()
    if "pp" in names and mesh["pp"].size() > 1:
        raise ModelError(
            "the layers of this model lie on several processes (pipeline parallelism), and none of them sees them all: "
            "load it with device_map='auto', which keeps one process, or with tensor parallelism"
        )
    plan = getattr(model, "tp_plan", None) or {}
    if "sequence_parallel" in plan.values():
        raise ModelError(
            "the plan of this model spreads positions over the processes (sequence_parallel), and attention is between "
            "positions: load it with the plan 'auto'"
        )
    heads = mesh["tp"] if "tp" in names else mesh
    return Ranks(heads.get_group(), int(heads.size()))


def sharing_heads(model: Any, config: Any, calls: Sequence[Call]) -> Ranks | None:
    """The processes that share the heads of these calls; None where each of them has all heads, as some plans say.

    Refuses attention of which this process sees some heads, where nobody knows who has the others.
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
        f"this process sees {' or '.join(map(str, sorted(seen)))} heads a layer and the configuration says {heads}: the "
        "heads lie on several processes in a way that is not known here. Load the model by transformers with "
        "DistributedConfig(tp_size=…, tp_plan='auto')"
    )


def _is_spread(model: Any, heads: Any, seen: set[int]) -> bool:
    """Whether parts of the model, or of its heads, must lie elsewhere."""
    return bool(spread_modules(model)) or (isinstance(heads, int) and max(seen, default=heads) < heads)


def spread_modules(model: Any) -> list[Any]:
    """The modules of which each process has a part of the parameters."""
    if not distributed.is_available() or not distributed.is_initialized():
        return []
    return [m for m in model.modules() if any(hasattr(p, "placements") for p in m.parameters(recurse=False))]


def check_alone(model: Any, what: str) -> None:
    """Refuses what needs all heads in one process."""
    if ranks_of(model) is not None:
        raise InputError(f"{what}, and the heads of this model lie on several processes (tensor parallelism): {WORKS}")


def whole(x: Tensor) -> Tensor:
    """A number that was computed from a spread parameter, added up over the processes that share it."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full
