"""One sentence at the end of a grid: which method to use on these texts, or why that is undecided.

A method is chosen on one half of the texts (even numbers) and tested on the other (odd), so that none wins by being one
of many. It must be ahead of the paper's raw attention, rollout and flow, of chance and of the position of a token, and
behind none of them by another metric. All functions are pure: values in, a sentence out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.evaluate.ranking import ranked
from attnflow.evaluate.statistics import SIGNIFICANT, Floats, Interval, effect, holm, intervals, wilcoxon

POWER = 0.8
"""The probability with which the suggested number of texts would show the difference that was seen."""

MEDIUM = 0.3
"""A medium rank-biserial correlation. Fewer texts than needed to show it cannot rule out a difference."""

MOST = 100_000
"""More texts than this are not suggested: the difference is negligible."""

POSITIONS = ("first", "last")
"""Baselines that depend only on a token's position."""

CANDIDATES = ("paper", "edges")
"""The kinds of methods that are recommended. Importances judge them; one that is further ahead is named."""

Method = Mapping[str, Any]


@dataclass(frozen=True)
class Recommendation:
    """A recommendation, or why there is none.

    sentence: what to do.
    method: the name of the method to use, or None.
    """

    sentence: str
    method: str | None = None


@dataclass(frozen=True)
class Duel:
    """The tested method against a rival by one metric; differences are positive if it is better.

    p: after Holm's correction for all of its rivals.
    """

    rival: int
    n: int
    difference: Interval | None
    effect: float | None
    p: float | None

    @property
    def won(self) -> bool:
        return self.leads and self.p is not None and self.p < SIGNIFICANT

    @property
    def lost(self) -> bool:
        return not self.leads and self.p is not None and self.p < SIGNIFICANT

    @property
    def leads(self) -> bool:
        """Whether it is better by its mean and by its ranks, significantly or not."""
        return bool(self.effect and self.effect > 0 and self.difference and self.difference.mean > 0)


@dataclass(frozen=True)
class Table:
    """The measurements of a grid, signed so that higher is better in every metric: ``better[metric][sample, method]``.

    seconds: of each method; NaN if unknown.
    cost: the same in passes of the model.
    """

    methods: Sequence[Method]
    better: Mapping[str, Floats]
    seconds: Floats
    cost: Floats
    resamples: int = 2000
    seed: int = 0

    @property
    def main(self) -> str:
        """The metric that decides: comprehensiveness under the first deletion, or the correlation with blank-out."""
        return next(iter(self.better))

    def numbers(self, *kinds: str) -> list[int]:
        return [m for m, method in enumerate(self.methods) if method["kind"] in kinds]

    def name(self, method: int) -> str:
        return str(self.methods[method]["name"])

    def rivals(self, method: int) -> list[int]:
        return [m for m in self.numbers("paper", "baseline") if m != method]

    def duels(self, method: int, rivals: Sequence[int], metric: str, half: slice) -> list[Duel]:
        own = self.better[metric][half]
        columns = own[:, [method]] - own[:, list(rivals)]  # [sample, rival]
        means = intervals(columns, self.resamples, self.seed)
        adjusted = holm([wilcoxon(column) for column in columns.T])
        return [
            Duel(rival, int(np.isfinite(column).sum()), mean, effect(column), p)
            for rival, column, mean, p in zip(rivals, columns.T, means, adjusted, strict=True)
        ]


CHOOSING, TESTING = slice(0, None, 2), slice(1, None, 2)


def table_of(
    methods: Sequence[Method], metrics: Mapping[str, str], values: Floats, seconds: Floats, cost: Floats, **draws: int
) -> Table | None:
    """Return the metrics that decide, from an evaluation's ``values[sample, method, metric]``.

    Comprehensiveness and sufficiency are those of the first deletion that was measured. None if there are no such
    metrics, no methods to choose from, or no baselines.
    """
    names = list(metrics)
    wanted = [
        next((name for name in names if name.startswith(f"{kind} (")), None)
        for kind in ("comprehensiveness", "sufficiency")
    ]
    used = [name for name in (*wanted, "blank-out") if name in names]
    kinds = {method["kind"] for method in methods}
    if not used or used[0] == wanted[1] or "baseline" not in kinds or not kinds & set(CANDIDATES):
        return None
    sign = {"higher": 1.0, "lower": -1.0}
    better = {name: sign[metrics[name]] * values[:, :, names.index(name)] for name in used}
    return Table(methods, better, seconds, cost, **draws)


