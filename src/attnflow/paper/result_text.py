"""Results of the paper's experiments as Markdown: one section per table or figure. No number is typed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnflow import markdown
from attnflow.paper import published as paper
from attnflow.paper.paper_tables import AUTHORS, TEXT, WORDS

TITLES = {
    "table1": "Table 1: rank correlation with blank-out, verb number",
    "table2": "Table 2: rank correlation with input gradients, verb number",
    "table3": "Table 3: rank correlation with input gradients, SST-2",
    "figure1": "Figure 1: raw attention, rollout and flow as a graph",
    "figure2": "Figure 2: raw attention of [CLS] by layer",
    "figure3": "Figure 3: rollout and flow of [CLS] by layer",
    "figure4": "Figure 4: which candidate the masked pronoun looks at",
}
GROUPS = {
    "all": "all", "0": "0 attractors", "1": "1 attractor", "2": "2 attractors", "3": "3 attractors", "4+": "4+ attractors",
}  # fmt: skip
"""Numbers of attractors in a training report."""
SHORT = {"best": "our recipe", "authors": "the authors' recipe"}
NAMES = {TEXT: "the text's reading", WORDS: "the text's reading, words only", AUTHORS: "the released code's reading"}


def section(result: dict[str, Any]) -> str:
    """Return one table or figure in Markdown."""
    lines = list(
        _table(result) if "table" in result else _figure4(result) if result["figure"] == "figure4" else _maps(result)
    )
    name = result.get("table") or result["figure"]
    title = TITLES[name] + (f" ({recipe_name(result)})" if "recipe" in result else "")
    return "\n\n".join([f"## {title}", *filter(None, lines)]) + "\n"


def recipe_name(result: dict[str, Any]) -> str:
    return SHORT.get(result["recipe"], f"recipe {result['recipe']}")


def _table(result: dict[str, Any]) -> Iterator[str]:
    runs = result["runs"]
    depth = len(result["all"][TEXT]["raw"])
    several = f", {len(runs)} training seeds" if len(runs) > 1 else ""
    accuracy = ", ".join(f"{run['accuracy']:.3f}" for run in runs if run["accuracy"] is not None)
    seconds = max(run["seconds"] for run in runs)
    pooled = (
        (
            " Means are over texts and seeds; intervals are over resampled texts, each with all its seeds; n counts "
            "texts times seeds."
        )
        if len(runs) > 1
        else ""
    )
    yield (
        f"{result['samples']:,} texts{several}; accuracy on them {accuracy}. Everything after training took at most "
        f"{seconds:.0f} s per model on a CPU.{pooled}"
    )
    for reading, words in result["readings"].items():
        yield f"**{NAMES[reading][0].upper() + NAMES[reading][1:]}**: {words['how']}. Importance: {words['of']}."
        yield _grid(result, reading, depth)
        yield "\n".join(_missing(result, reading)) or "Every text has a correlation."
    yield _against(result)
    if result["table"] != "table2":  # the same models as in Table 1
        yield _ties(result, depth)
        yield from _accuracies(runs)
    if result["table"] != "table1" and result.get("recipe") != "authors":
        yield _cancelled(result)


def _grid(result: dict[str, Any], reading: str, depth: int) -> str:
    rows = [["", *(f"L{k + 1}" for k in range(depth))]]
    for view, cells in result["all"][reading].items():
        theirs = result["paper"][view] if len(result["paper"][view]) == depth and reading != WORDS else []
        if theirs:
            rows.append([f"{view}, paper", *("not given" if c is None else f"{c[0]:.2f}±{c[1]:.2f}" for c in theirs)])
        rows.append([f"{view}, ours", *(_cell(c, result["samples"] * len(result["runs"])) for c in cells)])
        if len(cells[0]["models"]) > 1:
            rows.append([f"{view}, each seed", *(" ".join(_number(m) for m in c["models"]) for c in cells)])
    return markdown.table(rows)


def _cell(cell: dict[str, Any], whole: int) -> str:
    """Return a cell; if texts are missing from the mean, it says how many are in it."""
    if cell["mean"] is None:
        return "none"
    mean, few = cell["mean"], "" if cell["n"] == whole else f" n = {cell['n']:,}"
    return f"**{mean['mean']:.2f}**±{cell['sd']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]{few}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _missing(result: dict[str, Any], reading: str) -> Iterator[str]:
    """Yield the texts that are not in the means, with the reason."""
    for run in result["runs"]:
        for why, count in run["readings"][reading]["excluded"].items():
            yield f"- {run['model']}: {count:,} texts left out, {why}."
        reasons: dict[str, dict[str, int]] = {}
        for cell in run["readings"][reading]["cells"]:
            for why, count in cell["without"].items():
                reasons.setdefault(why, {})[f"{cell['view']} L{cell['layer']}"] = count
        for why, counts in reasons.items():
            if len(set(counts.values())) == 1 and len(counts) == len(run["readings"][reading]["cells"]):
                shown = f"{next(iter(counts.values())):,} of {result['samples']:,} texts"
            else:
                shown = f"of {result['samples']:,} texts " + ", ".join(
                    f"{n:,} at {where}" for where, n in counts.items()
                )
            yield f"- {run['model']}: no correlation, so in no mean ({why}): {shown}."


def _against(result: dict[str, Any]) -> str:
    """Return the differences that contradict a claim or leave it undecided, in the text's reading."""
    lines = []
    for name, (short, _) in paper.CLAIMS.items():
        for run in result["runs"]:
            claim = run["claims"][TEXT][name]
            failed = []
            for what, d in claim["differences"].items():
                if d is None:
                    failed.append(f"{what} does not exist")
                elif d["low"] <= 0:
                    failed.append(f"{what} {d['mean']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]")
            if failed:
                lines.append(f"- {short}, {run['model']}, {claim['verdict']}: {'; '.join(failed)}")
    if not lines:
        return f"In {NAMES[TEXT]} all claims hold."
    return f"Differences that are not above 0, in {NAMES[TEXT]}:\n\n" + "\n".join(lines)


