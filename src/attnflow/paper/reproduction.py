"""Results of ``attnflow reproduce`` as text: one section each, and all on one page. No number is typed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnflow import markdown
from attnflow.errors import InputError
from attnflow.paper import published as paper
from attnflow.paper.card import GROUPS, recipe, share
from attnflow.paper.paper_tables import AUTHORS, TEXT, VERDICTS, WORDS

ORDER = (
    "table1", "table1-authors", "table2", "table2-authors", "table3", "figure1", "figure1-authors", "figure2",
    "figure2-authors", "figure3", "figure3-authors", "figure4",
)  # fmt: skip
TITLES = {
    "table1": "Table 1: rank correlation with blank-out, verb number",
    "table2": "Table 2: rank correlation with input gradients, verb number",
    "table3": "Table 3: rank correlation with input gradients, SST-2",
    "figure1": "Figure 1: raw attention, rollout and flow as a graph",
    "figure2": "Figure 2: raw attention of [CLS] by layer",
    "figure3": "Figure 3: rollout and flow of [CLS] by layer",
    "figure4": "Figure 4: which candidate the masked pronoun looks at",
}
AGAINST = {"prediction, against its median": "relative prediction"}
SHORT = {"best": "our recipe", "authors": "the authors' recipe"}
NAMES = {TEXT: "the text's reading", WORDS: "the text's reading, words only", AUTHORS: "the released code's reading"}
MADE = (
    "<!-- Made by `attnflow reproduce report`; edit attnflow/experiments/report.py or the results instead. -->\n\n"
    "# The paper, reproduced\n\n"
)


def page(folder: Path) -> str:
    """All results of a folder on one page; pictures are linked from the folder's own name."""
    results = {}
    for name in ORDER:
        file = folder / f"{name}.json"
        if file.is_file():
            try:
                told = json.loads(file.read_text(encoding="utf-8"))
                if (told.get("table") or told["figure"]) != name.partition("-")[0]:
                    raise ValueError("it is of another table or figure")
                section(told)
                results[name] = told
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
                raise InputError(f"{str(file)!r} is damaged ({e}): run attnflow reproduce {name} again") from None
    if not results:
        raise InputError(
            f"the folder {str(folder)!r} has no results: run attnflow reproduce first, with the same --output"
        )
    spread = folder / "sst2-trainings.json"
    trainings = json.loads(spread.read_text(encoding="utf-8")) if spread.is_file() else []
    parts = [MADE + _introduction(), _findings(results), *_deviations(results, trainings)]
    for name, told in results.items():
        parts.append(section(told, f"{folder.name}/{name}"))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def section(told: dict[str, Any], pictures: str | None = None) -> str:
    """One table or figure in Markdown; pictures: their path without the ending, where the text should show them."""
    lines = list(_table(told) if "table" in told else _figure4(told) if told["figure"] == "figure4" else _maps(told))
    name = told.get("table") or told["figure"]
    title = TITLES[name] + (f" ({_recipe(told)})" if "recipe" in told else "")
    shown = [f"![{title}]({pictures}.svg)"] if pictures else []
    return "\n\n".join([f"## {title}", *shown, *filter(None, lines)]) + "\n"


def _introduction() -> str:
    return (
        f"{paper.TITLE}: its tables and figures, its numbers beside ours. Ours are means ± standard deviations over texts, "
        "as the paper's, followed by the 95 % bootstrap interval of the mean over texts. Every number on this page is read "
        "from the result files beside it.\n\n"
        "```\n"
        "attnflow train teacher --data DATA --base ENCODER --seed 0 -o MODELS/teacher0                 # and 1, 2\n"
        "attnflow train verb-number --data DATA --seed 1 -o MODELS/verb-number-best-seed1 --teacher MODELS/teacher0 …\n"
        "attnflow train verb-number --data DATA --seed 0 -o MODELS/verb-number-authors-seed0 --recipe authors\n"
        "attnflow train sst2 --data DATA --base ENCODER -o MODELS/sst2\n"
        "attnflow train masked-lm --data DATA --base ENCODER -o MODELS/masked-lm\n"
        "attnflow reproduce all --data DATA --models MODELS --seeds 0,1,2 -o docs/reproduction\n"
        "attnflow reproduce table1 table2 --recipe authors --data DATA --models MODELS --seeds 0,1,2 -o docs/reproduction\n"
        "attnflow reproduce report -o docs/reproduction\n"
        "```\n\n"
        "DATA is a folder with `agreement.tsv` (columns split, words, tags, verb, number, subject_index, attractors) or "
        "the published `agr_50_mostcommon_10K.tsv.gz`, `agreement-more.tsv`, `text.{train,valid,test}.txt`, "
        "`sst2/{train,dev,test}.tsv`, `winobias/`, `winogender/` and `linzen_subset/`, each also compressed, in folders "
        "of any name. Without `--data` the published verb-number set is downloaded. Without trained models Table 3 takes "
        "DistilBERT and Figure 4 BERT from the hub; models of Tables 1 and 2 that are missing are trained."
    )


