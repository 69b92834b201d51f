"""The answer of a language model after its prompt, as one frozen pass: what each of its tokens was read from.

Token k of the answer is decided at the position before it. A decoder looks back only, so the pass runs over the answer's
tokens alone, on top of the prompt's keys and values; an encoder-decoder runs its decoder on what its encoder gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture import check
from attnflow.capture.check import Checked
from attnflow.capture.encode import decoder_start
from attnflow.capture.frozen import FrozenPass, run_frozen
from attnflow.capture.generate import Written
from attnflow.capture.inputs import labelled
from attnflow.capture.kv_cache import CacheInPlace, KeysLost, Snapshot, reading_cache, stored_layers
from attnflow.capture.routes import running
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import Runner

Floats = NDArray[np.float64]

ROWS = 64
"""So many rows of logits are taken in single precision at a time: a vocabulary is large."""

PROBE_TOKENS = 32
"""The self-check takes a dozen passes: on a decoder's first answer it runs on so many tokens, to be over soon."""

SHORT = 12
"""Tokens of the text that shows whether a model reads a cache."""


@dataclass(frozen=True, eq=False)
class Parts:
    """How the log-odds of answer tokens split: ``Σ log_odds = Σ prompt + Σ answer + rest``, signed.

    log_odds: [answer token]. prompt, answer: [answer token, token of the prompt or the answer], what comes from there, in
    the precision in which it was added up: those of a long prompt are large.
    rest: what biases, the score's own constant and the decoder's start hold, over all rows. gap: how far the parts are
    from the whole. layers: [layer, answer token, token of the prompt, then of the answer], where asked for.
    """

    log_odds: Floats
    prompt: NDArray[np.floating[Any]]
    answer: NDArray[np.floating[Any]]
    rest: float
    gap: float
    layers: Floats | None = None

    def followed_by(self, later: Parts) -> Parts:
        """These rows, and those of the tokens that came after, whose prompt was prompt and answer up to there."""
        count, length = self.prompt.shape
        read = np.concatenate([later.prompt[:, length:], later.answer], 1)
        return Parts(
            np.concatenate([self.log_odds, later.log_odds]),
            np.concatenate([self.prompt, later.prompt[:, :length]]),
            np.concatenate([np.pad(self.answer, ((0, 0), (0, read.shape[1] - count))), read]),
            self.rest + later.rest,
            max(self.gap, later.gap),
        )


