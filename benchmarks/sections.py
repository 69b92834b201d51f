"""The parts of the findings that are about all methods of a grid at once: who is ahead, and what the metrics are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from attnflow import markdown
from attnflow.evaluate.evaluation_tables import listed, passes
from attnflow.evaluate.statistics import spearman
from benchmarks.verdicts import MAIN, Entry, Grid, model_of, on, word_of

FEW = 5
CHEAP = 3.0  # forward and backward passes
ALIKE = 0.8
"""Two orders of the methods are called alike from this rank correlation on."""
HARDLY = 0.5
"""Scores that correlate more than this with those of a model of shuffled weights hardly depend on what it has learned."""
SAME = 0.99
"""From here on ranks are called unchanged."""
NONE = "–"
"""In a table, where there is nothing to tell."""

# BERT-base on SST-2: AOPC as in Modarressi et al. 2023 (DecompX), rank correlations as in Modarressi et al. 2022 (GlobEnc);
# beside each the method of the grid that comes nearest
PUBLISHED = (
    ("AOPC", "ALTI", 0.416, "aopc", "alti · rollout"),
    ("AOPC", "integrated gradients", 0.340, "aopc", "integrated-gradients"),
    ("AOPC", "GlobEnc", 0.307, "aopc", "block-norm · rollout"),
    ("AOPC", "DecompX", 0.627, "aopc", None),
    ("ρ with gradient × input", "attention rollout", -0.24, "gradient-input ρ", "mean · rollout"),
    ("ρ with gradient × input", "GlobEnc", 0.77, "gradient-input ρ", "block-norm · rollout"),
)


@dataclass(frozen=True)
class Section:
    """answer: one line. unsettled: a line for each thing that is not."""

    title: str
    answer: str
    body: Sequence[str] = ()
    unsettled: Sequence[str] = ()


def ahead(grids: Sequence[Grid]) -> Section:
    title = "What is ahead of the paper's three methods?"
    able = [grid for grid in grids if _judged(grid) and grid.of_kind("paper")]
    if not able:
        return Section(title, "Cannot be asked of these grids: none has comprehensiveness or blank-out.")
    won = {grid.name: {head: grid.summary["ahead"].get(m, ()) for head, m in _judged(grid).items()} for grid in able}
    rows = [["", *won, "ahead on", "cost", f"below {CHEAP:.0f}×"]]
    models, costs = {}, {}
    for name in dict.fromkeys(name for grid in able for name in grid.of_kind("edges")):
        models[name] = [model for model, by in won.items() if all(name in names for names in by.values())]
        costs[name] = [grid.methods[name]["cost"] for grid in able if name in grid.methods]
    most = max(map(len, models.values()), default=0)
    order = sorted((name for name in models if models[name]), key=lambda n: (-len(models[n]), _place(able, n)))
    for name in order:
        by = [_won(won[grid.name], name) if name in grid.methods else NONE for grid in able]
        rows.append([name, *by, f"{len(models[name])} of {len(able)}", _cost(costs[name]), _cheap(costs[name])])
    first = [name for name in order if len(models[name]) == most]
    names = [f"{name} ({_cost(costs[name])})" for name in first]
    more = [f"{len(names) - FEW} more"] if len(names) > FEW else []
    if not first:
        answer = "Nothing on any model."
    elif most < len(able):
        counts = [f"{sum(m in own for own in models.values())} on {m}" for m in won]
        answer = (
            f"No one combination on every model, but {listed(counts)}; on {most} of {len(able)}: "
            f"{listed(names[:FEW] + more)}."
        )
    else:
        answer = f"{on(models[first[0]], list(won)).capitalize()}: {listed(names[:FEW] + more)}."
    if first:
        cheap = sum(_cheap(costs[name]) == "yes" for name in first)
        answer += f" Of these {len(first)}, {cheap} cost less than {CHEAP:.0f} forward and backward passes."
    why = (
        "Ahead is significantly better than raw attention, rollout and flow of the mean of heads, each of them, both by "
        "comprehensiveness and by the rank correlation with blank-out, or by the one of the two that was measured. Cost is "
        "in forward and backward passes of the same model on the same text, the least and the most of the models."
    )
    body = [why, *([table(rows)] if order else [])]
    for grid in able:
        metric = next(iter(_judged(grid).values()))
        others = grid.best(metric, grid.of_kind("edges"))[:FEW]
        arrows = [f"{head} {'↑' if grid.better[m] == 'higher' else '↓'}" for head, m in grid.judges.items()]
        beside = [["", *arrows, "cost", "ahead"]]
        for name in (*grid.of_kind("paper"), *others, *grid.of_kind("importance", "baseline")):
            cells = [_shown(grid.cells[m, name]) for m in grid.judges.values()]
            is_ahead = _won(won[grid.name], name) if name in others else ""
            beside.append([name, *cells, passes(grid.methods[name]["cost"]), is_ahead])
        body += [f"**{grid.name}**: the paper's three, the best other edges by {metric}, importances and baselines."]
        body += [table(beside)]
    return Section(title, answer, body)


def _judged(grid: Grid) -> dict[str, str]:
    """What decides who is ahead, of that what was measured."""
    return {head: grid.judges[head] for head in (MAIN, "blank-out ρ") if head in grid.judges}


def _place(grids: Sequence[Grid], name: str) -> float:
    """The mean rank on the models that have this method."""
    cells = [grid.cells[next(iter(_judged(grid).values())), name] for grid in grids if name in grid.methods]
    return float(np.mean([cell["rank"] or np.inf for cell in cells]))


def _won(by: Mapping[str, Sequence[str]], name: str) -> str:
    heads = [head for head, names in by.items() if name in names]
    return "by both" if len(heads) == 2 else f"by {heads[0]}" if heads else "no"


def _cost(costs: Sequence[float | None]) -> str:
    known = [cost for cost in costs if cost is not None]
    ends = list(dict.fromkeys(map(passes, (min(known), max(known))))) if known else ["unknown"]
    return " to ".join(ends)


def _cheap(costs: Sequence[float | None]) -> str:
    return "unknown" if None in costs else "yes" if all(c is not None and c < CHEAP for c in costs) else "no"


def _order(grid: Grid, metrics: tuple[str, str]) -> float | None:
    """The rank correlation of the methods' means by two metrics, both turned so that more is better."""
    both = [[grid.cells[metric, name]["mean"] for metric in metrics] for name in grid.methods]
    there = [pair for pair in both if None not in pair]
    if len(there) < 3:
        return None
    a, b = np.array([[grid.up(m, mean) for m, mean in zip(metrics, pair, strict=True)] for pair in there]).T
    rho = spearman(a, b)
    return None if np.isnan(rho) else rho