def _findings(results: dict[str, Any]) -> str:
    """The claims, all tables at once, and why they hold where they do."""
    tables = [told for told in results.values() if "table" in told]
    if not tables:
        return ""
    asked = "\n".join(f"- **{short}**: {whole}." for short, whole in paper.CLAIMS.values())
    rows = [["", *(short for short, _ in paper.CLAIMS.values())]]
    for told in tables:
        if told.get("recipe") != "authors":
            own = (told["paper_claims"][name] for name in paper.CLAIMS)
            rows.append([f"**Table {told['table'][-1]}**, the paper's means", *own])
        for r in (TEXT, AUTHORS):
            trained = f"{_recipe(told)}, " if "recipe" in told else ""
            found = (_verdicts(told, r, name) for name in paper.CLAIMS)
            rows.append([f"Table {told['table'][-1]}, {trained}{NAMES[r]}", *found])
    text = (
        "## Which of the paper's claims hold\n\n"
        f"{asked}\n\n"
        "Of the paper there are only means, so its own rows are judged by these alone. Of ours, a claim holds if the 95 % "
        "intervals of all the differences it names are above 0, is contradicted if one is below, and is undecided "
        "otherwise. Where attention is the same for all tokens of every text, there is no correlation, and the claim "
        "cannot be asked.\n\n" + markdown.table(rows)
    )
    even = {told["recipe"]: _evenness(told) for told in reversed(tables) if "recipe" in told}
    if {"authors", "best"} <= set(even) and even["authors"] > even["best"]:
        scores = {t["recipe"]: [run["accuracy"] for run in t["runs"]] for t in tables if "recipe" in t}
        text += (
            "\n\n**What makes the difference is the training.** Trained as the authors did, with 0.6 of the attention "
            "weights dropped, the model hardly uses its upper layers: from L2 on, rows of [CLS] have "
            f"{even['authors']:.1%} of the entropy of equal weights, and some are uniform to the last digit. Raw attention "
            "ranks little there, while rollout and flow still carry what the first layer saw, and the paper's pattern "
            f"comes out. Trained with little dropout, rows have {even['best']:.1%}: upper layers attend to words, and flow "
            "falls behind rollout where it runs into its bound and tokens tie. Two cautions: our models trained as the "
            f"authors did are right on {_range(scores['authors'])} of these texts, where the paper's model has "
            f"{paper.ACCURACY['table1']:.2f} on its own data (ours by the other recipe: {_range(scores['best'])}); and our "
            "recipe was told tags and subjects in training, so its attention is not that of a model that found them itself."
        )
    return text


def _range(values: Sequence[float]) -> str:
    low, high = (f"{f(values):.3f}" for f in (min, max))
    return low if low == high else f"{low} to {high}"


def _recipe(told: dict[str, Any]) -> str:
    return SHORT.get(told["recipe"], f"recipe {told['recipe']}")


def _verdicts(told: dict[str, Any], reading: str, name: str) -> str:
    """One verdict where all seeds agree, else how many seeds have which."""
    found = [run["claims"][reading][name]["verdict"] for run in told["runs"]]
    if len(set(found)) == 1:
        return str(found[0])
    counts = (f"{verdict} for {found.count(verdict)}" for verdict in VERDICTS if verdict in found)
    return f"{', '.join(counts)} of {len(found)} seeds"


def _evenness(told: dict[str, Any]) -> float:
    rows = [float(x) for run in told["runs"] for x in run["evenness"][1:]]
    return sum(rows) / len(rows)


