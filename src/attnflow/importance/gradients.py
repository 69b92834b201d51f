"""Input gradients: how the answer changes with the embedding of each token."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import torch
from torch import Tensor

from attnflow.capture.routes import running
from attnflow.errors import AttentionWarning, InputError, ModelError
from attnflow.importance.question import (
    Question,
    Tensors,
    answer_scores,
    batches,
    check_difference,
    check_of,
    is_saturated,
    logits_of,
    many,
    questions,
    result,
    token_scores,
    warn_saturated,
)
from attnflow.importance.tiles import Tiles, patch_layers
from attnflow.result import TokenAttention

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

REDUCE = {
    "l2": lambda g, x: g.norm(dim=-1),
    "l1": lambda g, x: g.abs().sum(-1),
    "times-input": lambda g, x: (g * x).sum(-1),
    "abs-sum": lambda g, x: g.sum(-1).abs(),
    "sum": lambda g, x: g.sum(-1),
}

ROUNDING = 1e-4
"""A sum over dimensions that is this small relative to the sum of absolute values counts as rounding."""


class GradientOptions(TypedDict, total=False):
    """The options of `gradient`."""

    reduce: str
    of: str
    truncate: bool


@overload
def gradient(
    model: Runner, text: list[Any], answer: Any = None, **options: Unpack[GradientOptions]
) -> list[TokenAttention]: ...
@overload
def gradient(model: Runner, text: Any, answer: Any = None, **options: Unpack[GradientOptions]) -> TokenAttention: ...
def gradient(
    model: Runner,
    text: Any,
    answer: Any = None,
    *,
    reduce: str = "l2",
    of: str = "probability",
    truncate: bool = False,
) -> TokenAttention | list[TokenAttention]:
    """Return the gradient g of the answer with respect to each token's embedding x, reduced to one number per token.

    For an image, x is the embedding of a patch, before its position is added: what the model's convolution makes of the
    pixels of this patch. Class and register tokens have no pixels; they get 0.

    text, answer, truncate: as in `blank_out`.
    reduce: "l2" is ``√Σ_d g_d²``; "l1" ``Σ_d |g_d|``; "times-input" ``Σ_d g_d·x_d``; "abs-sum" ``|Σ_d g_d|``, as in the
        authors' code; "sum" the same with its sign. The last two are 0 up to rounding if every path from the embedding
        passes a LayerNorm, which subtracts the mean (BERT, GPT-2): a warning says so.
    of: "probability" of the answer, its "logit", its "log-odds" ``log p/(1-p)``, or the "difference" between its
        probability and that of the likeliest other answer (the authors' ``p0 - p1``, up to its sign). A probability near 0
        or 1 is saturated: its gradient is exact and tiny, and a warning says so. Logit and log-odds do not saturate.
    """
    if reduce not in REDUCE:
        raise InputError(f"reduce={reduce!r}: expected one of {', '.join(map(repr, REDUCE))}")
    check_of(of)
    texts, labels = many(text, answer)
    about = questions(model, texts, labels, truncate, several=True)
    check_difference(about, of)
    warn_saturated([question for question in about if is_saturated(question, of)])
    values: list[Any] = [None] * len(about)
    left = whole = 0.0
    for at, batch in batches(model, [q.forced for q in about], keep=[len(q.answer) for q in about]):
        groups: list[tuple[list[int], Tensors]] = [(at, batch)]
        try:
            gradients = [_gradients(model, about, at, batch, of)]
        except InputError:
            if len(at) == 1:
                raise
            groups = [([i], dict(about[i].forced)) for i in at]  # some classifiers refuse batches
            gradients = [_gradients(model, about, one, alone, of) for one, alone in groups]
        for (group, _), (g, x) in zip(groups, gradients, strict=True):
            reduced = REDUCE[reduce](g, x).cpu().numpy()
            left, whole = max(left, float(g.sum(-1).abs().max())), max(whole, float(g.abs().sum(-1).max()))
            for k, number in enumerate(group):
                values[number] = reduced[k]
    if "sum" in reduce and left < ROUNDING * whole:
        warnings.warn(
            f"the gradient of every token sums to 0 over its dimensions, up to rounding ({left:.1g} of {whole:.1g}): "
            f"the model subtracts the mean from what it reads, so reduce={reduce!r} ranks rounding errors; use "
            "reduce='l2'",
            AttentionWarning,
            stacklevel=2,
        )
    results = [
        result(model, question, v, "gradient", reduce=reduce, of=of) for question, v in zip(about, values, strict=True)
    ]
    return results if isinstance(text, list) else results[0]


def forward_and_backward(model: Runner, question: Question) -> tuple[Tensor, Tensor]:
    """Return the gradient of the answer's probability at the embeddings, and the embeddings: ``[token, dimension]``."""
    g, x = _gradients(model, [question], [0], dict(question.forced), "probability")
    return g[0], x[0]


def _gradients(model: Runner, about: list[Question], at: list[int], batch: Tensors, of: str) -> tuple[Tensor, Tensor]:
    """Return the gradient with respect to the embeddings, and the embeddings: ``[row, token, dimension]`` of one batch.

    ``∂p = p·(1-p)·∂(log-odds)``: only the gradient of the log-odds goes back through the network. It does not become small
    when the model is confident, so half precision keeps its digits too. For several tokens it is
    ``∂Πp_k = Πp_k · Σ_k (1-p_k)·∂(log-odds)_k``.
    """
    rows = [about[i] for i in at]
    tiles = rows[0].tiles
    model.check_gradients()
    watch = embeddings(model, batch["input_ids"]) if tiles is None else patch_embeddings(model, tiles)
    with torch.enable_grad(), watch as read:
        logits = logits_of(model, batch, grad=True, keep=len(rows[0].answer))
        if len(read.leaves) != 1:
            raise ModelError(
                f"gradients need the embeddings of the {'tokens' if tiles is None else 'patches'}, each read once, and "
                f"{type(model.model).__name__} reads them "
                f"{len(read.leaves)} times in this form: it pads, transposes or shares them"
            )
        through_odds = of == "probability" and rows[0].kind != "score"
        scale = None
        if through_odds and rows[0].rest:
            odds = token_scores(model, rows, logits, "log-odds")  # [row, answer token]
            y = (torch.sigmoid(-odds.detach()) * odds).sum(1)
            scale = torch.sigmoid(odds.detach()).prod(1)
        else:
            y = answer_scores(model, rows, logits, "log-odds" if through_odds else of)  # [row]
            if through_odds:
                scale = torch.sigmoid(y.detach()) * torch.sigmoid(-y.detach())
        with running():
            (g,) = torch.autograd.grad(y.sum(), read.leaves[0])
    g, x = g.double(), read.leaves[0].detach().double()
    if tiles is not None:  # [row, dimension, patch row, patch column] -> [row, position, dimension]
        g, x = (tiles.positions(y.flatten(2).transpose(1, 2)) for y in (g, x))
    g, x = g[:, : rows[0].length], x[:, : rows[0].length]  # only the tokens of the text, not of the answer
    if scale is not None:
        g = g * scale[:, None, None].to(g.device)
    return g, x


class Read:
    """What the embedding layer did in one forward pass: its calls, and the leaves that read the tokens themselves."""

    def __init__(self) -> None:
        self.calls = 0
        self.leaves: list[Tensor] = []


@contextmanager
def embeddings(model: Runner, ids: Tensor) -> Iterator[Read]:
    """Turn the embeddings of `ids` into a leaf that gradients reach, while the context lasts.

    Some models send token types through the same layer; these calls are left alone.
    """
    tokens = ids.to(model.device)

    def reads(args: Any, out: Any) -> bool:
        same = bool(args) and isinstance(args[0], Tensor) and args[0].shape == tokens.shape
        return same and torch.equal(args[0], tokens) and isinstance(out, Tensor) and out.shape[:2] == tokens.shape

    with _leaves([embedding_layer(model)], reads) as read:
        yield read


@contextmanager
def patch_embeddings(model: Runner, tiles: Tiles) -> Iterator[Read]:
    """Turn the embeddings of an image's patches, ``[row, dimension, patch row, patch column]``, into a leaf."""

    def reads(args: Any, out: Any) -> bool:
        return isinstance(out, Tensor) and out.dim() == 4 and tuple(out.shape[2:]) == (tiles.rows, tiles.columns)

    with _leaves(patch_layers(model, tiles), reads) as read:
        yield read


@contextmanager
def _leaves(layers: Sequence[torch.nn.Module], reads: Callable[[Any, Any], bool]) -> Iterator[Read]:
    """Turn what these layers return into leaves. reads: whether a call, by its arguments and output, is one of those."""
    read, own = Read(), threading.get_ident()

    def leaf(module: Any, args: Any, out: Any) -> Any:
        if threading.get_ident() != own:  # a hook sees the passes of all threads
            return None
        read.calls += 1
        if not reads(args, out):
            return None
        read.leaves.append(out.detach().requires_grad_())
        return read.leaves[-1]

    handles = [layer.register_forward_hook(leaf) for layer in layers]
    try:
        yield read
    finally:
        for handle in handles:
            handle.remove()


def embedding_layer(model: Runner) -> torch.nn.Module:
    try:
        layer = model.model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        layer = None
    if layer is None:
        raise ModelError(
            f"gradients need the embedding layer, and {type(model.model).__name__} does not name one: give it a method "
            "get_input_embeddings()"
        )
    return layer
