"""The section of docs/reproduction.md about BLiMP's sentences, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from attnflow import markdown
from attnflow.errors import InputError
from attnflow.evaluate.statistics import Interval
from benchmarks.encoder_methods import VIEWS
from benchmarks.evidence import Summary, of_dict

BLIMP = Path("findings/verb-number.json")
"""In docs: the summaries, which docs/findings.md uses too."""
RIGHT, WRONG = "agreement", "mistakes"
ABOVE = {RIGHT: "subject above attractor", WRONG: "attractor above subject"}
OTHERS = (
    "answer rows", "answer · rollout", "answer · flow", "answer · input", "raw, mean of layers", "blank-out, signed",
    "gradient × input, signed", "integrated gradients, signed", "usual position", "random",
)  # fmt: skip


def outside(path: Path) -> str:
    """Return the section, from the summary that `benchmarks.evidence` wrote; empty if there is none."""
    if not path.is_file():
        return ""
    try:
        every = [of_dict(content) for content in json.loads(path.read_text(encoding="utf-8"))]
        tasks = {summary.task: summary for summary in every}
        right, wrong = tasks[RIGHT], tasks[WRONG]
        layers = sum(name.startswith("raw L") for name in right.costs)
        return "\n\n".join([_introduction(right, wrong), _layers(right, wrong, layers), _others(right, wrong)])
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"{str(path)!r} is damaged ({e!r}): run benchmarks.evidence again") from None


def _introduction(right: Summary, wrong: Summary) -> str:
    return (
        "## Outside the paper's tasks: which layer finds the subject\n\n"
        f"The {right.model} model reads BLiMP prefixes with an attractor (`distractor_agreement_relational_noun`, never "
        f"trained on). *Right*: it gets the verb of {right.cases} prefixes right, so the subject should rank above the "
        f"attractor. *Wrong*: it gets {wrong.cases} wrong, so the attractor should rank above the subject. A method that "
        "finds the subject in both shows where the model looks, not why it answers. The subject always comes first, so "
        "judge by the mean of both. Ties count as half. "
        f"[Commands](findings.md#data-and-commands); data: [{BLIMP.name}]({BLIMP})."
    )


def _layers(right: Summary, wrong: Summary, count: int) -> str:
    """Return the table of raw attention, rollout and flow at every layer."""
    rows = [["", *(f"L{layer + 1}" for layer in range(count))]]
    for view in VIEWS:
        names = [f"{view} L{layer + 1}" for layer in range(count)]
        for summary, label in ((right, "right"), (wrong, "wrong")):
            rows.append([f"{view}, {label}", *(f"{shares(summary)[name].mean:.2f}" for name in names)])
        rows.append([f"{view}, mean of both", *(f"{balanced(right, wrong, name):.2f}" for name in names)])
    means = {name: x.mean for name, x in shares(right).items()}
    best = max(range(1, count + 1), key=lambda layer: means[f"raw L{layer}"])
    return (
        f"{markdown.table(rows)}\n\nNothing in a text shows which layer is best. Raw attention at its best layer (L{best}) "
        "finds the subject whatever the answer is: it ranks the attractor above the subject in "
        f"{shares(wrong)[f'raw L{best}'].mean:.2f} of the wrong ones."
    )


def _others(right: Summary, wrong: Summary) -> str:
    """Return the table of methods that need no choice of a layer, with intervals."""
    rows = [
        [
            "method",
            "right: subject above attractor",
            "wrong: attractor above subject",
            "mean of both",
        ]
    ]
    for name in OTHERS:
        one, other = shares(right)[name], shares(wrong)[name]
        rows.append([name, written(one), written(other), f"{balanced(right, wrong, name):.2f}"])
    return (
        "Methods that need no choice of a layer, with 95 % bootstrap intervals (*usual position*: the word that is the "
        "subject most often in the seen half):\n\n" + markdown.table(rows)
    )


def balanced(right: Summary, wrong: Summary, name: str) -> float:
    """Return the mean of the two shares, for which knowing the subject's position is no help."""
    return (shares(right)[name].mean + shares(wrong)[name].mean) / 2


def shares(summary: Summary) -> Mapping[str, Interval]:
    return summary.measures[ABOVE[summary.task]]


def written(interval: Interval) -> str:
    """>>> written(Interval(0.5, 0.25, 0.75))
    '0.50 [0.25, 0.75]'
    """
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
