"""The answer of a language model after its prompt, as one frozen pass: what each of its tokens was read from.

Token k of the answer is decided at the position before it. A decoder looks back only, so the pass runs over the answer's
tokens alone, on top of the prompt's keys and values; an encoder-decoder runs its decoder on what its encoder gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from attnflow.capture.kv_cache import reading_cache
from attnflow.capture.routes import running
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as KeyValueCache

    from attnflow.capture.runner import Runner

Floats = NDArray[np.float64]

PROBE_TOKENS = 32
"""The self-check takes a dozen passes: on a decoder's first answer it runs on so many tokens, to be over soon."""


@dataclass(frozen=True, eq=False)
class Parts:
    """How the log-odds of answer tokens split: ``Σ log_odds = Σ prompt + Σ answer + rest``, signed.

    log_odds: [answer token]. prompt, answer: [answer token, token of the prompt or the answer], what comes from there.
    rest: what biases, the score's own constant and the decoder's start hold, over all rows. gap: how far the parts are
    from the whole. layers: [layer, answer token, token of the prompt, then of the answer], where asked for.
    """

    log_odds: Floats
    prompt: Floats
    answer: Floats
    rest: float
    gap: float
    layers: Floats | None = None


@dataclass(frozen=True, eq=False)
class AnswerPass:
    """One pass over an answer. rows: where in the pass its tokens are decided. length: tokens of the prompt."""

    frozen: FrozenPass
    rows: slice
    ids: tuple[int, ...]
    length: int
    two_stacks: bool

    @cached_property
    def logits(self) -> Tensor:
        """[answer token, vocabulary]."""
        return self.frozen.logits[0, self.rows]

    @cached_property
    def log_probabilities(self) -> Floats:
        """[answer token]."""
        return log_probabilities(self.logits.detach(), self.ids)

    @cached_property
    def log_odds(self) -> Floats:
        """[answer token]: ``log p/(1-p)``, without the loss of digits where a token is sure."""
        with torch.no_grad():
            values: Floats = _odds(self.logits, self.ids).double().cpu().numpy()
        return values

    def parts(self, every: bool = False) -> Parts:
        """The parts of the log-odds of each token: what the position that decides it reads, and from where.

        every: also what it reads at each layer.
        """
        score = log_odds(self.rows, self.ids, [1.0] * len(self.ids))
        evidence = self.frozen.evidence(score, local=True, every=every)
        # what a position reads from itself stays there: what it holds at the bottom is what ends there
        prompt, answer, start = self._columns(self._with_own(evidence.read, evidence.own), evidence.crossed)
        layers = None
        if every:
            crossings = evidence.crossed_layers or (None,) * len(evidence.layers)
            nothing = torch.zeros_like(evidence.own)
            both = [
                torch.cat(self._columns(self._with_own(read, nothing), crossed)[:2], 1)
                for read, crossed in zip(evidence.layers, crossings, strict=True)
            ]
            layers = torch.stack(both)[:, self.rows].cpu().numpy()
        rest = evidence.constants + float(start.sum())
        prompt, answer = prompt[self.rows].cpu(), answer[self.rows].cpu()
        return Parts(self.log_odds, prompt.numpy(), answer.numpy(), rest, evidence.gap, layers)

    def _with_own(self, read: Tensor, own: Tensor) -> Tensor:
        """Edges [query, key] with these values for what a position reads from itself."""
        places = torch.arange(len(own), device=own.device)
        others = read.clone()
        others[places, places + self.frozen.prefix] = own
        return others

    def _columns(self, read: Tensor, crossed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """[row, key] as columns of the prompt, of the answer, and of the decoder's start."""
        if crossed is not None:
            prompt, answer, start = crossed, read[:, 1:], read[:, 0]
        else:
            prompt, answer, start = read[:, : self.length], read[:, self.length :], torch.zeros(1)
        # nobody reads the last token
        return prompt, torch.nn.functional.pad(answer, (0, len(self.ids) - answer.shape[1])), start


def log_odds(rows: slice, ids: Sequence[int], weights: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """``Σ_k weights[k]·(z_k - log Σ_{c≠k} exp z_c)`` of logits [1, position, token], read at these rows."""

    def score(logits: Tensor) -> Tensor:
        scale = torch.tensor(list(weights), dtype=torch.float64, device=logits.device)
        return (_odds(logits[0, rows], ids).double() * scale).sum()

    return score


def _odds(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """The log-odds of one token in each row [row, token]."""
    places = torch.tensor(list(ids), device=logits.device)[:, None]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.gather(1, places)[:, 0] - wide.scatter(1, places, -torch.inf).logsumexp(-1)


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


def run_answer(model: Runner, prompt: Sequence[int], written: Written) -> AnswerPass:
    """The frozen pass of an answer after its prompt, on the cache that writing left where it can be used."""
    with torch.inference_mode(False):  # there are gradients to take, whatever goes on around
        return _answer_pass(model, prompt, written)


def _answer_pass(model: Runner, prompt: Sequence[int], written: Written) -> AnswerPass:
    tokens = [*prompt, *written.ids[:-1]]
    if getattr(model.config, "is_encoder_decoder", False):
        return _decoder_pass(model, prompt, written)
    some = tokens[:PROBE_TOKENS]
    checked = model.verify(labelled({"input_ids": torch.tensor([some])}, [str(i) for i in some]))
    if not checked.causal:
        raise ModelError(
            f"{type(model.model).__name__} looks ahead, and answers are of models that look back only: trace its text"
        )
    prefix = len(prompt) - 1
    rows = slice(0, len(written.ids))
    if prefix and reads_cache(model, checked):
        cache = None if written.cache is None else reading_cache(written.cache, prefix, written.item, written.start)
        if cache is None:
            cache = reading_cache(prompt_cache(model, prompt[:prefix]), prefix)
        ids = torch.tensor([tokens[prefix:]])
        mask = (
            {"attention_mask": torch.ones(1, len(tokens), dtype=torch.long)} if model.accepts("attention_mask") else {}
        )
        frozen = run_frozen(model, {"input_ids": ids, **mask}, checked, cache=cache, prefix=prefix)
        return AnswerPass(frozen, rows, written.ids, len(prompt), False)
    frozen = run_frozen(model, {"input_ids": torch.tensor([tokens])}, checked)
    return AnswerPass(frozen, slice(prefix, len(tokens)), written.ids, len(prompt), False)


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


def _cache_agrees(model: Runner) -> bool:
    ids = torch.arange(2, 14)[None] % model.vocabulary()
    try:
        expected = check.float_outputs(model.forward({"input_ids": ids}))[0]
        cache = reading_cache(prompt_cache(model, ids[0, :8].tolist()), 8)
        if cache is None:
            return False
        mask = {"attention_mask": torch.ones(1, 12, dtype=torch.long)} if model.accepts("attention_mask") else {}
        tensors = {"input_ids": ids[:, 8:], **mask}
        outputs = check.float_outputs(model.forward(tensors, past_key_values=cache, use_cache=True))[0]
    except Exception:  # whatever a model file does with a cache it does not know: then without one
        return False
    gap = check.largest_difference([outputs], [expected[:, 8:]])
    return gap <= check.tolerance(model.model, [expected])


def _decoder_pass(model: Runner, prompt: Sequence[int], written: Written) -> AnswerPass:
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
    frozen = run_frozen(model, {"decoder_input_ids": target, **mask}, checked, encoder_outputs=encoded)
    return AnswerPass(frozen, slice(0, len(written.ids)), written.ids, len(prompt), True)
