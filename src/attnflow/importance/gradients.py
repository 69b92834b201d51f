"""Input gradients: how the answer changes with the embedding of each token."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.errors import AttentionWarning, InputError
from attnflow.importance.answer import (
    Question,
    Tensors,
    batches,
    check_of,
    logits_of,
    many,
    questions,
    result,
    said_at,
    score,
)  # fmt: skip
from attnflow.model import running

if TYPE_CHECKING:
    from attnflow.model import Model

REDUCE = {
    "l2": lambda g, x: g.norm(dim=-1),
    "l1": lambda g, x: g.abs().sum(-1),
    "times-input": lambda g, x: (g * x).sum(-1),
    "abs-sum": lambda g, x: g.sum(-1).abs(),
    "sum": lambda g, x: g.sum(-1),
}

ROUNDING = 1e-4
"""A sum over dimensions that is so small beside the sum of absolute values is taken for rounding."""


def gradient(
    model: Model,
    text: Any,
    answer: Any = None,
    *,
    reduce: str = "l2",
    of: str = "probability",
    truncate: bool = False,
) -> Any:
    """The gradient g of the answer with respect to each token's embedding x, reduced to one number a token.

    text, answer, truncate: as in `blank_out`.
    reduce: "l2" is ``√Σ_d g_d²``; "l1" ``Σ_d |g_d|``; "times-input" ``Σ_d g_d·x_d``; "abs-sum" ``|Σ_d g_d|``, what the
        authors' code took; "sum" the same with its sign. The last two are 0 up to rounding wherever every path from the
        embedding passes a LayerNorm, which takes away the mean (BERT, GPT-2): a warning says so.
    of: "probability" of the answer, its "logit", or the "difference" between its probability and that of the likeliest
        other answer (the authors' ``p0 - p1``, up to its sign).
    """
    if reduce not in REDUCE:
        raise InputError(f"reduce={reduce!r}: expected one of {', '.join(map(repr, REDUCE))}")
    check_of(of)
    texts, labels = many(text, answer)
    asked = questions(model, texts, labels, truncate)
    check_difference(asked, of)
    values: list[Any] = [None] * len(asked)
    left = whole = 0.0
    for at, batch in batches(model, [q.tensors for q in asked]):
        parts: list[tuple[list[int], Tensors]] = [(at, batch)]
        try:
            found = [_gradients(model, asked, at, batch, of)]
        except InputError:
            if len(at) == 1:
                raise
            parts = [([i], dict(asked[i].tensors)) for i in at]  # some classifiers refuse batches
            found = [_gradients(model, asked, one, alone, of) for one, alone in parts]
        for (part, _), (g, x) in zip(parts, found, strict=True):
            reduced = REDUCE[reduce](g, x).cpu().numpy()
            left, whole = max(left, float(g.sum(-1).abs().max())), max(whole, float(g.abs().sum(-1).max()))
            for k, number in enumerate(part):
                values[number] = reduced[k]
    if "sum" in reduce and left < ROUNDING * whole:
        warnings.warn(
            f"the gradient of every token sums to 0 over its dimensions, up to rounding ({left:.1g} of {whole:.1g}): "
            f"the model takes the mean away from what it reads, so reduce={reduce!r} ranks rounding errors; "
            "reduce='l2' does not",
            AttentionWarning,
            stacklevel=4,
        )
    told = {"reduce": reduce, "of": of}
    results = [result(model, q, v, "gradient", **told) for q, v in zip(asked, values, strict=True)]
    return results if isinstance(text, list) else results[0]


def forward_and_backward(model: Model, question: Question) -> tuple[Tensor, Tensor]:
    """The gradient of the answer's probability at the embeddings, and these: ``[token, dimension]``."""
    g, x = _gradients(model, [question], [0], dict(question.tensors), "probability")
    return g[0], x[0]


def _gradients(model: Model, asked: list[Question], at: list[int], batch: Tensors, of: str) -> tuple[Tensor, Tensor]:
    """The gradient with respect to the embeddings, and these: ``[row, token, dimension]`` of one batch."""
    with torch.enable_grad(), embeddings(model, batch["input_ids"]) as read:
        logits = logits_of(model, batch, grad=True)
        if len(read.leaves) != 1:
            raise InputError(
                f"gradients need the embeddings of the tokens, each read once, and {type(model.model).__name__} reads them "
                f"{len(read.leaves)} times in this form: it pads, transposes or shares them"
            )
        said = torch.stack([said_at(logits[k], asked[i].place) for k, i in enumerate(at)])
        own, other = ([getattr(asked[i], name) or 0 for i in at] for name in ("chosen", "against"))
        explained = score(model, asked[at[0]].kind, said.float(), torch.tensor(own), torch.tensor(other), of)
        with running():
            (g,) = torch.autograd.grad(explained.sum(), read.leaves[0])
    return g.double(), read.leaves[0].detach().double()


class Read:
    """What the embedding layer did in one forward pass: its calls, and the leaves where it read the tokens themselves."""

    def __init__(self) -> None:
        self.calls = 0
        self.leaves: list[Tensor] = []


@contextmanager
def embeddings(model: Model, ids: Tensor) -> Iterator[Read]:
    """While it lasts, what the embedding layer gives for `ids` is a leaf that gradients reach.

    Some models send the types of tokens through the same layer: that is not touched.
    """
    read = Read()
    wanted, own = ids.to(model.device), threading.get_ident()

    def leaf(module: Any, given: Any, out: Any) -> Any:
        if threading.get_ident() != own:  # a hook sees the passes of all threads
            return None
        read.calls += 1
        same = bool(given) and isinstance(given[0], Tensor) and given[0].shape == wanted.shape
        if not (same and torch.equal(given[0], wanted) and isinstance(out, Tensor) and out.shape[:2] == wanted.shape):
            return None
        read.leaves.append(out.detach().requires_grad_())
        return read.leaves[-1]

    handle = embedding_layer(model).register_forward_hook(leaf)
    try:
        yield read
    finally:
        handle.remove()


def embedding_layer(model: Model) -> Any:
    try:
        layer = model.model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        layer = None
    if layer is None:
        raise InputError(
            f"gradients need the embedding layer, and {type(model.model).__name__} does not name one: give it a method "
            "get_input_embeddings()"
        )
    return layer


def check_difference(asked: list[Question], of: str) -> None:
    if of == "difference" and any(q.against is None for q in asked):
        raise InputError(
            "of='difference': this model answers with one number, so there is no other answer; give 'logit'"
        )
