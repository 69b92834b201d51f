"""The tables and figures of docs/reproduction.md, each next to the paper's numbers, and the full tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnflow import markdown
from attnflow.paper.paper_tables import AUTHORS, TEXT
from attnflow.paper.result_text import GROUPS, TITLES

Results = Mapping[str, dict[str, Any]]
SETS = {"test": "test", "linzen": "Linzen subset"}


def layers(depth: int) -> list[str]:
    return [f"L{k + 1}" for k in range(depth)]


def span(values: Iterable[float], digits: int = 2) -> str:
    """The lowest and the highest value, or one if both look the same.

    >>> span([0.261, 0.283]), span([0.5, 0.5])
    ('0.26–0.28', '0.50')
    """
    listed = list(values)
    low, high = (f"{f(listed):.{digits}f}" for f in (min, max))
    return low if low == high else f"{low}–{high}"


def trained(result: Mapping[str, Any]) -> str:
    return {"best": "ours", "authors": "authors' recipe"}.get(
        result.get("recipe", "best"), f"recipe {result.get('recipe')}"
    )


def own(results: Results, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The results of one table or figure: ours, then by the authors' recipe."""
    return [(key, result) for key, result in results.items() if key.partition("-")[0] == name]


def table_section(results: Results, name: str, folder: str) -> str:
    members = own(results, name)
    if not members:
        return ""
    first = members[0][1]
    depth = len(first["all"][TEXT]["raw"])
    rows = [["", *layers(depth)]]
    for view in first["all"][TEXT]:
        theirs = first["paper"][view]
        if len(theirs) == depth:
            cells = ("not given" if cell is None else f"{cell[0]:.2f}±{cell[1]:.2f}" for cell in theirs)
            rows.append([f"{view}, paper", *cells])
        for _, result in members:
            whole = result["samples"] * len(result["runs"])
            for reading, label in ((TEXT, ""), (AUTHORS, ", code")):
                cells = (_mean(cell, whole) for cell in result["all"][reading][view])
                rows.append([f"{view}, {trained(result)}{label}", *cells])
    importance = ". ".join(f"{label}: {first['readings'][key]['of']}" for key, label in LABELS.items())
    scores = [
        f"{trained(result)} {span([run['accuracy'] for run in result['runs']], 3)}"
        for _, result in members
        if all(run["accuracy"] is not None for run in result["runs"])
    ]
    facts = [f"{first['samples']:,} texts"]
    facts += [f"{len(first['runs'])} training seeds"] if len(first["runs"]) > 1 else []
    facts += [f"accuracy {', '.join(scores)}"] if scores else []
    facts += [f"95 % intervals within ±{max(_half(result) for _, result in members):.2f}"]
    files = ", ".join(f"[{key}.json]({folder}/{key}.json)" for key, _ in members)
    return "\n\n".join(
        [
            f"## {TITLES[name]}",
            f"{'; '.join(facts)}. {importance}. Data: {files}.",
            markdown.table(rows),
        ]
    )


LABELS = {TEXT: "Importance", AUTHORS: "In the code"}


def _mean(cell: Mapping[str, Any], whole: int) -> str:
    """If some texts have no correlation, the cell says how many have one."""
    if cell["mean"] is None:
        return "none"
    return f"{cell['mean']['mean']:.2f}" + ("" if cell["n"] == whole else f" (n={cell['n']:,})")


def _half(result: Mapping[str, Any]) -> float:
    """How far the ends of the widest interval are from their mean."""
    means = [cell["mean"] for r in (TEXT, AUTHORS) for own in result["all"][r].values() for cell in own if cell["mean"]]
    return float(max(max(mean["high"] - mean["mean"], mean["mean"] - mean["low"]) for mean in means))


def evenness_section(results: Results) -> str:
    """How even raw attention is, and where flow ties, over the seeds of each model."""
    tables = [results[name] for name in ("table1", "table1-authors", "table3") if name in results]
    if not tables:
        return ""
    depth = max(len(run["evenness"]) for result in tables for run in result["runs"])
    rows = [["", *layers(depth)]]
    for result in tables:
        name = trained(result) if "recipe" in result else result["runs"][0]["model"]
        for what, values in (
            ("raw, entropy relative to equal weights", [run["evenness"] for run in result["runs"]]),
            ("flow, share of tokens that tie", [run["ties"]["flow"] for run in result["runs"]]),
            ("flow, rank correlation with its last layer", [run["settled"]["flow"] for run in result["runs"]]),
        ):
            seeds = zip(*values, strict=True)
            cells = [
                span([x for x in seed if x is not None] or [float("nan")]).replace("nan", "none") for seed in seeds
            ]
            rows.append([f"{name}: {what}", *cells, *[""] * (depth - len(cells))])
    return (
        "## Evenness and ties\n\n"
        "Flow is at most what leaves the query and what enters the token. At the first bound tokens tie; at the second, "
        "the first layer alone decides their order. Ranges are from the lowest to the highest seed.\n\n"
        + markdown.table(rows)
    )