@dataclass(frozen=True, eq=False)
class AnswerPass:
    """One pass over an answer. rows: where in the pass its tokens are decided. length: tokens of the prompt.

    written: the answer, with what this pass knew of its prompt: another pass need not read it again.
    """

    frozen: FrozenPass
    rows: slice
    ids: tuple[int, ...]
    length: int
    two_stacks: bool
    written: Written

    @cached_property
    def logits(self) -> Tensor:
        """[answer token, vocabulary]."""
        return self.frozen.logits[0, self.rows]

    @cached_property
    def log_probabilities(self) -> Floats:
        """[answer token]."""
        return log_probabilities(self.logits.detach(), self.ids)

    def parts(self, every: bool = False) -> Parts:
        """The parts of the log-odds of each token: what the position that decides it reads, and from where.

        every: also what it reads at each layer.
        """
        evidence = self.frozen.evidence(log_odds_of_rows(self.rows, self.ids), local=True, every=every, rows=self.rows)
        assert evidence.scored is not None
        # what a position reads from itself stays there: what it holds at the bottom is what ends there
        own = evidence.own[self.rows].cpu()
        prompt, answer, start = self._columns(evidence.read, own, evidence.crossed)
        layers = None
        if every:
            crossings = evidence.crossed_layers or (None,) * len(evidence.layers)
            nothing = torch.zeros_like(own)
            both = [
                torch.cat(self._columns(read, nothing, crossed)[:2], 1)
                for read, crossed in zip(evidence.layers, crossings, strict=True)
            ]
            layers = torch.stack(both).numpy()
        rest = evidence.constants + float(start.sum(dtype=torch.float64))
        odds: Floats = evidence.scored.double().cpu().numpy()
        return Parts(odds, prompt.numpy(), answer.numpy(), rest, evidence.gap, layers)

    def fading(self, tokens: Sequence[int]) -> Floats:
        """How fast log p of these answer tokens falls as attention to each prompt token fades: [prompt token], signed.

        Attention of the positions that decide the answer; see `attnflow.capture.fading`. The pass must have been run with
        nothing held constant.
        """
        slopes = self.frozen.slopes(log_probability(self.rows, self.ids, tokens), self.rows)
        total = slopes["cross" if self.two_stacks else "self"].sum(0)[: self.length]
        return np.asarray(total.cpu().numpy())

    def _columns(self, read: Tensor, own: Tensor, crossed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """[row, key] as columns of the prompt, of the answer, and of the decoder's start.

        own: what stands for what a position reads from itself.
        """
        read = read.cpu()  # nobody else has it
        places = torch.arange(len(own))
        read[places, places + self.frozen.prefix + self.rows.start] = own.to(read.dtype)
        if crossed is not None:
            prompt, answer, start = crossed.cpu(), read[:, 1:], read[:, 0]
        else:
            prompt, answer, start = read[:, : self.length], read[:, self.length :], torch.zeros(1)
        # nobody reads the last token
        return prompt, torch.nn.functional.pad(answer, (0, len(self.ids) - answer.shape[1])), start


def log_odds(rows: slice, ids: Sequence[int], weights: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """``Σ_k weights[k]·(z_k - log Σ_{c≠k} exp z_c)`` of logits [1, position, token], read at these rows."""
    each = log_odds_of_rows(rows, ids)

    def score(logits: Tensor) -> Tensor:
        return (each(logits) * torch.tensor(list(weights), dtype=torch.float64, device=logits.device)).sum()

    return score


def log_probability(rows: slice, ids: Sequence[int], tokens: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """``Σ_k log p_k`` of logits [1, position, token] at these rows, over some of their tokens."""

    def score(logits: Tensor) -> Tensor:
        chosen = logits[0, rows][list(tokens)].double()
        places = torch.tensor([ids[t] for t in tokens], device=logits.device)
        return chosen.log_softmax(-1).gather(1, places[:, None]).sum()

    return score


def log_odds_of_rows(rows: slice, ids: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """``z_k - log Σ_{c≠k} exp z_c`` of logits [1, position, token] at each of these rows."""

    def score(logits: Tensor) -> Tensor:
        odds: Tensor = _Odds.apply(logits[0, rows], torch.tensor(list(ids), device=logits.device))
        return odds.double()

    return score


class _Odds(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    """The log-odds of one token in each row [row, token]. Logits are widened for some rows at a time."""

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
    """A wide copy of some rows of logits without the token of each."""
    wide = logits.clone() if logits.dtype == torch.float64 else logits.to(torch.float32, copy=True)
    return wide.scatter_(1, places, -torch.inf)


def log_probabilities(logits: Tensor, answer: Sequence[int]) -> Floats:
    """``z_y - log Σ_c exp z_c`` of logits ``[answer token, token]``. The sum is taken in double precision."""
    if logits.dim() != 2 or logits.shape[0] != len(answer) or logits.shape[1] <= max(answer):
        raise ModelError(
            f"the model gives logits of shape {tuple(logits.shape)} for {len(answer)} tokens of an answer: expected one "
            "row for each, over its vocabulary"
        )
    z = logits if logits.dtype == torch.float64 else logits.float()
    top = z.max(-1).values
    total = (z - top[:, None]).exp().sum(-1, dtype=torch.float64).log() + top  # [answer token]
    own = z.gather(1, torch.tensor(answer, device=z.device)[:, None])[:, 0]
    return np.asarray((own.double() - total).cpu().numpy())


def run_answer(model: Runner, prompt: Sequence[int], written: Written, freeze: bool = True) -> AnswerPass:
    """The frozen pass of an answer after its prompt, on the cache that writing left where it can be used.

    freeze: otherwise nothing is held constant, for `AnswerPass.fading`.
    """
    with torch.inference_mode(False):  # there are gradients to take, whatever goes on around
        return _answer_pass(model, prompt, written, freeze)


def _answer_pass(model: Runner, prompt: Sequence[int], written: Written, freeze: bool) -> AnswerPass:
    tokens = [*prompt, *written.ids[:-1]]
    if getattr(model.config, "is_encoder_decoder", False):
        return _decoder_pass(model, prompt, written, freeze)
    some = tokens[:PROBE_TOKENS]
    checked = model.verify(labelled({"input_ids": torch.tensor([some])}, [str(i) for i in some]))
    if not checked.causal:
        raise ModelError(
            f"{type(model.model).__name__} looks ahead, and answers are of models that look back only: trace its text"
        )
    prefix = len(prompt) - 1
    rows = slice(0, len(written.ids))
    if prefix and reads_cache(model, checked):
        frozen, written = _on_cache(model, tokens, prefix, written, checked, freeze)
        return AnswerPass(frozen, rows, written.ids, len(prompt), False, written)
    frozen = run_frozen(model, {"input_ids": torch.tensor([tokens])}, checked, freeze=freeze)
    return AnswerPass(frozen, slice(prefix, len(tokens)), written.ids, len(prompt), False, written)


def _on_cache(
    model: Runner, tokens: Sequence[int], prefix: int, written: Written, checked: Checked, freeze: bool
) -> tuple[FrozenPass, Written]:
    """A pass over the tokens from ``prefix`` on, on the cache of those before, where it lies if the model allows.

    Where the answer came without a cache that can be used, it comes back with one.
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
        except KeysLost:  # a sliding window went on: the prompt is read again
            pass
    written = replace(written, cache=prompt_cache(model, tokens[:prefix]), item=0, start=0)
    layers = stored_layers(written.cache, prefix)
    assert layers is not None  # of our own
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
    """Keys and values of a prompt, all of them."""
    from transformers.cache_utils import DynamicCache

    options: dict[str, Any] = {"past_key_values": DynamicCache(), "use_cache": True}
    if model.accepts("logits_to_keep"):
        options["logits_to_keep"] = 1
    with running():
        out = model.forward({"input_ids": torch.tensor([list(ids)])}, **options)
    return out.get("past_key_values")


def reads_cache(model: Runner, checked: Checked) -> bool:
    """Whether the model gives on a cache what it gives without, as a short text shows on first use."""
    if model.reads_cache is None:
        model.reads_cache = model.accepts("past_key_values") and _cache_agrees(model)
    return model.reads_cache


def reads_in_place(model: Runner, checked: Checked) -> bool:
    """Whether a frozen pass that takes the cache where it lies gives what the model gives, as a short text shows."""
    if model.reads_in_place is None:
        model.reads_in_place = checked.blocks and _cache_agrees(model, checked)
    return model.reads_in_place


def _cache_agrees(model: Runner, checked: Checked | None = None) -> bool:
    """Whether the last tokens of a short text get the same logits on the cache of those before them.

    checked: take the cache where it lies.
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
    except Exception:  # whatever a model file does with a cache it does not know: then without one
        return False
    gap = check.largest_difference([outputs], [expected[:, prefix:]])
    return check.is_close(gap, model.model, model.forward, whole, [expected])


def _decoder_pass(model: Runner, prompt: Sequence[int], written: Written, freeze: bool) -> AnswerPass:
    """The decoder of an encoder-decoder on what its encoder gave: the source is read as a prompt is."""
    start = decoder_start(model)
    source = {"input_ids": torch.tensor([list(prompt)])}
    target = torch.tensor([[start, *written.ids[:-1]]])
    checked = model.verify(labelled({**source, "decoder_input_ids": target}, [str(i) for i in prompt]))
    encoded = written.source
    if encoded is None:
        with running(), torch.no_grad():
            encoded = model.model.get_encoder()(**model.placed(source))
    mask = {"attention_mask": torch.ones(1, len(prompt), dtype=torch.long)}
    frozen = run_frozen(model, {"decoder_input_ids": target, **mask}, checked, freeze=freeze, encoder_outputs=encoded)
    read = replace(written, source=encoded)
    return AnswerPass(frozen, slice(0, len(written.ids)), written.ids, len(prompt), True, read)
