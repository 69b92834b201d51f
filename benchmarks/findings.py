"""Write docs/findings.md from the summaries of `benchmarks.evidence`: ``python -m benchmarks.findings docs/findings``.

The prose is in benchmarks/findings_page.md. A field ``{{WORD: a | b}}`` marks every figure and verdict; `FIELDS` says what
each word reads from the summaries. Decoders have two figures: SmolLM2/TinyLlama.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.cli.options import progress
from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.markdown import table
from benchmarks.command import run_command
from benchmarks.evidence import TEXTS, Summary, of_dict

TASKS = ("needle", "attributes", "tracking", "copy", "induction")
SHOWN = TASKS[:4]
"""Those with a column of their own; of induction only verdicts are counted."""
ROWS, BOTH, INPUTS = "answer rows", "answer rows and fading", "answer · input, signed"
TEMPLATE = Path(__file__).with_name("findings_page.md")
FIELD = re.compile(r"\{\{([^:}]+)(?:: ([^}]+))?\}\}")
ONE_PASS = (
    "FlashTrace, 0 hops", "FlashTrace, 1 hop", "FlashTrace, 1 hop, predicting positions", "IFR",
    "IFR, predicting positions", "AttnLRP", "AT2, untrained",
)  # fmt: skip
PLACES = ("position", "recency", "random")
CITED = tuple(f"ContextCite, {n} ablations" for n in (4, 8, 32, 64))
GROUPS = {
    "paper": ("raw last layer", "rollout", "flow"), "rivals": ONE_PASS, "one pass": (*ONE_PASS, "AT2, trained"),
    "cited": CITED, "places": PLACES, "last layers": ("raw L6", "rollout L6", "flow L6"),
    "ends": ("first", "last", "random"),
}  # fmt: skip
TOKENS = (
    ROWS, BOTH, "input", "FlashTrace, 1 hop, predicting positions", "AttnLRP", *GROUPS["paper"],
    "random",
)  # fmt: skip
SENTENCES = (
    BOTH, ROWS, "input", "fading", "FlashTrace, 1 hop", "IFR", "AttnLRP", "AT2, trained", "raw last layer", "rollout",
)  # fmt: skip
ENCODERS = (
    INPUTS, "answer rows, signed", "answer · rollout", "raw L4", "raw L6", "rollout L6", "flow L6",
    "integrated gradients, signed", "blank-out, signed", "first",
)  # fmt: skip
ABOVE = {"agreement": "subject above attractor", "mistakes": "attractor above subject"}
CIRCUITS = ("previous token", "induction", "two hops", "sinks")
PLANTED = ("input", ROWS, "blank-out", *GROUPS["paper"])
"""The rows of the tables; the files have every method."""
NAMES = {
    ROWS: "`answer_rows`", BOTH: "`combined`", "input": "`answer_inputs`", INPUTS: "`answer_inputs`, signed",
    "answer rows, signed": "`answer_rows`, signed", "hops": "`hops`", "fading": "`fading`",
}  # fmt: skip
MARKS = {"ahead": "", "level": "=", "behind": "↑", "not measured": ""}
"""After a figure: what the default is against it."""
NEITHER = {"level": "level with", "behind": "behind"}


@dataclass(frozen=True)
class Place:
    """One measure of one summary, where methods have values."""

    summary: Summary
    measure: str

    def value(self, method: str) -> float | None:
        interval = self.summary.measures.get(self.measure, {}).get(method)
        return None if interval is None else interval.mean

    def marked(self, method: str) -> str:
        """The figure, with the sign of what the default is against it."""
        return figure(self.value(method)) + MARKS[self.summary.verdict(self.measure, method)]


@dataclass(frozen=True)
class Evidence:
    """All summaries, by file and default. cases: what the models solved, by the model."""

    files: Mapping[str, Sequence[Summary]]
    cases: Mapping[str, Any]

    def places(self, kind: str, task: str, measure: str, method: str | None = None) -> list[Place]:
        """A measure of a task: of both decoders, or of the one file of that name; where the method was measured."""
        decoders = [name for name in self.files if name.endswith(f"-{kind}")]
        result = []
        for file in decoders or [kind]:
            those = [x for x in self.files.get(file, ()) if x.task == task and measure in x.measures]
            those = [x for x in those if method is None or x.default == method] or those
            if not those:
                raise InputError(f"the findings {file!r} have no {measure!r} of {task!r}: run benchmarks.evidence")
            result.append(Place(those[0], measure))
        return result


def read(folder: Path) -> Evidence:
    """The files of a folder: summaries, and cases.json."""
    contents: dict[str, Any] = {}
    try:
        for path in sorted(folder.glob("*.json")):
            contents[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        cases = contents.pop("cases")
        return Evidence({name: [of_dict(one) for one in content] for name, content in contents.items()}, cases)
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise InputError(f"{str(folder)!r} has no findings ({e!r}): expected files of benchmarks.evidence") from None


def figure(value: float | None) -> str:
    """Two digits, without the zero in front.

    >>> figure(0.944), figure(1.0), figure(-0.031), figure(-0.001), figure(None)
    ('.94', '1.00', '-.03', '.00', '–')
    """
    if value is None:
        return "–"
    text = re.sub(r"^(-?)0\.", r"\1.", f"{value:.2f}")
    return ".00" if text == "-.00" else text


def figures(places: Iterable[Place], method: str) -> str:
    values = [place.value(method) for place in places]
    if None in values:
        raise InputError(f"the method {method!r} was not measured there: expected one that the summaries have")
    return "/".join(map(figure, values))


def best(places: Sequence[Place], methods: Iterable[str]) -> str:
    """The method with the highest mean over the places, and its figures there."""
    name = max(methods, key=lambda one: sum(place.value(one) or 0 for place in places))
    return f"{NAMES.get(name, name)} {figures(places, name)}"


def standing(places: Iterable[Place], methods: Sequence[str]) -> str:
    """In how many comparisons the default is significantly ahead, and where it is not."""
    verdicts = [
        (place.summary.verdict(place.measure, name), NAMES.get(name, name), place.summary.model)
        for place in places
        for name in methods
        if place.value(name) is not None
    ]
    if not verdicts:
        raise InputError(f"none of the methods {', '.join(methods)} was measured there: expected at least one")
    rest = [f"{NEITHER[word]} {name} on {where}" for word, name, where in verdicts if word != "ahead"]
    count = f"{len(verdicts) - len(rest)} of {len(verdicts)} comparisons"
    return f"{count} ({'; '.join(dict.fromkeys(rest))})" if rest else count


def counts(places: Iterable[Place]) -> str:
    return "/".join(str(place.summary.cases) for place in places)


def token_table(evidence: Evidence) -> str:
    columns = [evidence.places("tokens", task, "R-precision") for task in SHOWN]
    rows = [["", *(f"{task} ({counts(own)})" for task, own in zip(SHOWN, columns, strict=True))]]
    for name in TOKENS:
        cells = [[x.marked(name) for x in own] for own in columns]
        rows.append([NAMES.get(name, name), *("–" if set(cell) == {"–"} else "/".join(cell) for cell in cells)])
    return table(rows)


def sentence_table(evidence: Evidence) -> str:
    """What reads the text alone against the default; what ablates against the default with four verified."""
    measures = ("Spearman", "top-1", "LDS")
    rows = [["", *measures, "text read"]]
    verified = [f"{BOTH}, {n} verified" for n in (4, 8)]
    for name in (*SENTENCES, *verified, *CITED[1:]):
        default = BOTH if name in SENTENCES else name if name in verified else verified[0]
        columns = [evidence.places("ablation", "ablation", measure, default) for measure in measures]
        costs = [place.summary.costs.get(name, {}) for place in columns[0]]
        if any(costs):
            cells = ["/".join(x.marked(name) for x in own) for own in columns]
            read = "/".join(f"{x[TEXTS]:.1f}" if TEXTS in x else "–" for x in costs)
            rows.append([NAMES.get(name, name.replace(BOTH, NAMES[BOTH])), *cells, read])
    return table(rows)


def balanced(evidence: Evidence, method: str) -> str:
    """The mean of right and wrong answers, in which knowing the place of the subject is worth nothing."""
    right, wrong = (evidence.places("verb-number", task, measure)[0].value(method) for task, measure in ABOVE.items())
    return figure(None if right is None or wrong is None else (right + wrong) / 2)


def encoder_table(evidence: Evidence) -> str:
    columns = [("sst2", "words", "Spearman"), ("verb-number", "agreement", ABOVE["agreement"]),
               ("verb-number", "agreement", "top-1"), ("verb-number", "mistakes", ABOVE["mistakes"])]  # fmt: skip
    places = [evidence.places(*column)[0] for column in columns]
    rows = [["", *(f"{x.summary.task}: {x.measure}" for x in places), "mean of both"]]
    for name in ENCODERS:
        rows.append([NAMES.get(name, name), *(place.marked(name) for place in places), balanced(evidence, name)])
    return table(rows)


def planted_table(evidence: Evidence) -> str:
    places = [evidence.places("planted", task, "top-1")[0] for task in CIRCUITS]
    rows = [["", *(x.summary.task for x in places)]]
    return table(rows + [[NAMES.get(name, name), *(x.marked(name) for x in places)] for name in PLANTED])


def many(evidence: Evidence, kind: str, tasks: str, measure: str, groups: str, default: str | None = None) -> str:
    places = [place for task in tasks.split(", ") for place in evidence.places(kind, task, measure, default)]
    return standing(places, [name for group in groups.split(", ") for name in GROUPS.get(group, (group,))])


FIELDS: dict[str, Callable[..., str]] = {
    "of": lambda evidence, *key: figures(evidence.places(*key), key[3]),
    "ahead": many,
    "best": lambda e, kind, task, measure, group: best(e.places(kind, task, measure), GROUPS[group]),
    "shared": lambda evidence, kind, task, measure, method: "/".join(
        str(x.summary.differences[measure][method].cases) for x in evidence.places(kind, task, measure)
    ),
    "n": lambda evidence, kind, task, measure: counts(evidence.places(kind, task, measure)),
    "both": balanced,
    "AT2": lambda evidence: "/".join(str(own["passages for AT2"]) for own in evidence.cases.values()),
    "tokens": token_table,
    "sentences": sentence_table,
    "encoders": encoder_table,
    "planted": planted_table,
}
"""What a field's word makes of the evidence and the parts behind it."""


def page(folder: Path) -> str:
    """The page, every field filled from the summaries of a folder."""
    evidence = read(folder)

    def filled(match: re.Match[str]) -> str:
        word, rest = match.groups()
        if word not in FIELDS:
            raise InputError(f"the field {match[0]} of {TEMPLATE.name} is unknown: expected one of {', '.join(FIELDS)}")
        return FIELDS[word](evidence, *(part.strip() for part in rest.split("|")) if rest else ())

    return FIELD.sub(filled, TEMPLATE.read_text(encoding="utf-8"))


def main(folder: Annotated[Path, typer.Argument(help="The folder of the summaries; the page is FOLDER.md.")]) -> None:
    """The page of what the evidence says, every figure from the files."""
    text = page(folder)
    path = folder.parent / f"{folder.name}.md"
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    progress(f"wrote {path}")


if __name__ == "__main__":
    run_command(main)
