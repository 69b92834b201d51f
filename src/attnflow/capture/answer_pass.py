"""One frozen pass over a language model's answer: which tokens each answer token was read from.

Token k of the answer is decided at the position before it. A decoder looks back only, so the pass runs over the
answer's tokens alone, on top of the prompt's keys and values. An encoder-decoder runs its decoder on the states of its
encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture import check
from attnflow.capture.check import Checked
from attnflow.capture.encode import decoder_start
from attnflow.capture.frozen import Evidence, FrozenPass, run_frozen
from attnflow.capture.generate import Written
from attnflow.capture.inputs import labelled
from attnflow.capture.kv_cache import CacheInPlace, KeysLost, Snapshot, reading_cache, stored_layers
from attnflow.capture.routes import running
from attnflow.capture.verify import cover
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import Runner

Floats = NDArray[np.float64]

ROWS = 64
"""Rows of logits that are converted to single precision at a time, because a vocabulary is large."""

PROBE_TOKENS = 32
"""Tokens for the self-check on a decoder's first answer. Few, because the self-check takes a dozen passes."""

SHORT = 12
"""Length of the text that tests whether a model can read a cache."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The log-odds of answer tokens split into signed parts: ``Σ log_odds = Σ prompt + Σ answer + rest``.

    log_odds: [answer token].
    prompt, answer: [answer token, token of the prompt or the answer], the part that comes from each token, in the
        precision of the sum, because those of a long prompt are large.
    rest: the part of biases, of the score's own constant and of the decoder's start, summed over all rows.
    gap: the difference between the sum of the parts and the whole.
    """

    log_odds: Floats
    prompt: NDArray[np.floating[Any]]
    answer: NDArray[np.floating[Any]]
    rest: float
    gap: float


@dataclass(frozen=True, eq=False)
class AnswerPass:
    """One pass over an answer.

    rows: the positions in the pass that decide its tokens.
    length: the number of prompt tokens.
    written: the answer, with what this pass computed for its prompt, so that another pass need not read the prompt
        again.
    causal: whether the prompt looks back only.
    beside: the model's inputs other than the tokens of prompt and answer, for an image.
    """

    frozen: FrozenPass
    rows: slice
    ids: tuple[int, ...]
    length: int
    two_stacks: bool
    written: Written
    causal: bool = True
    beside: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def logits(self) -> Tensor:
        """The logits of the answer's tokens: [answer token, vocabulary]."""
        return self.frozen.logits[0, self.rows]

    @cached_property
    def log_probabilities(self) -> Floats:
        """The log-probabilities of the answer's tokens: [answer token]."""
        return log_probabilities(self.logits.detach(), self.ids)

    def parts(self) -> Parts:
        """Split the log-odds of each answer token by what its deciding position reads, and from where."""
        evidence = self.frozen.evidence(log_odds_of_rows(self.rows, self.ids), local=True, rows=self.rows)
        assert evidence.scored is not None
        # What a position reads from itself stays there, so its own part is what remains at the bottom.
        own = evidence.own[self.rows].cpu()
        prompt, answer, start = self._columns(evidence.read, own, evidence.crossed)
        rest = evidence.constants + float(start.sum(dtype=torch.float64))
        odds: Floats = evidence.scored.double().cpu().numpy()
        return Parts(odds, prompt.numpy(), answer.numpy(), rest, evidence.gap)

    def below(self, token: int) -> Evidence:
        """Split the log-odds of an answer token over the inputs of the text and of its vision tower."""
        weights = [float(i == token) for i in range(len(self.ids))]
        return self.frozen.evidence(log_odds(self.rows, self.ids, weights), rows=slice(0, 1))  # the edges are not used

    def fading(self, tokens: Sequence[int]) -> Floats:
        """Return how fast log p of these answer tokens falls as attention to each prompt token fades, signed.

        This concerns the attention of the positions that decide the answer; see `attnflow.capture.fading`. The pass
        must have run with ``freeze=False``.
        """
        slopes = self.frozen.slopes(log_probability(self.rows, self.ids, tokens), self.rows)
        total = slopes["cross" if self.two_stacks else "self"].sum(0)[: self.length]
        return np.asarray(total.cpu().numpy())

    def _columns(self, read: Tensor, own: Tensor, crossed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Split [row, key] into columns of the prompt, of the answer, and of the decoder's start.

        own: replaces what each position reads from itself.
        """
        read = read.cpu()  # safe to change in place: nothing else refers to it
        places = torch.arange(len(own))
        read[places, places + self.frozen.prefix + self.rows.start] = own.to(read.dtype)
        if crossed is not None:
            prompt, answer, start = crossed.cpu(), read[:, 1:], read[:, 0]
        else:
            prompt, answer, start = read[:, : self.length], read[:, self.length :], torch.zeros(1)
        # no position reads the last token
        return prompt, torch.nn.functional.pad(answer, (0, len(self.ids) - answer.shape[1])), start


def log_odds(rows: slice, ids: Sequence[int], weights: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """Return the score ``Σ_k weights[k]·(z_k - log Σ_{c≠k} exp z_c)`` of logits [1, position, token] at these rows."""
    each = log_odds_of_rows(rows, ids)

    def score(logits: Tensor) -> Tensor:
        return (each(logits) * torch.tensor(list(weights), dtype=torch.float64, device=logits.device)).sum()

    return score


def log_probability(rows: slice, ids: Sequence[int], tokens: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """Return the score ``Σ_k log p_k`` of logits [1, position, token] at these rows, over some of their tokens."""

    def score(logits: Tensor) -> Tensor:
        chosen = logits[0, rows][list(tokens)].double()
        places = torch.tensor([ids[t] for t in tokens], device=logits.device)
        return chosen.log_softmax(-1).gather(1, places[:, None]).sum()

    return score


def log_odds_of_rows(rows: slice, ids: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """Return the scores ``z_k - log Σ_{c≠k} exp z_c`` of logits [1, position, token] at each of these rows."""

    def score(logits: Tensor) -> Tensor:
        odds: Tensor = _Odds.apply(logits[0, rows], torch.tensor(list(ids), device=logits.device))
        return odds.double()

    return score


class _Odds(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """The log-odds of one token in each row [row, token]. Logits are widened a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor) -> Tensor:
        places = ids[:, None]
        total = torch.cat([_others(*some).logsumexp(-1) for some in _some_rows(logits, places)])
        ctx.save_for_backward(logits, total, places)
        return logits.gather(1, places)[:, 0].to(total.dtype) - total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, total, places = ctx.saved_tensors
        slope = torch.empty_like(logits)
        parts = zip(_some_rows(logits, places), total.split(ROWS), gradient.split(ROWS), slope.split(ROWS), strict=True)
        for some, sums, upward, out in parts:
            shares = _others(*some).sub_(sums[:, None]).exp_().mul_(-upward[:, None])
            out.copy_(shares.scatter_(1, some[1], upward[:, None]))
        return slope, None


