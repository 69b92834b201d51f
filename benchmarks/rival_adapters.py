"""Rivals on our cases: each adapter passes tokens and units to another author's code and returns its scores.

What a rival reads is its own choice: FlashTrace and IFR read the positions *of* the answer's tokens, AttnLRP and AT2
those that predict them, ContextCite the answer's probability. With `predicting`, the first two read the predicting
positions.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnflow.capture.answer_pass import log_odds
from attnflow.errors import InputError
from attnflow.importance.blank import blank_token
from benchmarks.rival_packages import Floats, lent, package
from benchmarks.rival_tokens import CharacterTokens, KnownTexts

if TYPE_CHECKING:
    from attnflow.model import Model

Units = Sequence[Sequence[int]]
Rival = Callable[["Model", list[int], list[int]], Floats]
"""(model, prompt, answer) -> a score for each token of the prompt."""
UnitRival = Callable[["Model", list[int], list[int], Units], Floats]
"""(model, prompt, answer, positions of each unit) -> a score for each unit."""

FAMILIES = ("llama", "phi3", "qwen2", "gemma3")
"""The models whose attention AT2 supports."""

CEILING = 24 * math.log(2)
"""The log-odds of the largest float32 probability below 1: beyond it ContextCite's own formula gives infinity."""

STEPS, SAMPLES = 50, 25
"""captum's own defaults: steps of integrated gradients, orders of Shapley sampling."""


def flashtrace(method: str, hops: int = 0, predicting: bool = False) -> Rival:
    """Return FlashTrace's tracer as a rival.

    predicting: its span is the positions before the answer's tokens. The first of them is the prompt's last token,
        which then has no score.
    """

    def rival(model: Model, ids: list[int], answer: list[int]) -> Floats:
        (top,) = package("flashtrace")
        prompt, span = (ids[:-1], [ids[-1], *answer[:-1]]) if predicting else (ids, answer)
        tokens = KnownTexts(model.tokenizer, prompt, span)
        with lent(model) as decoder:
            # its tracer drops the end of the text; its IFR averages over the given rows
            rows = None if method == "flashtrace" else (0, len(span) - 1)
            tracer = top.FlashTrace(decoder, tokens, recompute_attention=True)
            trace = tracer.trace(
                prompt=tokens.text(prompt), target=tokens.text(span), output_span=rows, hops=hops, method=method
            )
        scores = np.zeros(len(ids))
        scores[: len(prompt)] = trace.scores
        return scores

    return rival


def attnlrp(model: Model, ids: list[int], answer: list[int]) -> Floats:
    """Return the relevance of the answer's logits by FlashTrace's AttnLRP: the mean over answer tokens, signed."""
    _, baselines, attribution = package("flashtrace", "flashtrace.baselines", "flashtrace.attribution")
    tokens = KnownTexts(model.tokenizer, ids, answer)
    with lent(model) as decoder, interfaces(attribution, decoder):
        rules = baselines.LLMLRPAttribution(decoder, tokens)
        span = rules.calculate_attnlrp_span_aggregate(
            tokens.text(ids), tokens.text(answer), sink_start=0, sink_end=len(answer) - 1
        )
    return np.asarray(span.token_importance_total[: len(ids)], np.float64)


class Interfaces(dict[str, Any]):
    """Attention functions by name, as transformers 5 looks them up."""

    def get_interface(self, name: str, default: Any) -> Any:
        return self.get(name, default)


@contextmanager
def interfaces(attribution: Any, decoder: Any) -> Iterator[None]:
    """Make FlashTrace's rules work under transformers 5, which needs `get_interface` instead of a plain dict.

    Afterwards transformers has its own functions again: the rules leave a copy.
    """
    module: Any = sys.modules[type(decoder).__module__]
    functions, context = module.ALL_ATTENTION_FUNCTIONS, attribution.lrp_context

    @contextmanager
    def patched(*values: Any) -> Iterator[Any]:
        with context(*values) as state:
            module.ALL_ATTENTION_FUNCTIONS = Interfaces(module.ALL_ATTENTION_FUNCTIONS)
            yield state

    try:
        attribution.lrp_context = patched
        yield
    finally:
        attribution.lrp_context, module.ALL_ATTENTION_FUNCTIONS = context, functions