def _deviations(results: dict[str, Any], trainings: Sequence[dict[str, Any]]) -> Iterator[str]:
    lines = ["## Substitutes and deviations"]
    first = results.get("table1") or results.get("table2")
    if first is not None:
        lines.append(
            f"- **Verb-number data**: `{first['data']['file']}` (SHA-256 {first['data']['sha256'][:16]}…), the first "
            f"{first['samples']:,} examples of its test split. The paper has the Linzen et al. set; its loader is here too."
        )
        lines.append(
            "- **Verb-number model**: the paper's architecture (6 layers, 8 heads, width 128, GPT-2 blocks without the "
            "causal mask, [CLS] first, an end token last), as a stock GPT2ForTokenClassification whose class is read at "
            "[CLS]. The embedded one is seed 0 of our own recipe; its "
            "[model card](../src/attnflow/paper/verb-number/README.md) says what the data is and how it was trained."
        )
        for told in (results.get("table1"), results.get("table1-authors")):
            if told is not None and told["runs"][0]["training"]:
                steps = recipe(told["runs"][0]["training"]).replace("\n- ", " ").removeprefix("- ")
                lines.append(f"- **Trained by {_recipe(told)}**: {steps}")
    if "table3" in results:
        run = results["table3"]["runs"][0]
        if run["training"]:
            lines.append(
                f"- **Table 3's model**: `{run['model']}`, {run['training']['recipe']['base']}, fine-tuned on SST-2 "
                f"(accuracy {run['accuracy']:.3f}), not DistilBERT; and "
                f"{results['table3']['samples']} labelled sentences (GLUE's development set), not 101 of its "
                "unlabelled test set."
            )
    if trainings:
        found = sorted(run["test"] for run in trainings)
        lines.append(
            f"- **Its accuracy is that of a lucky seed**: {len(found)} trainings with other seeds and settings reached "
            f"{found[0]:.3f} to {found[-1]:.3f} on these sentences (`sst2-trainings.json`), and the development phrases do "
            "not tell which."
        )
    if "figure4" in results:
        told = results["figure4"]
        if told["held_out"]:
            test = told["held_out"]["test"]
            lines.append(
                f"- **Figure 4's model**: `{told['model']}`, a masked-LM head trained on an encoder of six layers, not "
                f"BERT-base; on held-out text its loss is {test['held_out_loss']:.2f} and its top-1 accuracy "
                f"{test['top1']:.3f}."
            )
    lines.append(
        "- **Where the text and the released code differ**, each table has both readings, and says what each one ranks. A "
        "third one ranks words only."
    )
    lines.append(
        "- **Flow** is exact and certified, for every layer; the released code divides each row by its sum, which changes "
        "no rank within a row."
    )
    yield lines[0] + "\n\n" + "\n".join(lines[1:])


def _table(told: dict[str, Any]) -> Iterator[str]:
    runs = told["runs"]
    depth = len(told["all"][TEXT]["raw"])
    several = f", {len(runs)} training seeds" if len(runs) > 1 else ""
    accuracy = ", ".join(f"{run['accuracy']:.3f}" for run in runs if run["accuracy"] is not None)
    seconds = max(run["seconds"] for run in runs)
    pooled = (
        " Means are over texts and seeds, intervals over resampled texts, each with all its seeds; n counts texts times "
        "seeds."
        if len(runs) > 1
        else ""
    )
    yield (
        f"{told['samples']:,} texts{several}; accuracy on them {accuracy}. Everything after training took at most "
        f"{seconds:.0f} s a model, on a CPU.{pooled}"
    )
    for reading, words in told["readings"].items():
        yield f"**{NAMES[reading][0].upper() + NAMES[reading][1:]}**: {words['how']}. Importance: {words['of']}."
        yield _grid(told, reading, depth)
        yield "\n".join(_missing(told, reading)) or "Every text has a correlation."
    yield _against(told)
    if told["table"] != "table2":  # of the same models as Table 1
        yield _ties(told, depth)
        yield from _accuracies(runs)
    if told["table"] != "table1" and told.get("recipe") != "authors":
        yield _cancelled(told)