def _ties(result: dict[str, Any], depth: int) -> str:
    rows = [["", *(f"L{k + 1}" for k in range(depth))]]
    for run in result["runs"]:
        rows.append([f"{run['model']}: raw, entropy relative to equal weights", *(f"{x:.2f}" for x in run["evenness"])])
        rows.append([f"{run['model']}: flow, share of tied tokens", *(f"{x:.2f}" for x in run["ties"]["flow"])])
        for view in ("rollout", "flow"):
            name = f"{run['model']}: {view}, rank correlation with its own last layer"
            rows.append([name, *(_number(x) for x in run["settled"][view])])
    return (
        "**Evenness and ties.** Flow is at most what leaves the source and what enters the sink. If the first bound "
        "is reached, tokens have the same flow and no order among them is left. If the second is, their order is "
        "that of what the first layer takes from them, whatever the layers above do.\n\n"
    ) + markdown.table(rows)


def _cancelled(result: dict[str, Any]) -> str:
    worst = max(run["cancellation"]["ratio"] for run in result["runs"])
    one = result["runs"][0]["cancellation"]
    return (
        "**What the released code's gradient measures.** In these models the sum of a token's gradient over its "
        "dimensions is 0: every path from an embedding passes through a LayerNorm, which subtracts the mean, so "
        f"adding the same number to all dimensions changes nothing. Over {one['texts']} texts the largest |Σ_d g_d| "
        f"was {one['abs_sum']:.1e}, while the largest Σ_d |g_d| was {one['l1']:.1e}; over all models the ratio is at "
        f"most {worst:.0e}, the rounding error of single precision. That reading ranks rounding errors. They grow "
        "with the gradient, so the correlations can resemble those of its size, which the L2 norm measures."
    )


def _accuracies(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [["model", "set", *GROUPS.values()]]
    for run in runs:
        scores = (run.get("training") or {}).get("accuracy", {})
        for part, shares in scores.items():
            if "0" not in shares:
                continue
            rows.append([run["model"], part, *(share(shares[g]) for g in GROUPS)])
    if len(rows) > 1:
        yield "**Accuracy by number of attractors** (intervening nouns of the other number):\n\n" + markdown.table(rows)


def _maps(result: dict[str, Any]) -> Iterator[str]:
    yield f"The model is `{result['model']}`. The verb that follows is singular in all sentences."
    rows = [
        ["text", "ours says", "the paper's model", "with one word changed", "ours says", "flips: ours", "the paper's"]
    ]
    for example in result["examples"]:
        changed, theirs = example["changed"], example["paper"]
        flips = _likeliest(example) != _likeliest(changed)
        rows.append(
            [
                example["text"], _said(example), "right" if theirs["right"] else "wrong", changed["text"], _said(changed),
                "yes" if flips else "no", {None: "not stated", True: "yes", False: "no"}[theirs["flips"]],
            ]
        )  # fmt: skip
    yield markdown.table(rows)


def _likeliest(example: dict[str, Any]) -> str:
    return str(max(example["prediction"], key=example["prediction"].get))


def _said(example: dict[str, Any]) -> str:
    return f"{_likeliest(example)} ({example['prediction'][_likeliest(example)]:.3f})"


def _figure4(result: dict[str, Any]) -> Iterator[str]:
    yield f"The model is `{result['model']}`."
    rows = [["text", "p", "implied", "view", "favoured at L1, L2, …"]]
    for e in result["examples"]:
        chances = ", ".join(f"{form} {p:.3f}" for form, p in zip(e["forms"], e["probabilities"], strict=True))
        implied = "neither" if e["implied"] is None else e["candidates"][e["implied"]]
        for view, weights in e["weights"].items():
            favoured = ["tie" if a == b else e["candidates"][int(b > a)] for a, b in weights]
            rows.append([e["text"], chances, implied, view, ", ".join(favoured)])
    yield markdown.table(rows)


def share(score: dict[str, Any]) -> str:
    """Return an accuracy and the number of examples."""
    return "none" if score["accuracy"] is None else f"{score['accuracy']:.3f} (of {score['count']:,})"