@dataclass(frozen=True)
class Example:
    """A prompt, its answer and its units, to train AT2 on."""

    ids: list[int]
    answer: list[int]
    units: Units


def at2(weights: Path | None = None) -> Rival:
    """Return AT2: attention from the predicting positions, with equal head weights or those saved by `train_at2`."""

    def rival(model: Model, ids: list[int], answer: list[int]) -> Floats:
        return _at2(model, Example(ids, answer, [[i] for i in range(len(ids))]), weights)

    return rival


def at2_units(weights: Path | None = None) -> UnitRival:
    """Return the same, summed over the tokens of each unit, as AT2 scores a source."""

    def rival(model: Model, ids: list[int], answer: list[int], units: Units) -> Floats:
        scores = at2(weights)(model, ids, answer)
        return np.array([scores[list(unit)].sum() for unit in units])

    return rival


def _at2(model: Model, example: Example, weights: Path | None) -> Floats:
    top, *_ = package("at2")
    if weights is not None and not weights.is_file():
        raise InputError(f"{str(weights)!r} is not a file: expected AT2 weights saved by `train_at2`")
    with lent(model) as decoder:
        heads = _heads(decoder)
        estimator = (
            top.AT2ScoreEstimator(heads) if weights is None else top.AT2ScoreEstimator.load(weights, decoder.device)
        )
        if estimator.feature_extractor.num_features != heads.num_features:
            raise InputError(
                f"the AT2 weights in {str(weights)!r} are for {estimator.feature_extractor.num_features} heads, but "
                f"{model!r} has {heads.num_features}: train AT2 on this model"
            )
        scores = top.AT2Attributor(_task(decoder, example), estimator).get_attribution_scores()
    return np.asarray(scores, np.float64)


def train_at2(
    model: Model,
    examples: Sequence[Example],
    weights: Path,
    *,
    masks: int = 32,
    iterations: int = 1000,
    batch: int = 4,
) -> None:
    """Train AT2 with its own trainer on ablations of these examples, and save its weights.

    weights: the file.
    masks, iterations: of each example and of the optimizer; AT2's defaults.
    batch: ablations that run together.
    """
    top, *_ = package("at2")
    if not examples:
        raise InputError("there are no examples to train AT2 on: expected at least one")
    numbers = [{"number": number} for number in range(len(examples))]
    with TemporaryDirectory() as folder, lent(model) as decoder:
        trainer = top.AT2Trainer(
            folder, numbers, decoder, CharacterTokens(model.tokenizer),
            lambda example, *_: _task(decoder, examples[example["number"]]),
            feature_extractor=_heads(decoder), split_target_by=None, num_masks=masks,
        )  # fmt: skip
        _write_generations(trainer, examples)
        trainer.generate(batch_size=batch)
        trainer.compute_features_and_outputs(batch_size=batch)
        estimator = trainer.train(
            num_iterations=iterations, batch_size=min(512, len(examples)), device=str(decoder.device)
        )
        if not all(bool(weight.isfinite().all()) for weight in estimator.parameters()):
            raise InputError("AT2 learned weights that are not finite: some answer has probability 1 in float32")
        estimator.save(weights)


def _write_generations(trainer: Any, examples: Sequence[Example]) -> None:
    """Write the answers where its trainer looks for generations; otherwise it would generate them."""
    folder = Path(trainer.generations_save_path)
    folder.mkdir(parents=True, exist_ok=True)
    tokens = CharacterTokens(None)
    texts = {number: tokens.text(example.answer) for number, example in enumerate(examples)}
    (folder / "0_of_1.json").write_text(json.dumps(texts))


def _heads(decoder: Any) -> Any:
    """Return AT2's reader of attention, which AT2 itself selects by the model's type or folder name."""
    top, attention = package("at2", "at2.attribution.attention")
    kind = decoder.config.model_type
    if kind not in FAMILIES:
        raise InputError(f"AT2 does not support {kind!r} models: expected one of {', '.join(map(repr, FAMILIES))}")
    return top.AT2FeatureExtractor(*attention.get_attentions_shape(decoder), model_type=kind)