def _grid(told: dict[str, Any], reading: str, depth: int) -> str:
    rows = [["", *(f"L{k + 1}" for k in range(depth))]]
    for view, cells in told["all"][reading].items():
        theirs = told["paper"][view] if len(told["paper"][view]) == depth and reading != WORDS else []
        if theirs:
            rows.append([f"{view}, paper", *("not given" if c is None else f"{c[0]:.2f}±{c[1]:.2f}" for c in theirs)])
        rows.append([f"{view}, ours", *(_cell(c, told["samples"] * len(told["runs"])) for c in cells)])
        if len(cells[0]["models"]) > 1:
            rows.append([f"{view}, each seed", *(" ".join(_number(m) for m in c["models"]) for c in cells)])
    return markdown.table(rows)


def _cell(cell: dict[str, Any], whole: int) -> str:
    """Where texts are missing from the mean, it says how many are in it."""
    if cell["mean"] is None:
        return "none"
    mean, few = cell["mean"], "" if cell["n"] == whole else f" n = {cell['n']:,}"
    return f"**{mean['mean']:.2f}**±{cell['sd']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]{few}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _missing(told: dict[str, Any], reading: str) -> Iterator[str]:
    """Texts that are not in the means, with the reason."""
    for run in told["runs"]:
        for why, count in run["readings"][reading]["excluded"].items():
            yield f"- {run['model']}: {count:,} texts left out, {why}."
        reasons: dict[str, dict[str, int]] = {}
        for cell in run["readings"][reading]["cells"]:
            for why, count in cell["without"].items():
                reasons.setdefault(why, {})[f"{cell['view']} L{cell['layer']}"] = count
        for why, counts in reasons.items():
            if len(set(counts.values())) == 1 and len(counts) == len(run["readings"][reading]["cells"]):
                shown = f"{next(iter(counts.values())):,} of {told['samples']:,} texts"
            else:
                shown = f"of {told['samples']:,} texts " + ", ".join(f"{n:,} at {where}" for where, n in counts.items())
            yield f"- {run['model']}: no correlation, and in no mean ({why}): {shown}."


def _against(told: dict[str, Any]) -> str:
    """The differences that contradict a claim or leave it undecided, in the text's reading."""
    lines = []
    for name, (short, _) in paper.CLAIMS.items():
        for run in told["runs"]:
            found = run["claims"][TEXT][name]
            failed = []
            for what, d in found["differences"].items():
                if d is None:
                    failed.append(f"{what} does not exist")
                elif d["low"] <= 0:
                    failed.append(f"{what} {d['mean']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}]")
            if failed:
                lines.append(f"- {short}, {run['model']}, {found['verdict']}: {'; '.join(failed)}")
    if not lines:
        return f"In {NAMES[TEXT]} all claims hold."
    return f"Differences that are not above 0, in {NAMES[TEXT]}:\n\n" + "\n".join(lines)


def _ties(told: dict[str, Any], depth: int) -> str:
    rows = [["", *(f"L{k + 1}" for k in range(depth))]]
    for run in told["runs"]:
        rows.append(
            [f"{run['model']}: raw, entropy over that of equal weights", *(f"{x:.2f}" for x in run["evenness"])]
        )
        rows.append([f"{run['model']}: flow, share of tokens that tie", *(f"{x:.2f}" for x in run["ties"]["flow"])])
        for view in ("rollout", "flow"):
            name = f"{run['model']}: {view}, rank correlation with its own last layer"
            rows.append([name, *(_number(x) for x in run["settled"][view])])
    return (
        "**Evenness and ties.** Flow is at most what leaves the source and what enters the sink. Where the first binds, "
        "tokens have the same flow, and no order among them is left; where the second does, their order is that of what "
        "the first layer takes from them, whatever the layers above do.\n\n" + markdown.table(rows)
    )


def _cancelled(told: dict[str, Any]) -> str:
    worst = max(run["cancellation"]["ratio"] for run in told["runs"])
    one = told["runs"][0]["cancellation"]
    return (
        "**What the released code's gradient measures.** In these models the sum of a token's gradient over its dimensions "
        "is 0: every path from an embedding passes a LayerNorm, and a LayerNorm takes away the mean, so adding the same "
        f"number to all dimensions changes nothing. Over {one['texts']} texts the largest |Σ_d g_d| was "
        f"{one['abs_sum']:.1e} where the largest Σ_d |g_d| was {one['l1']:.1e}; over all models the ratio is at most "
        f"{worst:.0e}, the rounding of single precision. That reading ranks rounding errors. They "
        "grow with the gradient, so the correlations can look like those of its size; the L2 norm is its size."
    )


