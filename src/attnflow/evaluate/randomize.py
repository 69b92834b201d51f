"""Sanity check after Adebayo et al. 2018: explanations of a model must change when its weights are shuffled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnflow.errors import InputError
from attnflow.evaluate.methods import Method, score_text
from attnflow.evaluate.statistics import Floats, rank_correlations

if TYPE_CHECKING:
    from attnflow.model import Model

LEVELS = ("head", "upper half", "all")


def agreement(
    model: Model,
    texts: Sequence[Any],
    methods: Sequence[Method],
    scores: Sequence[Floats],
    answers: Sequence[int],
    seeds: Sequence[int],
    seed: int,
    truncate: bool = False,
) -> dict[str, list[tuple[Floats, str]]]:
    """Return the rank correlation of ``scores[method, token]`` with those of shuffled weights, for each level and text.

    answers: the answers of the real model, by number; these stay the ones that are explained.
    seeds: those that the scores were made with, so that methods that do not depend on the model give the same scores.
    seed: of the shuffling.

    The correlations ``[method]`` of a text are NaN for importances, which would take long, and for all methods if the
    shuffled model cannot be scored; the reason comes with them.
    """
    which = [m for m, method in enumerate(methods) if method.kind != "importance"]
    quick = [methods[m] for m in which]
    model.trace(texts[0], truncate=truncate)  # so that the self-check runs on the real weights
    by_level: dict[str, list[tuple[Floats, str]]] = {level: [] for level in LEVELS}
    for level, rows in by_level.items():
        with randomized(model, level, seed):
            for text, own, answer, of_text in zip(texts, scores, answers, seeds, strict=True):
                correlations, why = np.full(len(methods), np.nan), ""
                try:
                    other = score_text(model, text, quick, truncate=truncate, seed=of_text, answer=answer).scores
                    correlations[which] = np.diagonal(rank_correlations(own[which], other))
                except InputError as e:  # in half precision, shuffled weights may overflow
                    why = str(e)
                rows.append((correlations, why))
    return by_level


@contextmanager
def randomized(model: Model, level: str, seed: int) -> Iterator[None]:
    """Shuffle weights within each parameter inside the block, and restore them after it. Their distribution stays.

    level: "head" shuffles what is used only after the last layer (pooler, classifier, output of a language model;
        output embeddings shared with the input stay); "upper half" also the upper half of the layers; "all" everything.
    seed: a parameter is shuffled in the same way at every level.
    """
    if level not in LEVELS:
        raise InputError(f"level={level!r}: expected one of {', '.join(map(repr, LEVELS))}")
    stack = layers_of(model)
    own = dict(enumerate(model.model.parameters()))  # each once, even if it has several names
    if level != "all":
        chosen = _head(model, stack)
        if level == "upper half":
            chosen |= {id(p) for layer in stack[len(stack) // 2 :] for p in layer.parameters()}
        own = {place: p for place, p in own.items() if id(p) in chosen}
    before = {place: p.detach().clone() for place, p in own.items()}
    try:
        with torch.no_grad():
            for place, p in own.items():
                order = np.random.default_rng([seed, place]).permutation(p.numel())
                p.copy_(before[place].flatten()[torch.from_numpy(order).to(p.device)].view_as(p))
        yield
    finally:
        with torch.no_grad():
            for place, p in own.items():
                p.copy_(before[place])


def layers_of(model: Model) -> torch.nn.ModuleList:
    """Return the stack of layers: the longest list of modules that is not inside another, as lists of experts are."""
    lists = [(name, m) for name, m in model.model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m)]
    outer = [m for name, m in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    if not outer:
        raise InputError(
            f"{type(model.model).__name__} has no stack of layers (a torch.nn.ModuleList), so there is no upper half "
            "to shuffle: leave out the sanity check"
        )
    return max(outer, key=len)


def _head(model: Model, stack: torch.nn.ModuleList) -> set[int]:
    """Return the parameters used only after the last layer, found with one pass, since names differ between models."""
    before: set[int] = set()
    after: set[int] = set()
    current = before

    def reads(module: torch.nn.Module, inputs: Any) -> None:
        current.update(id(p) for p in module.parameters(recurse=False))

    def ends(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        nonlocal current
        current = after

    handles = [module.register_forward_pre_hook(reads) for module in model.model.modules()]
    handles.append(stack[-1].register_forward_hook(ends))
    try:
        model.forward({"input_ids": torch.arange(1, 5)[None] % model.vocabulary()})
    finally:
        for handle in handles:
            handle.remove()
    return after - before