def _task(decoder: Any, example: Example) -> Any:
    tokens = CharacterTokens(None)
    task = _task_class()(decoder, tokens, example)
    task.set_generation(tokens.text(example.answer))
    return task


def _task_class() -> Any:
    _, tasks = package("at2", "at2.tasks")

    class Task(tasks.AttributionTask):  # type: ignore[misc, name-defined]  # AT2 has no types
        """Our units as AT2's sources."""

        def __init__(self, decoder: Any, tokens: CharacterTokens, example: Example) -> None:
            super().__init__(decoder, tokens)
            self.example = example

        @property
        def input_text(self) -> str:
            return CharacterTokens(None).text(self.example.ids)

        def _get_source_token_ranges(self) -> list[tuple[int, int]]:
            return ranges(self.example.units)

        @property
        def target_token_range(self) -> tuple[int, int]:
            start = len(self.example.ids)
            return start, start + len(self.example.answer)

    return Task


def ranges(units: Units) -> list[tuple[int, int]]:
    """Return units as ranges of tokens.

    >>> ranges([[0, 1], [4, 3]])
    [(0, 2), (3, 5)]
    """
    pairs = [(min(unit), max(unit) + 1) for unit in units if unit]
    if len(pairs) < len(units) or any(len(set(u)) != end - start for u, (start, end) in zip(units, pairs, strict=True)):
        raise InputError("AT2 needs sources of consecutive tokens: expected units without gaps")
    return pairs


def context_cite(ablations: int) -> UnitRival:
    """Return ContextCite: lasso on the answer's log-odds under random ablations, each keeping half of the units."""

    def rival(model: Model, ids: list[int], answer: list[int], units: Units) -> Floats:
        top, *_ = package("context-cite")
        tokens = CharacterTokens(model.tokenizer)
        with lent(model) as decoder:
            citer = top.ContextCiter(
                Answering(decoder, answer), tokens, tokens.text(ids), "", num_ablations=ablations,
                prompt_template="{context}", partitioner=_partitioner()(tokens.text(ids), units), solver=_solver()(),
            )  # fmt: skip
            return np.asarray(citer.get_attributions(verbose=False), np.float64)

    return rival


class Answering:
    """A model that writes the known answer, in its own precision even if ContextCite asks for less."""

    def __init__(self, decoder: Any, answer: Sequence[int]) -> None:
        self.decoder, self.answer, self.device = decoder, answer, decoder.device

    def generate(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.cat([ids, torch.tensor([list(self.answer)], device=ids.device)], 1)

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **labels: torch.Tensor) -> Any:
        with torch.autocast(self.device.type, enabled=False):
            return self.decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)


def _partitioner() -> Any:
    _, partitioners = package("context-cite", "context_cite.context_partitioner")

    class Partitioner(partitioners.BaseContextPartitioner):  # type: ignore[misc, name-defined]  # ContextCite has no types
        """Our units as ContextCite's sources; tokens outside units are in every context."""

        def __init__(self, context: str, units: Units) -> None:
            super().__init__(context)
            self.units = units

        @property
        def num_sources(self) -> int:
            return len(self.units)

        def split_context(self) -> None:
            """Do nothing: the units exist already."""

        def get_source(self, index: int) -> str:
            return "".join(self.context[i] for i in sorted(self.units[index]))

        def get_context(self, mask: Any = None) -> str:
            kept = [True] * len(self.units) if mask is None else mask
            return without(self.context, [unit for unit, keep in zip(self.units, kept, strict=True) if not keep])

    return Partitioner


def without(text: str, units: Units) -> str:
    """Return the text without the characters of these units; its first character stays if nothing else would.

    >>> without("abcdef", [[1, 2], [5]]), without("ab", [[0, 1]])
    ('ade', 'a')
    """
    places = {place for unit in units for place in unit}
    return "".join(character for i, character in enumerate(text) if i not in places) or text[:1]


def _solver() -> Any:
    _, solvers = package("context-cite", "context_cite.solver")

    class Solver(solvers.LassoRegression):  # type: ignore[misc, name-defined]  # ContextCite has no types
        """ContextCite's lasso on finite log-odds: if the answer is certain in float32, its formula gives infinity."""

        def fit(self, masks: Any, outputs: Any, num_output_tokens: int) -> Any:
            return super().fit(masks, np.nan_to_num(outputs, posinf=CEILING, neginf=-CEILING), num_output_tokens)

    return Solver


