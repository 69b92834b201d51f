"""Where an answer of a language model came from: which tokens, sentences or documents of its prompt."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.answer_graph import AnswerGraph
from attnflow.answer_rows import Units, by_units, combined, mean_shares, passed_on, shares
from attnflow.capture.answer_pass import AnswerPass, Parts, run_answer
from attnflow.capture.fingerprint import fingerprint_of_weights
from attnflow.capture.frozen import Evidence
from attnflow.capture.generate import Progress, Written
from attnflow.capture.kv_cache import reading_cache
from attnflow.capture.prompt import AnswerLabels, Prompt, Span, find_span, plain_ids
from attnflow.capture.runner import Runner
from attnflow.errors import InputError
from attnflow.importance.leave_out import LeaveOneOut, leave_out
from attnflow.importance.verified import fit
from attnflow.reliability import evidence_notes, for_and_against, of_rows, tie_notes
from attnflow.result import TokenAttention
from attnflow.source_methods import COMBINED, FADING, INPUTS, METHOD, METHODS, default_method
from attnflow.version import __version__

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType

    from attnflow.view.answer_view import AnswerView

Floats = NDArray[np.float64]

SHARES, LOG_ODDS, FALLS, SLOPES, RELATIVE = "shares", "log-odds", "falls of log p", "slopes of log p", "relative"
"""The kinds of numbers in a result, as ``provenance["values"]`` names them."""


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """A prompt and its answer, ready to be explained.

    model: the model that answered.
    prompt: what it read.
    ids, labels: the tokens of the answer, and how they are shown.
    written: whether the model wrote the answer; False if it was given.
    writing: what generation left behind.
    weights: the fingerprint of the model's weights when this answer was made.
    progress: called with the progress of leave-one-out, and of fading for a page.
    """

    model: Runner
    prompt: Prompt
    ids: tuple[int, ...]
    labels: AnswerLabels
    written: bool
    writing: Written = field(repr=False)
    weights: tuple[int, ...] = field(repr=False)
    progress: Progress | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else self.text[:59] + "…"
        return f"Answer({shown!r}, {len(self.ids)} tokens after a prompt of {len(self.prompt.ids)})"

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.labels.text

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the answer, as they are shown."""
        return self.labels.tokens

    def _check_weights(self) -> None:
        """Refuse to compute anything more with other weights than the answer was made with."""
        if fingerprint_of_weights(self.model.model) != self.weights:
            raise InputError(
                "the model's weights were changed after this answer was made, so what is computed now would belong to "
                "neither model: call answer() again"
            )

    @cached_property
    def _pass(self) -> AnswerPass:
        self._check_weights()
        written = replace(self.writing, ids=self.ids)
        return run_answer(self.model, self.prompt.ids, written, beside=self.prompt.tensors)

    @cached_property
    def _fading_pass(self) -> AnswerPass:
        self._check_weights()
        written = replace(self._pass.written, ids=self.ids)
        return run_answer(self.model, self.prompt.ids, written, freeze=False, beside=self.prompt.tensors)

    @cached_property
    def _graph(self) -> AnswerGraph:
        return AnswerGraph(self.model, self.prompt, self.ids, self.labels, self._pass.two_stacks, self._pass.beside)

    @cached_property
    def log_probabilities(self) -> Floats:
        """The log-probability of each answer token, given the prompt and the tokens before it."""
        return self._pass.log_probabilities

    @property
    def probability(self) -> float:
        """The probability of the whole answer: the product over its tokens."""
        return float(np.exp(self.log_probabilities.sum()))

    @cached_property
    def _rows(self) -> Parts:
        """One row for each answer token, by the default method for tokens."""
        return self._rows_below if self._goes_down else self._rows_read

    @cached_property
    def _rows_read(self) -> Parts:
        """One row for each answer token: what the position that decides it reads."""
        self._check_weights()
        return self._pass.parts()

    @cached_property
    def _rows_below(self) -> Parts:
        """One row for each answer token: its parts from tokens of the text and places of an image, all the way down.

        A place gets the parts of its patches. The parts of class tokens of the vision tower count as constants.
        """
        n, below = len(self.prompt.ids), [self._below(token) for token in range(len(self.ids))]
        rows = np.stack([np.pad(one.own.cpu().numpy(), (0, 1)) for one in below])  # no position reads the last token
        odds, rest = np.array([one.y for one in below]), sum(one.constants for one in below)
        return Parts(odds, rows[:, :n], rows[:, n:], rest, max(one.gap for one in below))

    @cached_property
    def _goes_down(self) -> bool:
        """Whether answer edges can be followed to patches of an image, each of which has a place in the prompt."""
        return self.prompt.picture is not None

    def sources(
        self,
        span: Span | None = None,
        unit: str = "token",
        *,
        verify: int = 0,
        method: str | None = None,
        signed: bool = False,
        layer: int = -1,
        residual: float = 0.5,
        edges: str | None = None,
    ) -> TokenAttention:
        """Return what each token or unit of the prompt gave to the answer, as a share of what the whole prompt gave.

        By default tokens and words are ranked by "answer_rows". Sentences and larger units are ranked by "combined",
        which agrees better with leaving them out (docs/findings.md), or by "answer_rows" if the model has no fading. If
        the prompt has an image, all units are ranked by "answer_inputs", because a vision tower moves what it sees (see
        `patches`).

        "answer_rows" adds up, for each token of the span, the parts of its log-odds that come from the tokens of a
        unit, cuts them off at zero and divides them by their sum. The result is the mean over the tokens of the span
        that anything in the prompt supports. ``provenance["outside"]`` has what comes from tokens in no unit (the
        markup of a chat template). ``provenance["values"]`` says what the numbers are.

        span: a part of the answer, by its text or its token numbers; see `attnflow.capture.prompt.find_span`. The
            default is the whole answer.
        unit: "token", "word", "sentence", "paragraph", "message" or "document".
        verify: the number of top units to leave out for real; the values of the others are fitted to these. The values
            are then falls of the answer's log-probability, and ``parts`` says which are "verified" and which
            "estimated".
        method: "answer_rows" (answer edges: what the deciding positions read, as parts of the log-odds);
            "answer_inputs" (for a prompt with an image: answer edges followed all the way down, to words and patches);
            "fading" (how fast the answer's log-probability falls as attention to a unit fades); "combined" (both on one
            scale, see `attnflow.answer_rows.combined`); "raw", "rollout" or "flow" of the attention graph, with layer,
            residual and edges as in `Trace`. The values of a unit's tokens are added up. Flows to tokens share
            edges, so flow needs unit="token".
        signed: return parts of the log-odds (the default method is then "answer_rows"), including the first token; what
            counts against the answer is negative. For fading these are slopes, for "combined" the sum of both.
        """
        tokens = self._span(span)
        units = self._units(unit)
        if isinstance(verify, bool) or not isinstance(verify, int) or verify < 0:
            raise InputError(f"verify={verify!r:.60}: expected an int of at least 0, the number of units to leave out")
        if not isinstance(signed, bool):
            raise InputError(f"signed={signed!r:.60}: expected True or False")
        if method is None:
            fades = not self._goes_down and self._pass.frozen.fades
            method = INPUTS if self._goes_down else default_method(unit, signed=signed, fades=fades)
        known = (INPUTS, *METHODS) if self._goes_down else METHODS
        if not isinstance(method, str) or method not in known:
            raise InputError(f"method={method!r}: expected one of {', '.join(map(repr, known))}")
        if method in (METHOD, INPUTS):
            rows = self._rows if method == INPUTS else self._rows_read
            parts = rows.prompt
            groups = [*units.groups, units.rest(parts.shape[1])]
            if signed:
                merged = by_units(parts[tokens].sum(0, dtype=np.float64), groups)
            else:
                merged = mean_shares((parts[token] for token in tokens), groups, self._left_out)
            sums = self._evidence(tokens, rows)
            about = {**sums, "outside": float(merged[-1]), "values": LOG_ODDS if signed else SHARES}
            about |= self._reliability(tokens, not signed) if rows is self._rows else {}
            merged = merged[:-1]
        elif method in (FADING, COMBINED):
            merged, about = self._by_fading(method, tokens, units, not signed)
            if not signed and not verify:  # verify ranks the units, and negative values matter there
                merged, about["values"] = shares(merged), SHARES
            about["outside"] = float(merged[-1])
            merged = merged[:-1]
        else:
            if signed:
                raise InputError(f"signed needs method={METHOD!r}, {FADING!r} or {COMBINED!r}: attention has no sign")
            if method == "flow" and unit != "token":
                raise InputError('flows to tokens share edges and do not add up: give unit="token"')
            self._check_weights()
            values, about = self._graph.scores(method, tokens, layer, residual, edges)
            merged = by_units(values, units.groups)
        if verify:
            return self._verified(tokens, units, unit, merged, verify, about)
        return self._result(method, merged, tokens, units, unit, about)

    def matrix(self, signed: bool = False) -> TokenAttention:
        """Return one row per answer token: what the position that decides it reads from the prompt and the answer so far.

        The inputs are the tokens of both; ``parts`` says which is which. Rows are shares. With ``signed`` they are
        parts of each token's log-odds, which add up to it together with the constants in ``provenance["evidence"]``.
        """
        both = np.concatenate([self._rows.prompt, self._rows.answer], 1, dtype=np.float64)
        values = both if signed else shares(both, self._left_out)
        about = {**self._evidence(), "values": LOG_ODDS if signed else SHARES}
        notes = of_rows([self._notes([token], not signed) for token in range(len(self.ids))], self.tokens)
        about |= {"reliability": notes} if notes else {}
        return self._over_both(values, list(range(len(self.ids))), about)

    def hops(self, hops: int | str = "all", span: Span | None = None, unit: str = "token") -> TokenAttention:
        """Return what the prompt gave to the answer, directly and through earlier tokens of the answer.

        A share that a row of `matrix` gives to an earlier answer token is passed on by that token's own row. This is
        repeated ``hops`` times, or until everything has reached the prompt ("all", one triangular solve). The inputs
        are the units of the prompt, and what is left on tokens of the answer.
        """
        if hops != "all" and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 0):
            raise InputError(f'hops={hops!r}: expected an int of at least 0, or "all"')
        tokens, units = self._span(span), self._units(unit)
        rows = shares(np.concatenate([self._rows.prompt, self._rows.answer], 1, dtype=np.float64), self._left_out)
        n = len(self.prompt.ids)
        start = rows[tokens].mean(0)
        start = start / (start.sum() or 1.0)
        prompt, answer = passed_on(start, rows, n, hops)
        about = {**self._evidence(), "hops": hops, "values": SHARES, **self._reliability(tokens)}
        values = np.concatenate([by_units(prompt, units.groups), answer])
        result = self._result("hops", values, tokens, self._with_answer(units), unit, about)
        return replace(result, parts=("prompt",) * len(units.texts) + ("answer",) * len(self.ids))

    def patches(self, span: Span | None = None, *, signed: bool = False) -> Floats:
        """Return what each patch of the image gave to the answer, ``[row, column]``: shares of what the whole prompt gave.

        Answer edges are followed all the way down, through all layers of the text and of the vision tower:
        ``x0·∂y/∂x0``, where x0 enters the tower and y is the log-odds with attention, norm scales and gates held
        constant. These parts and those of the words add up to the log-odds. A tower moves what it sees: a position of
        the text need not hold what is at its place in the image.

        span: a part of the answer, as in `sources`; a written word, for example. The result is the mean over its
            tokens.
        signed: return parts of the log-odds; what counts against the answer is negative.
        """
        if not self.prompt.image:
            raise InputError("this prompt has no image: give image= to Model.answer")
        if self.prompt.wiring is None:
            raise InputError(
                "patches of the image cannot be matched to inputs of this model's vision tower: it reads the image in "
                "several crops, or has no tower that can be watched. sources() gives shares of positions instead"
            )
        some = [self._of_patches(token, signed) for token in self._span(span)]
        counted = [one for one in some if one.any()] or some  # a token without any support does not count
        total = sum(some) if signed else sum(counted) / len(counted)
        return np.asarray(total, np.float64).reshape(self.prompt.wiring.rows, self.prompt.wiring.columns)

    def _of_patches(self, token: int, signed: bool) -> Floats:
        """Return what one answer token gets from each patch."""
        wiring, below = self.prompt.wiring, self._below(token)
        assert wiring is not None and below.tower is not None
        tower, chosen = below.tower.cpu().numpy(), wiring.patch >= 0
        size = wiring.rows * wiring.columns
        patches = np.bincount(wiring.patch[chosen], tower[chosen], size).astype(np.float64)
        if signed:
            return patches
        words = below.own.cpu().numpy()[: len(self.prompt.ids)].copy()
        words[[*self._left_out, *self.prompt.image]] = 0
        supports = [np.maximum(x, 0).sum() for x in (patches, words, tower[~chosen])]
        return np.asarray(np.maximum(patches, 0) / (float(sum(supports)) or 1.0))

    @cached_property
    def _below(self) -> Callable[[int], Evidence]:
        """Split the log-odds of an answer token over the inputs of the text and of the vision tower."""
        assert self.prompt.wiring is not None
        self._check_weights()
        whole = run_answer(
            self.model, self.prompt.ids, replace(self.writing, ids=self.ids), beside=self.prompt.tensors,
            down=self.prompt.wiring.down(self.prompt.image),
        )  # fmt: skip

        @cache
        def below(token: int) -> Evidence:
            self._check_weights()
            return whole.below(token)

        return below

    def leave_out(
        self,
        unit: str = "sentence",
        span: Span | None = None,
        *,
        only: int | str | None = None,
        how: str = "remove",
        replacement: str | int | None = None,
    ) -> TokenAttention:
        """Return how much the log-probability of the answer falls without each unit: exact, one pass per unit.

        only: leave out this unit alone, by its number or by a part of its text that no other unit has.
        how: "remove" deletes the unit from the prompt, "replace" substitutes another token (replacement) for each of its
            tokens. A negative value means that the answer is likelier without the unit.
        """
        if replacement is not None and how != "replace":
            raise InputError(f"replacement={replacement!r:.60} needs how='replace', and how is {how!r:.60}")
        tokens, units = self._span(span), self._units(unit)
        if only is not None:
            units = units.only([units.number(only)])
        measured = self._left(units, how, replacement)
        falls = (measured.whole[None] - measured.without)[:, tokens].sum(1)
        about = {"how": how, "log_probability": float(measured.whole[tokens].sum()), "values": FALLS}
        result = self._result("leave_out", falls, tokens, units, unit, about)
        return replace(result, parts=("verified",) * len(falls))

    def show(
        self,
        span: Span | None = None,
        unit: str = "sentence",
        *,
        verify: int = 0,
        method: str | None = None,
        file: IO[str] | None = None,
    ) -> None:
        """Print prompt and answer with the sources shaded, and the top units, to the terminal or a file.

        unit, verify, method: for the table of units, as in `sources`. Tokens are shaded by answer rows.
        """
        self._view(method).show(span, unit, verify, file)

    def save(
        self,
        path: str | os.PathLike[str],
        unit: str = "sentence",
        verify: int = 0,
        span: Span | None = None,
        method: str | None = None,
    ) -> None:
        """Write a file, whole or not at all: .html is a page, .json has everything, .csv and .parquet have the sources.

        unit, verify, span, method: as in `sources`. A page opens at unit and span; it has each unit's default method
        for every span. method="answer_rows" computes only that, which is faster.
        """
        self._view(method).save(path, unit, verify, span)

    def to_dict(
        self, unit: str = "sentence", verify: int = 0, span: Span | None = None, method: str | None = None
    ) -> dict[str, Any]:
        """Return everything that a .json file contains; the sources are those of the span."""
        return self._view(method).to_dict(unit, verify, span)

    def to_pandas(self, span: Span | None = None, unit: str = "token", method: str | None = None) -> DataFrame:
        """Return the sources as a data frame, one row per unit. Needs pandas."""
        return self.sources(span, unit, method=method).to_pandas()

    def __rich__(self) -> RenderableType:
        return self._view().renderable()

    def _repr_html_(self) -> str:
        return self._view().notebook_html()

    def _view(self, method: str | None = None) -> AnswerView:
        from attnflow.view.answer_view import AnswerView

        return AnswerView(self, method)

    def _span(self, span: Span | None) -> list[int]:
        return list(range(len(self.ids))) if span is None else find_span(self.text, span, self.labels.offsets)

    def _units(self, unit: str) -> Units:
        units = self.prompt.units(unit)
        return Units(units.texts, units.groups, units.breaks or ("",) * len(units.texts))

    @property
    def _left_out(self) -> list[int]:
        """The first token of a decoder: it takes the attention that has nowhere else to go."""
        return [0] if not self._pass.two_stacks and self._pass.causal and len(self.prompt.ids) > 1 else []

    def _evidence(self, span: Sequence[int] | None = None, of: Parts | None = None) -> dict[str, Any]:
        """Return sums over the parts of the span's log-odds. of: rows of another method than the default one."""
        rows, tokens = of or self._rows, list(range(len(self.ids)) if span is None else span)
        odds, prompt, answer = (float(x[tokens].sum()) for x in (rows.log_odds, rows.prompt.sum(1), rows.answer.sum(1)))
        sums = {"log_odds": odds, "prompt": prompt, "answer": answer}
        # the constants of all rows are computed separately, so that the sum can be checked; those of a span are the
        # rest
        rest = odds - sums["prompt"] - sums["answer"]
        sums["constants"] = rows.rest if len(tokens) == len(self.ids) else rest
        if self._left_out:
            sums["first_token"] = float(rows.prompt[tokens, 0].sum())
        return {"evidence": {**sums, "gap": rows.gap}}

    @cached_property
    def _sizes(self) -> Floats:
        """[answer token, 3]: support for each token, what counts against it, and its support at the first token."""

        return np.array([for_and_against(row, self._left_out) for row in self._rows.prompt])

    def _notes(self, tokens: Sequence[int], shares: bool) -> dict[str, str]:
        """Return why the sources of these answer tokens should not be read as they are."""
        speaks_for, against, first = self._sizes[list(tokens)].sum(0).tolist()
        each = float(np.exp(self.log_probabilities[list(tokens)].mean()))
        return evidence_notes(speaks_for, against, first, self._rows.gap, each, "positive" if shares else "none")

    def _reliability(self, tokens: Sequence[int], shares: bool = True) -> dict[str, Any]:
        notes = list(self._notes(tokens, shares).values())
        return {"reliability": notes} if notes else {}

    def _left(self, units: Units, how: str, replacement: str | int | None) -> LeaveOneOut:
        if self.prompt.tensors:
            raise InputError(
                "parts of a prompt with an image cannot be left out: the model counts the tokens that stand for the image. "
                "sources() and patches() need no leaving out"
            )
        self._check_weights()
        n, cache = len(self.prompt.ids), self.writing.cache
        if cache is not None and n > 1 and self.writing.source is None:
            cache = reading_cache(cache, n - 1, self.writing.item, self.writing.start)
        breaks = [plain_ids(self.model, text) if text and how == "remove" else [] for text in units.breaks]
        return leave_out(
            self.model, self.prompt.ids, self.ids, units.groups, how=how, replacement=replacement, breaks=breaks,
            cache=cache, progress=self.progress,
        )  # fmt: skip

    def _verified(
        self, tokens: Sequence[int], units: Units, unit: str, estimates: Floats, count: int, about: dict[str, Any]
    ) -> TokenAttention:
        first = np.argsort(-estimates, kind="stable")[:count].tolist()
        measured = self._left(units.only(first), "remove", None)
        falls = (measured.whole[None] - measured.without)[:, list(tokens)].sum(1)
        values, verified = fit(estimates, dict(zip(first, falls.tolist(), strict=True)))
        whole = float(measured.whole[list(tokens)].sum())
        about = {k: v for k, v in about.items() if k != "reliability"}  # the notes are about estimates
        about |= {"verify": count, "log_probability": whole, "values": FALLS}
        result = self._result("verified", values, tokens, units, unit, about)
        return replace(result, parts=tuple("verified" if v else "estimated" for v in verified))

    def _by_fading(
        self, method: str, tokens: Sequence[int], units: Units, as_shares: bool
    ) -> tuple[Floats, dict[str, Any]]:
        """Return signed values of each unit and of the tokens in none, and their provenance."""

        n = len(self.prompt.ids)
        groups = [*units.groups, units.rest(n)]
        fading = self._fading_pass
        self._check_weights()
        faded = by_units(fading.fading(tokens), groups)
        if method == FADING:
            return faded, {"values": SLOPES, **self._reliability(tokens, shares=False)}
        parts = self._rows_read.prompt[tokens].sum(0, dtype=np.float64)
        parts[list(self._left_out)] = 0
        about = {**self._evidence(tokens, self._rows_read), "values": RELATIVE, **self._reliability(tokens, as_shares)}
        return combined(by_units(parts, groups), faded, len(units.groups)), about

    def _result(
        self, method: str, values: Floats, tokens: Sequence[int], units: Units, unit: str, about: Mapping[str, Any]
    ) -> TokenAttention:
        """Return a result with one row over units of the prompt."""
        alone = unit == "token" and len(units.texts) == len(self.prompt.ids)
        count = len(units.texts)
        if not about.get("reliability") and (notes := list(tie_notes(np.asarray(values, np.float64), method).values())):
            about = {**about, "reliability": notes}
        return TokenAttention(
            values=np.asarray(values, np.float64)[None, None],
            method=method,
            layers=(self._layer_count - 1,),
            queries=(tokens[0],),
            query_tokens=(self.labels.quoted(tokens),),
            tokens=units.texts,
            word_ids=self.prompt.word_ids if alone else tuple(range(count)),
            word_texts=self.prompt.word_texts if alone else units.texts,
            special=self.prompt.special if alone else (False,) * count,
            text=self.prompt.text,
            provenance=self._provenance(unit, about),
        )

    def _over_both(self, values: Floats, tokens: Sequence[int], about: Mapping[str, Any]) -> TokenAttention:
        """Return a result with one row per answer token, over tokens of the prompt and of the answer."""
        prompt, answer = self.prompt, self.labels
        shift = len(prompt.word_texts)
        return TokenAttention(
            values=np.asarray(values, np.float64)[None],
            method=INPUTS if self._goes_down else METHOD,
            layers=(self._layer_count - 1,),
            queries=tuple(tokens),
            query_tokens=tuple(self.tokens[i] for i in tokens),
            tokens=(*prompt.tokens, *answer.tokens),
            word_ids=(*prompt.word_ids, *(None if w is None else w + shift for w in answer.word_ids)),
            word_texts=(*prompt.word_texts, *answer.word_texts),
            special=(*prompt.special, *answer.special),
            text=prompt.text + answer.text,
            parts=("prompt",) * len(prompt.ids) + ("answer",) * len(self.ids),
            provenance=self._provenance("token", about),
        )

    def _with_answer(self, units: Units) -> Units:
        n = len(self.prompt.ids)
        return Units((*units.texts, *self.tokens), (*units.groups, *((n + i,) for i in range(len(self.ids)))))

    @property
    def _layer_count(self) -> int:
        return len(self._pass.frozen.states)

    def _provenance(self, unit: str, about: Mapping[str, Any]) -> dict[str, Any]:
        answer = {
            "kind": "answer", "name": self.text, "probability": self.probability,
            "log_probability": float(self.log_probabilities.sum()), "tokens": len(self.ids), "written": self.written,
        }  # fmt: skip
        return {
            **self.model.identity(),
            "answer": answer,
            **({} if unit == "token" else {"unit": unit}),
            **about,
            "attnflow": __version__,
        }