def _alike(correlations: Mapping[tuple[str, str, str], float]) -> str:
    """Of correlations by model and two names: whether all are high, and the lowest."""
    models = list(dict.fromkeys(model for model, _, _ in correlations))
    high = [model for model in models if min(r for key, r in correlations.items() if key[0] == model) >= ALIKE]
    answer = f"They do {on(high, models)}" if high else f"They do not on {models[0]}"
    answer = answer if high or len(models) == 1 else "They do on no model"
    (model, a, b), least = min(correlations.items(), key=lambda one: one[1])
    return f"{answer}. The lowest rank correlation is {least:.2f} ({a} with {b}, {model})."


def deletions(grids: Sequence[Grid]) -> Section:
    title = "Do deletions by mask, UNK and removal rank methods alike?"
    correlations: dict[tuple[str, str, str], float] = {}
    rows = [["model", "deletions", "ρ of the methods' means", "best by the first", "best by the second"]]
    for grid in grids:
        metrics = [name for name in grid.better if name.startswith(f"{MAIN} (")]
        for a, b in combinations(metrics, 2):
            r = _order(grid, (a, b))
            if r is not None:
                names = [metric[len(MAIN) + 2 : -1] for metric in (a, b)]
                correlations[grid.name, names[0], names[1]] = r
                best = [grid.best(metric, grid.of_kind("paper", "edges"))[0] for metric in (a, b)]
                rows.append([grid.name, " and ".join(names), f"{r:.2f}", *best])
    if not correlations:
        return Section(title, "Cannot be asked of these grids: none has two deletions.")
    why = f"By comprehensiveness, over all methods. Two are called alike from a rank correlation of {ALIKE} on."
    return Section(title, _alike(correlations), [why, table(rows)])


