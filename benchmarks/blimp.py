"""The part of docs/reproduction.md that is about other sentences than the paper's: BLiMP's, layer by layer."""

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
"""In docs, beside the folder of the results: the summaries that docs/findings.md is made of too."""
RIGHT, WRONG = "agreement", "mistakes"
ABOVE = {RIGHT: "subject above attractor", WRONG: "attractor above subject"}
OTHERS = (
    "answer rows", "answer · rollout", "answer · flow", "answer · input", "answer · columns", "answer · gather",
    "attention-gradient · columns", "attention-gradient · gather", "raw, mean of layers", "blank-out, signed", "gradient",
    "gradient × input, signed", "integrated gradients, signed", "usual position", "first", "last", "random",
)  # fmt: skip


def outside(path: Path) -> str:
    """The section, from the summary that `benchmarks.evidence` wrote; nothing where there is none."""
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
        f"BLiMP's prefixes with an attractor (`distractor_agreement_relational_noun`, never trained on), the {right.model} "
        f"model, [CLS] as the query. **Right**: {right.cases} prefixes whose verb it gets right; the subject should stand "
        f"above the attractor. **Wrong**: {wrong.cases} prefixes whose verb it gets wrong; the subject speaks for the "
        "other number, so that the attractor should stand above it. A view that finds the subject in both cases says where "
        "the model looks and not why it answers. In all of these sentences the subject comes before the attractor, nearly "
        "always as the second word, so the right ones alone do not tell a method from a position: the mean of both does. "
        "Ties count as half.\n\n"
        "```\n"
        "python -m benchmarks.encoder_tasks agreement --data BLIMP.tsv.xz -o blimp.jsonl\n"
        "python -m benchmarks.encoder_tasks mistakes --data BLIMP.tsv.xz -o blimp.jsonl\n"
        f"python -m benchmarks.evidence blimp.jsonl --default 'answer · input, signed' -o docs/{BLIMP}\n"
        "```"
    )


def _layers(right: Summary, wrong: Summary, count: int) -> str:
    """Raw attention, rollout and flow at every layer."""
    rows = [["", *(f"L{layer + 1}" for layer in range(count))]]
    for view in VIEWS:
        names = [f"{view} L{layer + 1}" for layer in range(count)]
        for summary, label in ((right, "right"), (wrong, "wrong")):
            rows.append([f"{view}, {label}", *(f"{shares(summary)[name].mean:.2f}" for name in names)])
        rows.append([f"{view}, mean of both", *(f"{balanced(right, wrong, name):.2f}" for name in names)])
    means = {name: x.mean for name, x in shares(right).items()}
    best = {view: max(range(1, count + 1), key=lambda layer: means[f"{view} L{layer}"]) for view in VIEWS}
    text = "; ".join(
        f"{view} at best {means[f'{view} L{best[view]}']:.2f} (L{best[view]}), at the last layer "
        f"{means[f'{view} L{count}']:.2f}"
        for view in VIEWS
    )
    after = shares(wrong)[f"raw L{best['raw']}"].mean
    return (
        f"{markdown.table(rows)}\n\nOf the right ones: {text}. Nothing in the text tells which layer is the best one; and "
        f"raw attention there puts the attractor above the subject in {after:.2f} of the wrong ones: it looks at the "
        "subject whatever the answer is."
    )


def _others(right: Summary, wrong: Summary) -> str:
    """The methods that need no layer to be chosen, with intervals."""
    rows = [
        [
            "method",
            "right: subject above attractor",
            "wrong: attractor above subject",
            "mean of both",
            "right: subject first",
        ]
    ]
    for name in OTHERS:
        one, other = shares(right)[name], shares(wrong)[name]
        first = right.measures["top-1"][name]
        rows.append([name, written(one), written(other), f"{balanced(right, wrong, name):.2f}", written(first)])
    return (
        "The methods that need no choice of a layer, with 95 % bootstrap intervals. *usual position* is the word that is "
        "the subject most often in the seen half; it, *first*, *last* and *random* know nothing of the model, and have "
        "about 0.5 in the mean of both, whatever they have on one side.\n\n" + markdown.table(rows)
    )


def balanced(right: Summary, wrong: Summary, name: str) -> float:
    """The mean of the two shares, in which knowing the place of the subject is worth nothing."""
    return (shares(right)[name].mean + shares(wrong)[name].mean) / 2


def shares(summary: Summary) -> Mapping[str, Interval]:
    return summary.measures[ABOVE[summary.task]]


def written(interval: Interval) -> str:
    """>>> written(Interval(0.5, 0.25, 0.75))
    '0.50 [0.25, 0.75]'
    """
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
