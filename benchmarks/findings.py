"""What the grids of several models say together, as a page of Markdown. No verdict is typed here."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.cli.options import progress
from attnflow.errors import InputError
from attnflow.evaluate.evaluation_tables import listed
from attnflow.evaluate.statistics import SIGNIFICANT
from attnflow.files import write_whole
from benchmarks import sections
from benchmarks.command import run_command
from benchmarks.grid_files import read_summary
from benchmarks.sections import NONE, Section, table
from benchmarks.verdicts import (
    MAIN,
    WORDS,
    Entry,
    Grid,
    Pair,
    by_model,
    grids_of,
    model_of,
    of_edges,
    of_field,
    of_normalisation,
    of_propagation,
    pairs_of,
    settle,
    together,
    words_of,
)

FIELDS = {
    "class": "class", "revision": "revision", "dtype": "dtype", "data": "data", "texts": "texts given",
    "samples": "texts used", "excluded": "left out", "explained": "explained", "answers": "answers",
    "deletions": "deletions", "steps": "steps of deletion", "seed": "seed", "truncate": "long texts cut",
    "sanity": "texts of the sanity check", "without sanity": "without it", "devices": "devices", "weights": "weights",
    "attnflow": "version of attnflow",
}  # fmt: skip
"""What is told of how a grid was measured, of its provenance."""
MADE = "<!-- Made by `python -m benchmarks.findings`; edit benchmarks/findings.py or the results instead. -->"


def page(summaries: Sequence[Entry]) -> str:
    """The findings of grids, each the `summary` of an `attnflow.evaluate.Evaluation`, in Markdown."""
    if not summaries:
        raise InputError("there is no result to tell of: give the grid.json of at least one attnflow evaluate --grid")
    for a, b in combinations(summaries, 2):
        if a == b:
            raise InputError(
                f"the grid of {model_of(a)!r} was given twice, and would count as two models: give each grid once"
            )
    grids = grids_of(summaries)
    questions = [(title, why, pairs_of(grids, place)) for title, why, place in QUESTIONS]
    chapters = [sections.ahead(grids), *(_question(grids, *one) for one in questions)]
    rest = (
        sections.deletions, sections.metrics, sections.baselines, sections.sanity, sections.agreement, sections.published,
    )  # fmt: skip
    chapters += [make(grids) for make in rest]
    short = [f"- **{section.title}** {section.answer}" for section in chapters]
    unsettled = [f"- {line}" for section in chapters for line in section.unsettled]
    parts = [MADE, "# Which method to believe", _introduction(grids), "## In short", "\n".join(short), *_reading(grids)]
    for section in chapters:
        parts += [f"## {section.title}", section.answer, *section.body]
    parts += [
        "## What is not settled",
        "\n".join(unsettled) or "By these rules and on these models, nothing asked here.",
    ]
    parts += ["## How it was measured", *_measured(grids), "## Every difference", *_differences(grids, questions)]
    return "\n\n".join(parts) + "\n"


QUESTIONS = (
    (
        "Does effective attention help?",
        "Edges of effective attention against the mean of heads, propagated alike. The two are one and the same where no "
        "query sees more positions than a value has dimensions, so that short texts cannot tell.",
        of_edges("effective"),
    ),
    (
        "Do gradients help?",
        "Edges by gradients against the mean of heads, propagated alike; what is gathered, against rollout. A rank "
        "correlation with gradient-input shares its backward pass with these edges, and alone is no evidence for them.",
        of_edges("gradient", "attention-gradient"),
    ),
    (
        "Do value norms help?",
        "Edges that count what the values carry against the mean of heads, propagated alike.",
        of_edges("value-norm", "block-norm", "alti", "value-zeroing"),
    ),
    ("Rollout, flow or raw?", "Two propagations of the same edges.", of_propagation),
    (
        "Which normalisation?",
        "The same edges with rows that sum to one (rows), divided by one number for the whole graph (graph), or as they "
        "are (none).",
        of_normalisation,
    ),
    (
        "Does receptive-field normalisation help decoders?",
        "The same method with and without it. Only models that look back alone have one.",
        of_field,
    ),
)


def _question(grids: Sequence[Grid], title: str, why: str, pairs: Sequence[Pair]) -> Section:
    answers: dict[str, dict[str, list[str]]] = {}
    rows, unsettled = [["", *(grid.name for grid in grids), "together"]], []
    for pair in pairs:
        verdicts_of = by_model(grids, pair)
        if not verdicts_of:
            continue
        verdict = together(verdicts_of)
        short = "not settled" if verdict.startswith("not settled") else verdict
        answers.setdefault(pair.group, {}).setdefault(short, []).append(pair.member)
        rows.append([f"{pair.group}: {pair.member}", *(_verdict(grid, pair) for grid in grids), verdict])
        if short == "not settled":
            reasons = [f"{grid.name} {_reason(grid, pair)}" for grid in grids if grid.name in verdicts_of]
            unsettled.append(f"{pair.first} against {pair.second}: {'; '.join(reasons)}.")
    if not answers:
        return Section(title, "Cannot be asked of these grids: none has both of any two such methods.", [why])
    lines = [f"{group}: {_members(verdicts)}" for group, verdicts in answers.items()]
    missing = [grid.name for grid in grids if not any(words_of(grid, pair) for pair in pairs)]
    none = [f"Not in the grid of {listed(missing)}."] if missing else []
    return Section(title, "; ".join(lines) + ".", [why, *none, table(rows)], unsettled)


def _members(verdicts: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{verdict} ({', '.join(members)})" for verdict, members in verdicts.items())


def _reason(grid: Grid, pair: Pair) -> str:
    words = words_of(grid, pair)
    settled = settle(list(words.values()))
    heads_of = {word: [head for head, own in words.items() if own == word] for word in WORDS}
    by = ", ".join(f"{word} by {listed(heads)}" for word, heads in heads_of.items() if heads)
    return f"is not settled ({by})" if settled == "not settled" else settled


def _verdict(grid: Grid, pair: Pair) -> str:
    words = words_of(grid, pair)
    if not words:
        return NONE
    word, counts = settle(list(words.values())), Counter(words.values())
    ways = [f"{way} by {counts[way]}" for way in ("helps", "hurts") if counts[way]]
    how_many = ", ".join(ways) if word == "not settled" else str(counts[word])
    by = f" ({how_many} of {len(words)})" if ways else ""
    head = MAIN if MAIN in words else next(iter(words))
    return f"**{word}**{by}; {_difference(grid.tests[pair.about, grid.judges[head], pair.first, pair.second])}"


def _difference(test: Entry, p: bool = False) -> str:
    if test["effect"] is None:
        return "the same on every text"
    text = "{difference:+z.3f} [{low:+z.3f}, {high:+z.3f}], {effect:+z.2f}".format(**test)
    chance = test["adjusted"]
    return text + (f", p {NONE if chance is None else '< 0.001' if chance < 0.001 else f'{chance:.3f}'}" if p else "")


def _quoted(name: str) -> str:
    """As a shell takes it, and as Markdown leaves it alone."""
    return shlex.quote(re.sub(r"[^\w .@+~:/\\-]", "_", name))


def _introduction(grids: Sequence[Grid]) -> str:
    lines = []
    for grid in grids:
        provenance = grid.summary["provenance"]
        name = model_of(grid.summary)
        model = "" if str(provenance.get("revision") or "").startswith("attnflow ") else f" -m {_quoted(name)}"
        options = {
            "--samples": provenance.get("texts"), "--seed": provenance.get("seed"), "--steps": provenance.get("steps"),
            "--sanity": provenance.get("sanity"),
        }  # fmt: skip
        arguments = "".join(f" {option} {value}" for option, value in options.items() if value is not None)
        cut = " --truncate" if provenance.get("truncate") else ""
        lines.append(
            f"attnflow evaluate {_quoted(provenance.get('data') or 'DATA')}{model} --grid{arguments}{cut} "
            f"-o {grid.name.replace(' ', '-')}"
        )
    folders = " ".join(grid.name.replace(" ", "-") for grid in grids)
    return (
        "Edges, normalisations and propagations of attention, judged by what the model does without tokens and by rank "
        f"correlation with importance, on {len(grids)} {'model' if len(grids) == 1 else 'models'}. What the methods are is "
        "in [edges.md](edges.md), what the metrics are in [evaluation.md](evaluation.md). Every number and every verdict "
        "on this page is made from result files by this command, no verdict by hand:\n\n```\n"
        + "\n".join([*lines, f"python -m benchmarks.findings {folders} -o findings.md"])
        + "\n```"
    )


def _reading(grids: Sequence[Grid]) -> list[str]:
    metrics = [f"- {grid.name}: {listed(list(grid.judges.values())) or 'none'}" for grid in grids]
    return [
        "## How to read this page",
        "Two methods that differ in one thing are held against each other text by text. A cell gives the verdict, by how "
        "many metrics, and then for comprehensiveness (without it, for the first metric there is) the mean difference with "
        "its 95 % bootstrap interval, and the rank-biserial effect: +1 better on every text, -1 worse on every text.",
        f"- **A metric** says *helps* where p < {SIGNIFICANT} (Wilcoxon's signed-rank test, Holm's correction for all "
        "pairs of such a question) and mean and effect are both on the better side; *hurts* where both are on the worse; "
        "*not settled* where they point in different directions; otherwise *no difference found*.\n"
        "- **A model** says *helps* where more than half of its metrics do and none says hurts, and *hurts* the other way "
        "round; *no difference found* where all say so; otherwise *not settled*.\n"
        "- **Together** there is a verdict where all models say the same. Nothing is corrected for asking several metrics "
        "and models.",
        "The metrics, those of deletion under the first deletion of each model:",
        "\n".join(metrics),
    ]


def _measured(grids: Sequence[Grid]) -> list[str]:
    rows = [["", *(grid.name for grid in grids)], ["model", *(model_of(grid.summary) for grid in grids)]]
    rows.append(["methods", *(str(len(grid.methods)) for grid in grids)])
    for field in FIELDS:
        values = [_plain(grid.summary["provenance"].get(field)) for grid in grids]
        if set(values) != {NONE}:
            rows.append([FIELDS[field], *values])
    return [table(rows)]


def _differences(grids: Sequence[Grid], questions: Sequence[tuple[str, str, Sequence[Pair]]]) -> list[str]:
    blocks = [
        "Mean difference [95 % interval], rank-biserial effect, corrected p: the first method less the second. The effect "
        "is positive where the first is better, also by sufficiency, of which less is better."
    ]
    for title, _, pairs in questions:
        for grid in grids:
            rows = [["", *grid.judges, "verdict"]]
            for pair in pairs:
                words = words_of(grid, pair)
                tests = {
                    head: grid.tests.get((pair.about, m, pair.first, pair.second)) for head, m in grid.judges.items()
                }
                cells = [_difference(test, p=True) if head in words and test else NONE for head, test in tests.items()]
                if words:
                    rows.append([f"{pair.first} less {pair.second}", *cells, settle(list(words.values()))])
            blocks += [f"**{title}** {grid.name}", table(rows)] if len(rows) > 1 else []
    return blocks


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_plain(own)}" for name, own in value.items()) or NONE
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or NONE
    return NONE if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def main(
    results: Annotated[list[Path], typer.Argument(help="The grid.json files of evaluate --grid, or their folders.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The page to write, for example findings.md.")
    ] = None,
) -> None:
    """What the grids of several models say together: does effective attention help, do gradients, do value norms; rollout
    or flow; and what is not settled. As Markdown, every number from the files."""
    summaries = [read_summary(path) for path in results]
    try:
        text = page(summaries)
    except (KeyError, IndexError, TypeError, AttributeError) as e:  # what no run writes
        raise InputError(
            f"a result is damaged ({e!r:.60}): run attnflow evaluate --grid again with the same folder"
        ) from e
    if output is None:
        print(text)
        return
    write_whole(output, lambda beside: beside.write_text(text, encoding="utf-8"))
    progress(f"wrote {output}")


if __name__ == "__main__":
    run_command(main)