def metrics(grids: Sequence[Grid]) -> Section:
    title = "Do the metrics agree with each other?"
    correlations: dict[tuple[str, str, str], float] = {}
    tables = []
    for grid in grids:
        rows = [[grid.name, *grid.judges]]
        for a, first in grid.judges.items():
            each = {b: _order(grid, (first, second)) for b, second in grid.judges.items() if b != a}
            correlations.update({(grid.name, min(a, b), max(a, b)): r for b, r in each.items() if r is not None})
            rows.append([a, *("" if b == a else number(each[b]) for b in grid.judges)])
        tables.append(table(rows))
    if not correlations:
        return Section(title, "Cannot be asked of these grids: none has two metrics.")
    why = "Rank correlation of the methods' means by two metrics, each turned so that more is better."
    unsettled = []
    for grid in grids:
        own = {(a, b): r for (model, a, b), r in correlations.items() if model == grid.name}
        low = {pair: r for pair, r in own.items() if r < ALIKE}
        if low:
            (a, b), r = min(low.items(), key=lambda one: one[1])
            pairs = f"{len(low)} of {len(own)} pairs of metrics rank the methods of {grid.name} differently"
            unsettled.append(f"{pairs}, {a} and {b} most (ρ {r:.2f}).")
    return Section(title, _alike(correlations), [why, *tables], unsettled)


def baselines(grids: Sequence[Grid]) -> Section:
    title = "What does not beat chance or the position?"
    rows, never = [["model", "against", "beat it by no metric", "by some, not all"]], []
    for grid in grids:
        for baseline in grid.of_kind("baseline"):
            beaten = {
                name: sum(_beats(grid, name, baseline, metric) for metric in grid.judges.values())
                for name in grid.of_kind("paper", "edges")
                if any(grid.cells[metric, name]["mean"] is not None for metric in grid.judges.values())
            }
            nothing = [name for name, count in beaten.items() if not count]
            some = sum(0 < count < len(grid.judges) for count in beaten.values())
            rows.append([grid.name, baseline, ", ".join(nothing) or NONE, f"{some} of {len(beaten)}"])
            few = listed(nothing) if len(nothing) <= FEW else f"{len(nothing)} of {len(beaten)} methods"
            never += [f"{few} against {baseline} ({grid.name})"] if nothing else []
    if len(rows) == 1 or not any(grid.judges for grid in grids):
        return Section(title, "Cannot be asked of these grids: none has baselines and a metric.")
    why = "First and last rank tokens by their place alone. A method beats a baseline where the paired test says so."
    answer = f"By no metric: {'; '.join(never)}." if never else "Every method beats every baseline by some metric."
    return Section(title, answer, [why, table(rows)])


def _beats(grid: Grid, name: str, baseline: str, metric: str) -> bool:
    test = grid.tests.get(("baseline", metric, name, baseline))
    return test is not None and word_of(grid, test) == "helps"


def sanity(grids: Sequence[Grid]) -> Section:
    title = "What hardly changes when the weights are shuffled?"
    shuffled = [grid for grid in grids if grid.summary["sanity"]]
    if not shuffled:
        return Section(title, "Cannot be asked of these grids: none was scored with shuffled weights.")
    names = list(dict.fromkeys(name for grid in shuffled for name in grid.of_kind("paper", "edges")))
    paper = {name for grid in shuffled for name in grid.of_kind("paper")}
    levels = list(dict.fromkeys(level for grid in shuffled for level in grid.summary["sanity"] if level != "head"))
    body = [
        "Rank correlation of a method's scores with those of the same model after its weights were shuffled, each tensor "
        f"in itself. A method fails where the whole interval lies above {HARDLY}: most of what it says is then not what "
        "the shuffled weights had learned. The paper's three and all that fail:"
    ]
    answers = []
    for level in levels:
        own = [grid for grid in shuffled if level in grid.summary["sanity"]]
        models = [grid.name for grid in own]
        rows, failing = [[f"shuffled: {level}", *models, "fails on"]], []
        for name in names:
            cells = [grid.summary["sanity"][level].get(name) or {"mean": None} for grid in own]
            there = [(model, cell) for model, cell in zip(models, cells, strict=True) if cell["mean"] is not None]
            fails = [model for model, cell in there if cell["low"] > HARDLY]
            failing += [f"{name} {on(fails, [model for model, _ in there])}"] if fails else []
            if fails or name in paper:
                rows.append([name, *map(_shown, cells), f"{len(fails)} of {len(there)}"])
        body.append(table(rows))
        few = (
            "; ".join(failing) if len(failing) <= FEW else f"{len(failing)} of {len(names)} methods, as the table says"
        )
        answers += [f"With {level} shuffled: {few}"] if failing else []
    heads = [grid.summary["sanity"]["head"] for grid in shuffled if "head" in grid.summary["sanity"]]
    means = {name: [own[name]["mean"] for own in heads if name in own] for name in names}
    blind = [name for name, of in means.items() if of and all(mean is not None and mean > SAME for mean in of)]
    if blind:
        body.append(
            f"With only the head shuffled, the ranks of {listed(blind)} stay: what the head does is not in them."
        )
    return Section(title, ". ".join(answers) + "." if answers else "No method fails.", body)