def gradient_section(results: Results) -> str:
    """Why the gradient of the released code ranks rounding errors."""
    members = [results[name] for name in ("table2", "table3") if name in results]
    if not members:
        return ""
    worst = max(run["cancellation"]["ratio"] for result in members for run in result["runs"])
    return (
        "**The released code sums a token's gradient over its dimensions.** Behind a LayerNorm that sum is 0, so this "
        f"reading of Tables 2 and 3 ranks rounding errors: |Σ g| is at most {worst:.0e} of Σ |g|. The errors grow with the "
        "gradient, so the correlations can still look plausible. The other reading takes the L2 norm."
    )


def accuracy_table(results: Results) -> str:
    """Accuracy by attractors, over seeds: what the verb-number models know."""
    rows: list[list[str]] = []
    for name in ("table1", "table1-authors"):
        runs = [run for run in results.get(name, {"runs": []})["runs"] if (run.get("training") or {}).get("accuracy")]
        for part, label in SETS.items():
            scores = [run["training"]["accuracy"].get(part) for run in runs]
            if not scores or any(score is None or "0" not in score for score in scores):
                continue
            cells = (span([score[group]["accuracy"] for score in scores], 3) for group in GROUPS)
            rows.append([f"{trained(results[name])}, {label}", *cells])
    if not rows:
        return ""
    return (
        "Accuracy by number of attractors (nouns of the other number before the verb), lowest to highest seed:\n\n"
        + markdown.table([["", *GROUPS.values()], *rows])
    )


def sentences_section(results: Results, folder: str) -> str:
    """Figures 1 to 3: the same sentences, in three pictures for each model."""
    members = [(key, results[key]) for name in ("figure1", "figure2", "figure3") for key, _ in own(results, name)]
    if not members:
        return ""
    models = dict.fromkeys(result["model"] for _, result in members)
    theirs: dict[str, dict[str, Any]] = {}
    said: dict[tuple[str, str], str] = {}
    for _, result in members:
        for example in result["examples"]:
            theirs[example["text"]] = example
            pair = (_likeliest(example), _likeliest(example["changed"]))
            said[example["text"], result["model"]] = " → ".join(pair)
    rows = [["text", "changed to", "paper's model", "it flips", *(f"`{model}`" for model in models)]]
    for text, example in theirs.items():
        flips = {None: "not said", True: "yes", False: "no"}[example["paper"]["flips"]]
        right = "right" if example["paper"]["right"] else "wrong"
        rows.append(
            [text, example["changed"]["text"], right, flips, *(said.get((text, m), "not measured") for m in models)]
        )
    pictures = "\n".join(f"![{TITLES[key.partition('-')[0]]}, {r['model']}]({folder}/{key}.svg)" for key, r in members)
    return "\n\n".join(
        [
            "## Figures 1 to 3: raw attention, rollout and flow of [CLS]",
            "What the models predict for the paper's sentences, before → after one word changes. The verb is singular in "
            f"all of them. Data: `{folder}/figure*.json`.",
            markdown.table(rows),
            pictures,
        ]
    )


def _likeliest(example: Mapping[str, Any]) -> str:
    return str(max(example["prediction"], key=example["prediction"].get))


def pronoun_section(results: Results, folder: str) -> str:
    result = results.get("figure4")
    if result is None:
        return ""
    views = list(result["examples"][0]["weights"])
    rows = [["text", "the model implies", *(f"{view} favours at L1, L2, …" for view in views)]]
    for e in result["examples"]:
        implied = "neither" if e["implied"] is None else e["candidates"][e["implied"]]
        favoured = (
            ", ".join("tie" if a == b else e["candidates"][int(b > a)] for a, b in e["weights"][view]) for view in views
        )
        chances = ", ".join(f"{form} {p:.3f}" for form, p in zip(e["forms"], e["probabilities"], strict=True))
        rows.append([e["text"], f"{implied} ({chances})", *favoured])
    return "\n\n".join(
        [
            f"## {TITLES['figure4']}",
            markdown.table(rows),
            f"![{TITLES['figure4']}]({folder}/figure4.svg)",
        ]
    )


def tables_csv(results: Results) -> str:
    """Every correlation of the tables: all readings, layers and seeds, with the paper's number if it has one."""
    start = ("table", "recipe", "reading", "view", "layer", "paper_mean", "paper_sd")
    rows: list[Sequence[Any]] = [(*start, "mean", "low", "high", "sd", "n", "seeds")]
    for result in (result for result in results.values() if "table" in result):
        for reading, views in result["all"].items():
            for view, cells in views.items():
                theirs = result["paper"][view] if len(result["paper"][view]) == len(cells) else [None] * len(cells)
                for k, (cell, their) in enumerate(zip(cells, theirs, strict=True), 1):
                    mean = cell["mean"] or {"mean": None, "low": None, "high": None}
                    seeds = " ".join("none" if x is None else f"{x:.4f}" for x in cell["models"])
                    numbers = (mean["mean"], mean["low"], mean["high"], cell["sd"])
                    where = [result["table"], result.get("recipe", ""), reading, view, k, *(their or ("", ""))]
                    rows.append([*where, *map(_digits, numbers), cell["n"], seeds])
    return _csv(rows)


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