def _some_rows(logits: Tensor, places: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(logits.split(ROWS), places.split(ROWS), strict=True))


def _others(logits: Tensor, places: Tensor) -> Tensor:
    """Return a wide copy of some rows of logits, without each row's own token."""
    wide = logits.clone() if logits.dtype == torch.float64 else logits.to(torch.float32, copy=True)
    return wide.scatter_(1, places, -torch.inf)


def log_probabilities(logits: Tensor, answer: Sequence[int]) -> Floats:
    """Return ``z_y - log Σ_c exp z_c`` of logits ``[answer token, token]``, summed in double precision."""
    if logits.dim() != 2 or logits.shape[0] != len(answer) or logits.shape[1] <= max(answer):
        raise ModelError(
            f"the model returns logits of shape {tuple(logits.shape)} for an answer of {len(answer)} tokens: expected "
            "one row over the vocabulary for each token"
        )
    z = logits if logits.dtype == torch.float64 else logits.float()
    top = z.max(-1).values
    total = (z - top[:, None]).exp().sum(-1, dtype=torch.float64).log() + top  # [answer token]
    own = z.gather(1, torch.tensor(answer, device=z.device)[:, None])[:, 0]
    return np.asarray((own.double() - total).cpu().numpy())


def run_answer(
    model: Runner,
    prompt: Sequence[int],
    written: Written,
    freeze: bool = True,
    beside: Mapping[str, Tensor] | None = None,
    down: Mapping[str, Any] | None = None,
) -> AnswerPass:
    """Run the frozen pass of an answer after its prompt, on the cache left by generation if possible.

    freeze: if False, hold nothing constant, for `AnswerPass.fading`.
    beside: the model's inputs other than the prompt's tokens, for an image; prompt and answer then run together,
        without a cache.
    down: how the pass continues down through a vision tower; see `Wiring.down`.
    """
    with torch.inference_mode(False):  # gradients are needed even if the caller turned them off
        if beside:
            return _with_image(model, prompt, written, freeze, beside, down or {})
        return _answer_pass(model, prompt, written, freeze)