def recommend(table: Table) -> Recommendation:
    """Choose on one half, test on the other, and report the result."""
    texts = len(table.better[table.main][TESTING])
    candidates = table.numbers(*CANDIDATES)
    least = least_texts(len(table.rivals(candidates[0])))
    if texts < least:
        return Recommendation(
            f"Too few texts to decide: {_texts(texts)} held out, but significance needs at least {least}; give "
            f"{2 * least} in all."
        )
    return _tested(table, chosen(table, candidates), texts)


def chosen(table: Table, candidates: Sequence[int]) -> int:
    """Return the best candidate on the half of the texts used for choosing.

    Candidates are compared by how many rivals they beat by the deciding metric, then by losing to none by another
    metric, then by how many rivals they lead. Ties go to the best mean rank over metrics, then to the fastest.
    """
    placed = np.stack([_mean_ranks(own[CHOOSING]) for own in table.better.values()])
    there = np.isfinite(placed)
    rank = np.where(there, placed, 0).sum(0) / np.where(there.any(0), there.sum(0), np.nan)
    others = [metric for metric in table.better if metric != table.main]

    def key(method: int) -> tuple[float, ...]:
        rivals = table.rivals(method)
        duels = table.duels(method, rivals, table.main, CHOOSING)
        lost = any(duel.lost for metric in others for duel in table.duels(method, rivals, metric, CHOOSING))
        counts = sum(not duel.won for duel in duels), lost, sum(not duel.leads for duel in duels)
        return *counts, *(float(np.nan_to_num(x, nan=np.inf)) for x in (rank[method], table.seconds[method]))

    return min(candidates, key=key)


def _mean_ranks(better: Floats) -> Floats:
    placed = ranked(better)
    return placed.mean(0) if len(placed) else np.full(better.shape[1], np.nan)


def _tested(table: Table, method: int, texts: int) -> Recommendation:
    duels = table.duels(method, table.rivals(method), table.main, TESTING)
    open_duels = [duel for duel in duels if not duel.won]
    baselines = table.numbers("baseline")
    enough = texts_for(MEDIUM, len(duels)) or 0
    unbeaten = [duel for duel in open_duels if duel.rival in baselines and (texts >= enough or not duel.leads)]
    if unbeaten:
        return _nothing_ahead(table, unbeaten, texts, enough)
    of_paper = table.methods[method]["kind"] == "paper"
    level = [duel for duel in open_duels if duel.rival not in baselines and not duel.leads]
    if level and not of_paper:  # if one of the paper's methods is as good, recommend it
        return _tested(table, min(level, key=lambda duel: duel.effect or 0.0).rival, texts)
    # using one of the paper's own methods does not require knowing which of them is the best
    short = [duel for duel in open_duels if duel.leads and (duel.rival in baselines or not of_paper)]
    if short:
        return _too_few(table, method, short, texts)
    losses = [
        (metric, duel)
        for metric in table.better
        if metric != table.main
        for duel in table.duels(method, table.rivals(method), metric, TESTING)
        if duel.lost
    ]
    if losses:
        return _divided(table, method, duels, losses[0])
    return _use(table, method, duels, texts)


def _use(table: Table, method: int, duels: Sequence[Duel], texts: int) -> Recommendation:
    beaten = [duel for duel in duels if duel.won]
    closest = min(beaten, key=lambda duel: _mean(duel))
    names = [_rival(table, duel.rival) for duel in duels if duel.won]
    equal = [table.name(duel.rival) for duel in duels if not duel.won]
    cost = table.cost[method]
    passes = "" if not np.isfinite(cost) else f", at {cost:.2g} forward and backward passes"
    others = f", and {_listed(equal)} {'are' if len(equal) > 1 else 'is'} not behind it" if equal else ""
    further = _further(table, method)
    better = ""
    if further is not None:
        more, better_cost = -_mean(further), table.cost[further.rival]
        at = f" at {better_cost:.2g} passes" if np.isfinite(better_cost) else ""
        better = f"; {table.name(further.rival)} is further ahead by {more:.3f}{at}"
    name = table.name(method)
    sentence = (
        f"Use {name} for this model: on {_texts(texts)} held out it is ahead of "
        f"{_listed(list(dict.fromkeys(names)))} ({_metric(table.main)} {_interval(closest)} against "
        f"{table.name(closest.rival)}, p {_p(closest)}){others}{passes}{better}."
    )
    return Recommendation(sentence, name)


