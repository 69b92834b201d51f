"""What the log-probability of an answer loses when attention to a token of its prompt begins to fade.

``F[k] = Σ_t Σ_layers Σ_heads Σ_q ∂ log p_t / ∂ s[q, k]``, the gradient of the answer's log-probability by the scores s of
attention before the softmax: attention that leaves k goes to the other keys in proportion, as it would if k were masked.
A candidate beside answer rows, measured by `benchmarks.answers` and `benchmarks.ablation`; no part of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]


def fading(model: Model, ids: Sequence[int], answer: Sequence[int], every: bool = False) -> Floats:
    """F of each token of the prompt, signed.

    every: q runs over all positions, so that the pass goes back through the prompt too; otherwise over those that decide
    the answer's tokens, and one pass over these on the cache of the prompt is enough.
    """
    from transformers.cache_utils import DynamicCache

    network: Any = model.model
    tokens = torch.tensor([[*ids, *answer[:-1]]], device=model.device)
    n, first = tokens.shape[1], 0 if every else len(ids) - 1
    dtype = next(network.parameters()).dtype
    seen = torch.ones(n, n, dtype=torch.bool, device=model.device).tril()[first:]
    hidden = torch.zeros(seen.shape, dtype=dtype, device=model.device).masked_fill(~seen, torch.finfo(dtype).min)
    cache = DynamicCache()
    if first:
        with torch.no_grad():
            network(input_ids=tokens[:, :first], past_key_values=cache, use_cache=True, logits_to_keep=1)
    with torch.enable_grad():
        faded = torch.zeros(n, dtype=dtype, device=model.device, requires_grad=True)
        logits = network(
            input_ids=tokens[:, first:],
            attention_mask=(hidden + faded)[None, None],
            position_ids=torch.arange(first, n, device=model.device)[None],
            logits_to_keep=len(answer),
            **({"past_key_values": cache, "use_cache": True} if first else {"use_cache": False}),
        ).logits
        chosen = torch.tensor(list(answer), device=model.device)
        total = logits[0].double().log_softmax(-1).gather(1, chosen[:, None]).sum()
        (gradient,) = torch.autograd.grad(total, faded, allow_unused=True)
    if gradient is None:
        raise InputError(
            f"{type(network).__name__} takes no mask with numbers: expected a model that adds it to its scores"
        )
    return np.asarray(gradient[: len(ids)].double().cpu().numpy())


def combined(rows: Floats, faded: Floats, units: Sequence[Sequence[int]]) -> Floats:
    """Of each unit, what was read from it and what fading it takes, each divided by its root mean square over units.

    rows: signed parts of the log-odds of each token of the prompt. faded: `fading` of the same tokens.

    >>> combined(np.array([3.0, 0.0, 1.0]), np.array([0.0, 0.0, 2.0]), [[0, 1], [2]]).round(2).tolist()
    [1.34, 1.86]
    """
    return sum((_level(np.array([x[list(unit)].sum() for unit in units])) for x in (rows, faded)), np.zeros(len(units)))


def _level(values: Floats) -> Floats:
    size = float(np.sqrt(np.mean(values**2)))
    return values / size if size else values