def _answer_pass(model: Runner, prompt: Sequence[int], written: Written, freeze: bool) -> AnswerPass:
    model.check_default_device()
    tokens = [*prompt, *written.ids[:-1]]
    if getattr(model.config, "is_encoder_decoder", False):
        return _decoder_pass(model, prompt, written, freeze)
    some = tokens[:PROBE_TOKENS]
    checked = model.verify(labelled({"input_ids": torch.tensor([some])}, [str(i) for i in some]))
    if not checked.causal:
        raise ModelError(
            f"{type(model.model).__name__} attends to later positions, but answers can only be explained for "
            "models that look back only: trace its text instead"
        )
    cover(model, {"input_ids": torch.tensor([tokens])}, checked)
    prefix = len(prompt) - 1
    rows = slice(0, len(written.ids))
    if prefix and not model.stretching.changes([len(tokens)]) and reads_cache(model, checked):
        frozen, written = _on_cache(model, tokens, prefix, written, checked, freeze)
        return AnswerPass(frozen, rows, written.ids, len(prompt), False, written)
    frozen = run_frozen(model, {"input_ids": torch.tensor([tokens])}, checked, freeze=freeze)
    return AnswerPass(frozen, slice(prefix, len(tokens)), written.ids, len(prompt), False, written)


def _with_image(
    model: Runner,
    prompt: Sequence[int],
    written: Written,
    freeze: bool,
    beside: Mapping[str, Tensor],
    down: Mapping[str, Any],
) -> AnswerPass:
    """Run one pass over prompt and answer with an image among the tokens.

    The positions of an image may attend to one another (Gemma 3), and so may a whole prompt (PaliGemma), if token types
    say which tokens belong to the prompt. The answer must look back only, and no earlier position may attend to it.
    """
    n, tokens = len(prompt), [*prompt, *written.ids[:-1]]
    ids = {"input_ids": torch.tensor([tokens])}
    for kind in (0, 1):
        full = {name: _lengthened(x, n, len(tokens), kind) for name, x in beside.items()}
        checked = model.verify(labelled({**ids, **full}, [str(i) for i in tokens]))
        frozen = run_frozen(model, {**ids, **full}, checked, freeze=freeze, keep=True, measure=False, **down)
        own = [frozen.calls[i].mean for i in checked.stack.main]
        if not any(mean is None or float(mean[0, :, n:].triu(1 - n).max()) > 0 for mean in own if len(tokens) > n):
            rows = slice(n - 1, len(tokens))
            return AnswerPass(frozen, rows, written.ids, n, False, written, checked.causal, full)
    raise ModelError(
        f"{type(model.model).__name__} attends to later positions of its answer, but answers can only be explained for "
        "models that look back only: trace its text instead"
    )


def _lengthened(x: Tensor, n: int, length: int, kind: int) -> Tensor:
    """Extend a tensor that has an entry for each of n tokens to a larger length, filled with this kind."""
    return torch.nn.functional.pad(x, (0, length - n), value=kind) if tuple(x.shape) == (1, n) else x


def _on_cache(
    model: Runner, tokens: Sequence[int], prefix: int, written: Written, checked: Checked, freeze: bool
) -> tuple[FrozenPass, Written]:
    """Run a pass over the tokens from ``prefix`` on, reading the cache of the earlier ones in place if possible.

    If the answer has no usable cache, it is returned with one.
    """
    if not reads_in_place(model, checked):
        joined = reading_cache(written.cache, prefix, written.item, written.start)
        if joined is None:
            written = replace(written, cache=prompt_cache(model, tokens[:prefix]), item=0, start=0)
            joined = reading_cache(written.cache, prefix)
        return _after_cache(model, tokens, prefix, joined, checked, freeze), written
    layers = stored_layers(written.cache, prefix, written.item, written.start)
    if layers is not None:
        try:
            known = written.cache if isinstance(written.cache, Snapshot) else None
            return _after_cache(model, tokens, prefix, CacheInPlace(layers, prefix, known), checked, freeze), written
        except KeysLost:  # a sliding window has moved on, so the prompt must be read again
            pass
    written = replace(written, cache=prompt_cache(model, tokens[:prefix]), item=0, start=0)
    layers = stored_layers(written.cache, prefix)
    assert layers is not None
    return _after_cache(model, tokens, prefix, CacheInPlace(layers, prefix), checked, freeze), written