def agreement(grids: Sequence[Grid]) -> Section:
    title = "Do the methods agree with each other?"
    rows = [["", *(grid.name for grid in grids)]]
    papers = list(dict.fromkeys(name for grid in grids for name in grid.of_kind("paper")))
    agreements = {}
    for a, b in combinations(papers, 2):
        agreements[a, b] = [_agree(grid, a, b) for grid in grids]
        rows.append([f"{a} with {b}", *map(number, agreements[a, b])])
    best = {}
    for grid in grids:
        metric = next(iter(_judged(grid).values()), None)
        best[grid.name] = "" if metric is None else next(iter(grid.best(metric, grid.of_kind("edges"))), "")
    for other in ("blank-out", "gradient-input", *papers, "random"):
        values = [(best[grid.name], _agree(grid, best[grid.name], other)) for grid in grids]
        if any(r is not None for _, r in values):
            cells = [NONE if r is None else f"{name}: {r:.2f}" for name, r in values]
            rows.append([f"the best other edges with {other}", *cells])
    known = [r for values in agreements.values() for r in values if r is not None]
    answer = f"The paper's three correlate by {min(known):.2f} to {max(known):.2f}." if known else "Nothing to compare."
    why = "Mean over texts of the rank correlation of two methods' scores. The best is so by comprehensiveness."
    return Section(title, answer, [why, table(rows)] if len(rows) > 1 else [])


def _agree(grid: Grid, a: str, b: str) -> float | None:
    names = list(grid.methods)
    return grid.summary["agreement"][names.index(a)][names.index(b)] if a in names and b in names else None


def published(grids: Sequence[Grid]) -> Section:
    title = "How do published figures look beside ours?"
    ours = [g for g in grids if "sst" in f"{model_of(g.summary)} {g.summary['provenance'].get('data', '')}".casefold()]
    rows = [["", "published for", "figure", "nearest here", *(grid.name for grid in ours)]]
    for metric, method, figure, head, name in PUBLISHED:
        cells = [grid.cells.get((grid.judges.get(head, ""), name or ""), {"mean": None}) for grid in ours]
        values = [NONE if c["mean"] is None else "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**c) for c in cells]
        rows.append([metric, method, f"{figure:.3g}", name or NONE, *values])
    why = (
        "BERT-base on SST-2, from Modarressi et al. 2022 (GlobEnc: the rank correlations) and 2023 (DecompX: AOPC). "
        "Another model, another sample and other details of the metrics, so these are context and no targets."
    )
    answer = (
        f"Beside {listed([g.name for g in ours])}, as context and no targets." if ours else "No grid here is of SST-2."
    )
    return Section(title, answer, [why, table(rows)])


def table(rows: Sequence[Sequence[str]]) -> str:
    """In several tables where there are more than eight columns, each with the first."""
    return "\n\n".join(markdown.table([[row[0], *row[k : k + 7]] for row in rows]) for k in range(1, len(rows[0]), 7))


def _shown(cell: Entry) -> str:
    return NONE if cell["mean"] is None else f"{cell['mean']:.3f}"


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