def integrated_gradients(blank: bool = False) -> Rival:
    """Return captum's integrated gradients of the answer's log-odds, summed over dimensions, from zero embeddings.

    blank: start from the embedding of a blank token instead. RMSNorm removes the size of a state, so close to 0 the
        model changes faster than the steps can follow, and the values no longer add up.
    """

    def rival(model: Model, ids: list[int], answer: list[int]) -> Floats:
        _, attr = package("captum", "captum.attr")
        token = blank_token(model, None) if blank else None
        with lent(model) as decoder:
            embed = decoder.get_input_embeddings()
            whole = embed(torch.tensor([ids + answer], device=decoder.device)).detach()
            prompt, rest = whole[:, : len(ids)], whole[:, len(ids) :]
            score = log_odds(_deciding(ids, answer), answer, [1.0] * len(answer))

            def odds(states: torch.Tensor) -> torch.Tensor:
                embeddings = torch.cat([states, rest.expand(len(states), -1, -1)], 1)
                logits = decoder(inputs_embeds=embeddings, use_cache=False).logits
                return torch.stack([score(row[None]) for row in logits])

            start = None if token is None else embed(torch.full((1, len(ids)), token, device=decoder.device)).detach()
            values = attr.IntegratedGradients(odds).attribute(prompt, start, n_steps=STEPS, internal_batch_size=4)
        return np.asarray(values[0].sum(-1).detach().cpu(), np.float64)

    return rival


def shapley(model: Model, ids: list[int], answer: list[int], units: Units) -> Floats:
    """Return captum's Shapley value sampling of the answer's log-odds; absent units are cut out of the text."""
    _, attr = package("captum", "captum.attr")
    tokens = CharacterTokens(model.tokenizer)
    with lent(model) as decoder:
        text, seen = tokens.text(ids), dict[str, torch.Tensor]()

        def odds(kept: torch.Tensor) -> torch.Tensor:
            left = without(text, [unit for unit, keep in zip(units, kept[0].tolist(), strict=True) if not keep])
            if left not in seen:  # few units have few sets: none is run twice
                prompt = tokens.encode(left)
                with torch.no_grad():
                    row = torch.tensor([prompt + answer], device=decoder.device)
                    logits = decoder(input_ids=row, use_cache=False).logits
                seen[left] = log_odds(_deciding(prompt, answer), answer, [1.0] * len(answer))(logits)
            return seen[left][None]

        values = attr.ShapleyValueSampling(odds).attribute(
            torch.ones(1, len(units), device=decoder.device), n_samples=SAMPLES
        )
    return np.asarray(values[0].cpu(), np.float64)


def _deciding(ids: Sequence[int], answer: Sequence[int]) -> slice:
    return slice(len(ids) - 1, len(ids) + len(answer) - 1)


def inseq(method: str, attention: str | None = None) -> Rival:
    """Return inseq, with its own aggregation over a token's dimensions or heads: the mean over the answer's tokens."""

    def rival(model: Model, ids: list[int], answer: list[int]) -> Floats:
        (top,) = package("inseq")
        tokenizer = copy.deepcopy(model.tokenizer)
        texts = [_text(tokenizer, part) for part in (ids, ids + answer)]
        with lent(model, attention) as decoder:
            explainer = top.load_model(decoder, method, tokenizer=tokenizer, device=decoder.device.type)
            result = explainer.attribute(*texts, show_progress=False, pretty_progress=False)
            values = result.sequence_attributions[0].aggregate().target_attributions
        scores: Floats = np.nan_to_num(np.asarray(values[: len(ids)].cpu(), np.float64)).mean(1)
        return scores

    return rival


def _text(tokenizer: Any, ids: list[int]) -> str:
    """Return a text that inseq tokenizes to these ids."""
    text = "" if tokenizer is None else str(tokenizer.decode(ids, skip_special_tokens=True))
    if tokenizer is None or list(tokenizer(text)["input_ids"]) != ids:
        raise InputError("inseq reads texts, and this tokenizer does not reproduce these tokens from their text")
    return text