def _after_cache(
    model: Runner,
    tokens: Sequence[int],
    prefix: int,
    cache: CacheInPlace | KeyValueCache | None,
    checked: Checked,
    freeze: bool = True,
) -> FrozenPass:
    tensors = {"input_ids": torch.tensor([list(tokens[prefix:])])}
    if model.accepts("attention_mask"):
        tensors["attention_mask"] = torch.ones(1, len(tokens), dtype=torch.long)
    return run_frozen(model, tensors, checked, cache=cache, prefix=prefix, freeze=freeze)


def prompt_cache(model: Runner, ids: Sequence[int]) -> KeyValueCache | None:
    """Return all keys and values of a prompt."""
    from transformers.cache_utils import DynamicCache

    options: dict[str, Any] = {"past_key_values": DynamicCache(), "use_cache": True}
    if model.accepts("logits_to_keep"):
        options["logits_to_keep"] = 1
    with running():
        out = model.forward({"input_ids": torch.tensor([list(ids)])}, **options)
    return out.get("past_key_values")


def reads_cache(model: Runner, checked: Checked) -> bool:
    """Return whether the model gives the same outputs with a cache as without, tested on a short text at first use."""
    if model.reads_cache is None:
        model.reads_cache = model.accepts("past_key_values") and _cache_agrees(model)
    return model.reads_cache


def reads_in_place(model: Runner, checked: Checked) -> bool:
    """Return whether a frozen pass that reads the cache in place gives the model's outputs, tested on a short text."""
    if model.reads_in_place is None:
        model.reads_in_place = checked.blocks and _cache_agrees(model, checked)
    return model.reads_in_place


def _cache_agrees(model: Runner, checked: Checked | None = None) -> bool:
    """Return whether the last tokens of a short text get the same logits when the earlier ones come from a cache.

    checked: if given, read the cache in place.
    """
    ids = (torch.arange(2, 2 + SHORT) % model.vocabulary()).tolist()
    prefix = SHORT * 2 // 3
    try:
        whole = {"input_ids": torch.tensor([ids])}
        expected = check.float_outputs(model.forward(whole))[0]
        cache = prompt_cache(model, ids[:prefix])
        if checked is not None:
            layers = stored_layers(cache, prefix)
            in_place = None if layers is None else CacheInPlace(layers, prefix)
            outputs = _after_cache(model, ids, prefix, in_place, checked).logits.detach()
        else:
            mask = {"attention_mask": torch.ones(1, SHORT, dtype=torch.long)} if model.accepts("attention_mask") else {}
            tensors = {"input_ids": torch.tensor([ids[prefix:]]), **mask}
            joined = reading_cache(cache, prefix)
            outputs = check.float_outputs(model.forward(tensors, past_key_values=joined, use_cache=True))[0]
    except Exception:  # model files fail in many ways on a cache they do not know; then no cache is used
        return False
    gap = check.largest_difference([outputs], [expected[:, prefix:]])
    return check.is_close(gap, model.model, model.forward, whole, [expected])


def _decoder_pass(model: Runner, prompt: Sequence[int], written: Written, freeze: bool) -> AnswerPass:
    """Run the decoder of an encoder-decoder on its encoder's states; the source plays the role of the prompt."""
    start = decoder_start(model)
    source = {"input_ids": torch.tensor([list(prompt)])}
    target = torch.tensor([[start, *written.ids[:-1]]])
    both = {**source, "decoder_input_ids": target}
    checked = model.verify(labelled(both, [str(i) for i in prompt]))
    cover(model, both, checked)
    encoded = written.source
    if encoded is None:
        with running(), torch.no_grad(), model.eagerly():
            encoded = model.model.get_encoder()(**model.placed(source))
    mask = {"attention_mask": torch.ones(1, len(prompt), dtype=torch.long)}
    frozen = run_frozen(model, {"decoder_input_ids": target, **mask}, checked, freeze=freeze, encoder_outputs=encoded)
    read = replace(written, source=encoded)
    return AnswerPass(frozen, slice(0, len(written.ids)), written.ids, len(prompt), True, read)