def _further(table: Table, method: int) -> Duel | None:
    """The importance that is furthest ahead of a method, if any is."""
    others = [m for m in table.numbers("importance") if np.isfinite(table.better[table.main][:, m]).any()]
    lost = [duel for duel in table.duels(method, others, table.main, TESTING) if duel.lost] if others else []
    return min(lost, key=_mean) if lost else None


def _nothing_ahead(table: Table, unbeaten: Sequence[Duel], texts: int, enough: int) -> Recommendation:
    """Report that nothing is ahead. enough: how many texts show this, unless a baseline is significantly better."""
    lost = [duel for duel in unbeaten if duel.lost]
    settled = texts >= enough or bool(lost)
    names = {table.name(duel.rival) for duel in (lost if lost and texts < enough else unbeaten)}
    parts = {"chance": "random" in names, "the position of a token": bool(names & set(POSITIONS))}
    what = " or ".join(name for name, unsettled in parts.items() if unsettled)
    if settled:
        return Recommendation(f"No method is ahead of {what} on these texts: do not rank tokens by any of them.")
    return Recommendation(
        f"Too few texts to decide: on {_texts(texts)} held out no method is ahead of {what}; {enough} would show a "
        f"difference of medium size; give {2 * enough} in all."
    )


def _too_few(table: Table, method: int, short: Sequence[Duel], texts: int) -> Recommendation:
    """Report which difference is open, and how many texts would settle it."""
    weakest = min(short, key=lambda duel: duel.effect or 0.0)
    count = texts_for(weakest.effect or 0.0, len(table.rivals(method)))
    seen = f"{table.name(method)} against {table.name(weakest.rival)}, {_metric(table.main)} {_interval(weakest)}"
    if count is None or count > MOST:
        return Recommendation(
            f"Too few texts to decide: {_texts(texts)} held out, and hardly any difference is visible ({seen})."
        )
    needed = max(count, texts + 1)
    return Recommendation(
        f"Too few texts to decide: {_texts(texts)} held out, but the difference seen ({seen}) needs about "
        f"{needed:,}; give {2 * needed:,} in all."
    )


def _divided(table: Table, method: int, duels: Sequence[Duel], loss: tuple[str, Duel]) -> Recommendation:
    metric, duel = loss
    closest = min(duels, key=lambda one: _mean(one))
    return Recommendation(
        f"No method is ahead by every metric: {table.name(method)} is ahead of all others by {_metric(table.main)} "
        f"({_interval(closest)}) and behind {table.name(duel.rival)} by {_metric(metric)} ({_interval(duel)})."
    )


def least_texts(rivals: int) -> int:
    """Return how many texts make a significant lead over `rivals` methods possible.

    If all texts agree, p is 2·2⁻ⁿ, times rivals.

    >>> least_texts(6)
    8
    """
    return int(np.ceil(np.log2(2 * max(rivals, 1) / SIGNIFICANT)))


def texts_for(size: float, rivals: int) -> int | None:
    """Return how many texts Wilcoxon's test needs for an effect of this size; None if there is no effect.

    By Noether (1987) it is ``4 (z_α + z_β)² / (3 r²)``, with α the level after Holm's first step.
    size: the matched-pairs rank-biserial correlation r, which is ``2 P(d + d' > 0) - 1``.

    >>> texts_for(0.5, 6), texts_for(0.25, 6), texts_for(0.0, 6)
    (65, 259, None)
    """
    from scipy import stats

    if size <= 0:
        return None
    z = stats.norm.isf(SIGNIFICANT / (2 * max(rivals, 1))) + stats.norm.ppf(POWER)
    return int(np.ceil(4 * z**2 / (3 * size**2)))


def _mean(duel: Duel) -> float:
    return 0.0 if duel.difference is None else duel.difference.mean


def _interval(duel: Duel) -> str:
    return "0" if duel.difference is None else str(duel.difference)


def _p(duel: Duel) -> str:
    return "< 0.001" if duel.p is None or duel.p < 0.001 else f"= {duel.p:.3f}"


def _metric(name: str) -> str:
    return "the rank correlation with blank-out" if name == "blank-out" else name


def _rival(table: Table, method: int) -> str:
    name = table.name(method)
    return "position" if name in POSITIONS else "chance" if name == "random" else name


def _texts(count: int) -> str:
    return f"{count:,} {'text' if count == 1 else 'texts'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)
