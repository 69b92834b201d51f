"""Verdicts on pairs of methods, by a rule: what each metric says, what a model says, what all models say together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.evaluate.evaluation_tables import listed
from attnflow.evaluate.ranking import ABOUTS
from attnflow.evaluate.statistics import SIGNIFICANT

MAIN = "comprehensiveness"
DELETED = (MAIN, "sufficiency", "aopc")
WORDS = ("helps", "hurts", "no difference found", "not settled")

Entry = Mapping[str, Any]
Place = Callable[[str, Entry, Entry], tuple[str, str] | None]
"""From what a test is about and its two methods to their place in the answer, or None where they are no part of it."""


@dataclass(frozen=True)
class Grid:
    """The summary of one model, and what is looked up in it often.

    judges: from what a metric is called here to its name in the summary. tests: by about, metric, first and second.
    """

    name: str
    summary: Entry
    judges: Mapping[str, str]
    better: Mapping[str, str]
    methods: Mapping[str, Entry]
    cells: Mapping[tuple[str, str], Entry]
    tests: Mapping[tuple[str, str, str, str], Entry]

    def of_kind(self, *kinds: str) -> list[str]:
        return [name for name, method in self.methods.items() if method["kind"] in kinds]

    def up(self, metric: str, value: float) -> float:
        """Turned so that more is better."""
        return value if self.better[metric] == "higher" else -value

    def best(self, metric: str, names: Iterable[str]) -> list[str]:
        there = [name for name in names if self.cells[metric, name]["mean"] is not None]
        return sorted(there, key=lambda name: -self.up(metric, self.cells[metric, name]["mean"]))


@dataclass(frozen=True)
class Pair:
    """Two methods that differ in one thing. group, member: their place in the answer."""

    about: str
    first: str
    second: str
    group: str
    member: str


def grids_of(summaries: Sequence[Entry]) -> list[Grid]:
    grids: list[Grid] = []
    for summary in summaries:
        better = {metric["name"]: metric["better"] for metric in summary["metrics"]}
        by = next((name[len(MAIN) :] for name in better if name.startswith(f"{MAIN} (")), "")
        gradient = next((name for name in ("gradient-input", "gradient") if name in better), "")
        metrics = {"blank-out ρ": "blank-out", f"{gradient} ρ": gradient, **{name: name + by for name in DELETED}}
        name = model_of(summary).rpartition("/")[2]
        same = sum(name in (grid.name, grid.name.rpartition(" (")[0]) for grid in grids)
        grid = Grid(
            name=f"{name} ({same + 1})" if same else name,
            summary=summary,
            judges={head: metric for head, metric in metrics.items() if metric in better},
            better=better,
            methods={method["name"]: method for method in summary["methods"]},
            cells={(cell["metric"], cell["method"]): cell for cell in summary["cells"]},
            tests={(test["about"], test["metric"], test["first"], test["second"]): test for test in summary["tests"]},
        )
        grids.append(grid)
    return grids


def model_of(summary: Entry) -> str:
    """The name of the model; of a folder its last part, because where it lay is nobody's business."""
    name = re.sub(r"[^\w .@+~:/\\-]", "_", str(summary["provenance"].get("model") or "unnamed model"))
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] if name.startswith(("/", ".", "~")) or "\\" in name else name


def of_edges(*names: str) -> Place:
    def place(about: str, a: Entry, b: Entry) -> tuple[str, str] | None:
        if about != "edges" or a["edges"] not in names:
            return None
        return a["name"].partition(" · ")[0], a["propagation"]

    return place


def of_propagation(about: str, a: Entry, b: Entry) -> tuple[str, str] | None:
    if about != "propagation" or a["receptive_field"] is not None:
        return None
    return f"{a['propagation']} in place of {b['propagation']}", a["name"].partition(" · ")[0]


def of_normalisation(about: str, a: Entry, b: Entry) -> tuple[str, str] | None:
    if about != "normalisation":
        return None
    return f"{a['edges']}, {a['normalize']} in place of {b['normalize']}", a["propagation"]


def of_field(about: str, a: Entry, b: Entry) -> tuple[str, str] | None:
    return (a["receptive_field"], a["propagation"]) if about == "receptive field" else None


def pairs_of(grids: Sequence[Grid], place: Place) -> list[Pair]:
    """The pairs that any grid tests, group by group.

    Tests about the paper's methods come last, so that of two tests of a pair that of its own question counts.
    """
    pairs: dict[tuple[str, str], Pair] = {}
    for about in (*ABOUTS[1:], ABOUTS[0]):
        for grid in grids:
            for own, _, first, second in grid.tests:
                at = place(about, grid.methods[first], grid.methods[second]) if own == about else None
                if at is not None:
                    pairs.setdefault((first, second), Pair(about, first, second, *at))
    groups = list(dict.fromkeys(pair.group for pair in pairs.values()))
    return sorted(pairs.values(), key=lambda pair: groups.index(pair.group))


def word_of(grid: Grid, test: Entry) -> str:
    """Of one metric: significant and better in the mean and in the ranks, the same of worse, or neither."""
    if test["adjusted"] is None or test["adjusted"] >= SIGNIFICANT:
        return "no difference found"
    mean, rank = grid.up(test["metric"], test["difference"]), test["effect"]
    return "not settled" if mean * rank <= 0 else "helps" if rank > 0 else "hurts"


def settle(words: Sequence[str]) -> str:
    """Of one model: what more than half of its metrics say and none contradicts.

    >>> settle(["helps", "helps", "no difference found"]), settle(["helps", "helps", "hurts"])
    ('helps', 'not settled')
    """
    for word, contrary in (("helps", "hurts"), ("hurts", "helps")):
        if 2 * words.count(word) > len(words) and contrary not in words:
            return word
    return "no difference found" if set(words) == {"no difference found"} else "not settled"


def words_of(grid: Grid, pair: Pair) -> dict[str, str]:
    """What each metric says, of those that have a value."""
    tests = {head: grid.tests.get((pair.about, m, pair.first, pair.second)) for head, m in grid.judges.items()}
    return {head: word_of(grid, test) for head, test in tests.items() if test and test["difference"] is not None}


def by_model(grids: Sequence[Grid], pair: Pair) -> dict[str, str]:
    """What each model says that has both methods."""
    return {grid.name: settle(list(words.values())) for grid in grids if (words := words_of(grid, pair))}


def together(verdicts: Mapping[str, str]) -> str:
    """What `by_model` comes to: a verdict of all models, or how many say what.

    >>> together({"A": "helps", "B": "helps"}), together({"A": "helps", "B": "hurts"})
    ('helps on both models', 'not settled: helps on 1 of 2, hurts on 1 of 2')
    """
    words = list(verdicts.values())
    if len(set(words)) == 1:
        return f"{words[0]} {on(list(verdicts), list(verdicts))}"
    counts = [f"{word} on {words.count(word)} of {len(words)}" for word in WORDS if word in words]
    return f"not settled: {', '.join(counts)}"


def on(names: Sequence[str], models: Sequence[str]) -> str:
    if len(names) < len(models):
        return f"on {len(names)} of {len(models)} models ({listed(names)})"
    return (
        f"on {names[0]}" if len(names) == 1 else "on both models" if len(names) == 2 else f"on all {len(names)} models"
    )