def _accuracies(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [["model", "set", *GROUPS.values()]]
    for run in runs:
        scores = (run.get("training") or {}).get("accuracy", {})
        for part, found in scores.items():
            if "0" not in found:
                continue
            rows.append([run["model"], part, *(share(found[g]) for g in GROUPS)])
    if len(rows) > 1:
        yield "**Accuracy by number of attractors** (intervening nouns of the other number):\n\n" + markdown.table(rows)


def _maps(told: dict[str, Any]) -> Iterator[str]:
    yield f"The model is `{told['model']}`. The verb that follows is singular in all sentences."
    rows = [
        ["text", "ours says", "the paper's model", "with one word changed", "ours says", "flips: ours", "the paper's"]
    ]
    for example in told["examples"]:
        changed, theirs = example["changed"], example["paper"]
        flips = _likeliest(example) != _likeliest(changed)
        rows.append(
            [
                example["text"], _said(example), "right" if theirs["right"] else "wrong", changed["text"], _said(changed),
                "yes" if flips else "no", {None: "not told", True: "yes", False: "no"}[theirs["flips"]],
            ]
        )  # fmt: skip
    yield markdown.table(rows)


def _likeliest(example: dict[str, Any]) -> str:
    return str(max(example["prediction"], key=example["prediction"].get))


def _said(example: dict[str, Any]) -> str:
    return f"{_likeliest(example)} ({example['prediction'][_likeliest(example)]:.3f})"


def _figure4(told: dict[str, Any]) -> Iterator[str]:
    yield f"The model is `{told['model']}`."
    rows = [["text", "p", "implied", "view", "favoured at L1, L2, …"]]
    for e in told["examples"]:
        chances = ", ".join(f"{form} {p:.3f}" for form, p in zip(e["forms"], e["probabilities"], strict=True))
        implied = "neither" if e["implied"] is None else e["candidates"][e["implied"]]
        for view, weights in e["weights"].items():
            favoured = ["tie" if a == b else e["candidates"][int(b > a)] for a, b in weights]
            rows.append([e["text"], chances, implied, view, ", ".join(favoured)])
    yield markdown.table(rows)
    if "consistency" in told:
        yield from _consistency(told)


def _consistency(told: dict[str, Any]) -> Iterator[str]:
    found = told["consistency"]
    sentences = ", ".join(f"{count:,} of {source}" for source, count in found["sentences"].items())
    yield (
        "**Beyond two sentences**: how often the candidate that a view favours at a layer is the one that the model's own "
        f"pronoun prediction implies, with 95 % Wilson intervals. {sentences}; each distinct masked sentence counts once. "
        '"Relative prediction" asks whether the male form is likelier than in half of all sentences with that kind of '
        'pronoun, since a model that nearly always says "he" implies nearly always the male candidate. In Winogender only '
        "the occupation has a (stereotypical) gender; the other candidate takes what speaks against it."
    )
    for source in dict.fromkeys(row["source"] for row in found["rows"]):
        for against in dict.fromkeys(row["against"] for row in found["rows"] if row["source"] == source):
            own = [r for r in found["rows"] if r["source"] == source and r["against"] == against]
            depth = 1 + max((r["layer"] for r in own if r["layer"] is not None), default=-1)
            rows = [["", *(f"L{k + 1}" for k in range(depth))]]
            for view in dict.fromkeys(r["view"] for r in own if r["layer"] is not None):
                rows.append([view, *(_share(r) for r in own if r["view"] == view)])
            beside = "; ".join(f"{r['view']} {_share(r)}" for r in own if r["layer"] is None)
            count = max(r["count"] + r["ties"] for r in own)
            title = f"{source}, agreement with the {AGAINST.get(against, against)}"
            yield f"{title} ({count:,} sentences). Without attention: {beside}.\n\n" + markdown.table(rows)
    left = [
        f"- {name}: {count} {reason}" for name, reasons in told["left out"].items() for reason, count in reasons.items()
    ]
    left += [f"- by the model's tokens: {count} {reason}" for reason, count in found["excluded"].items()]
    if left:
        yield "Left out:\n\n" + "\n".join(left)


def _share(row: dict[str, Any]) -> str:
    return "ties" if row["share"] is None else f"{row['share']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
