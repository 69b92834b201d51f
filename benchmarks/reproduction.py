"""docs/reproduction.md, from the results of `attnflow reproduce`: ``python -m benchmarks.reproduction docs/reproduction``.

No number is typed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow import markdown
from attnflow.cli.options import progress
from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.paper import published as paper
from attnflow.paper.card import recipe
from attnflow.paper.paper_tables import AUTHORS, TEXT, VERDICTS
from attnflow.paper.result_text import NAMES, recipe_name, section
from benchmarks.blimp import BLIMP, outside
from benchmarks.command import run_command

ORDER = (
    "table1", "table1-authors", "table2", "table2-authors", "table3", "figure1", "figure1-authors", "figure2",
    "figure2-authors", "figure3", "figure3-authors", "figure4",
)  # fmt: skip
MADE = (
    "<!-- Made by `python -m benchmarks.reproduction`; edit benchmarks/reproduction.py or the results instead. -->\n\n"
    "# The paper, reproduced\n\n"
)


def page(folder: Path) -> str:
    """All results of a folder on one page; pictures are linked from the folder's own name."""
    results = {}
    for name in ORDER:
        file = folder / f"{name}.json"
        if file.is_file():
            try:
                result = json.loads(file.read_text(encoding="utf-8"))
                if (result.get("table") or result["figure"]) != name.partition("-")[0]:
                    raise ValueError("it is of another table or figure")
                section(result)
                results[name] = result
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
                raise InputError(f"{str(file)!r} is damaged ({e}): run attnflow reproduce {name} again") from None
    if not results:
        raise InputError(
            f"the folder {str(folder)!r} has no results: run attnflow reproduce first, with the same --output"
        )
    spread = folder / "sst2-trainings.json"
    trainings = json.loads(spread.read_text(encoding="utf-8")) if spread.is_file() else []
    parts = [
        MADE + _introduction(),
        _findings(results),
        outside(folder.parent / BLIMP),
        *_deviations(results, trainings),
    ]
    for name, result in results.items():
        parts.append(section(result, f"{folder.name}/{name}"))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


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
        "python -m benchmarks.reproduction docs/reproduction\n"
        "```\n\n"
        "DATA is a folder with `agreement.tsv` (columns split, words, tags, verb, number, subject_index, attractors) or "
        "the published `agr_50_mostcommon_10K.tsv.gz`, `agreement-more.tsv`, `text.{train,valid,test}.txt`, "
        "`sst2/{train,dev,test}.tsv`, `winobias/`, `winogender/` and `linzen_subset/`, each also compressed, in folders "
        "of any name. Without `--data` the published verb-number set is downloaded. Without trained models Table 3 takes "
        "DistilBERT and Figure 4 BERT from the hub; models of Tables 1 and 2 that are missing are trained."
    )


def _findings(results: dict[str, Any]) -> str:
    """The claims, all tables at once, and why they hold where they do."""
    tables = [result for result in results.values() if "table" in result]
    if not tables:
        return ""
    claims = "\n".join(f"- **{short}**: {whole}." for short, whole in paper.CLAIMS.values())
    rows = [["", *(short for short, _ in paper.CLAIMS.values())]]
    for result in tables:
        if result.get("recipe") != "authors":
            own = (result["paper_claims"][name] for name in paper.CLAIMS)
            rows.append([f"**Table {result['table'][-1]}**, the paper's means", *own])
        for r in (TEXT, AUTHORS):
            trained = f"{recipe_name(result)}, " if "recipe" in result else ""
            verdicts = (_verdicts(result, r, name) for name in paper.CLAIMS)
            rows.append([f"Table {result['table'][-1]}, {trained}{NAMES[r]}", *verdicts])
    text = (
        "## Which of the paper's claims hold\n\n"
        f"{claims}\n\n"
        "Of the paper there are only means, so its own rows are judged by these alone. Of ours, a claim holds if the 95 % "
        "intervals of all the differences it names are above 0, is contradicted if one is below, and is undecided "
        "otherwise. Where attention is the same for all tokens of every text, there is no correlation, and the claim "
        "cannot be asked.\n\n" + markdown.table(rows)
    )
    even = {result["recipe"]: _evenness(result) for result in reversed(tables) if "recipe" in result}
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


def _verdicts(result: dict[str, Any], reading: str, name: str) -> str:
    """One verdict where all seeds agree, else how many seeds have which."""
    verdicts = [run["claims"][reading][name]["verdict"] for run in result["runs"]]
    if len(set(verdicts)) == 1:
        return str(verdicts[0])
    counts = (f"{verdict} for {verdicts.count(verdict)}" for verdict in VERDICTS if verdict in verdicts)
    return f"{', '.join(counts)} of {len(verdicts)} seeds"


def _evenness(result: dict[str, Any]) -> float:
    rows = [float(x) for run in result["runs"] for x in run["evenness"][1:]]
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
        for result in (results.get("table1"), results.get("table1-authors")):
            if result is not None and result["runs"][0]["training"]:
                steps = recipe(result["runs"][0]["training"]).replace("\n- ", " ").removeprefix("- ")
                lines.append(f"- **Trained by {recipe_name(result)}**: {steps}")
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
        accuracies = sorted(run["test"] for run in trainings)
        lines.append(
            f"- **Its accuracy is that of a lucky seed**: {len(accuracies)} trainings with other seeds and settings "
            f"reached {accuracies[0]:.3f} to {accuracies[-1]:.3f} on these sentences (`sst2-trainings.json`), and the "
            "development phrases do not tell which."
        )
    if "figure4" in results:
        result = results["figure4"]
        if result["held_out"]:
            test = result["held_out"]["test"]
            lines.append(
                f"- **Figure 4's model**: `{result['model']}`, a masked-LM head trained on an encoder of six layers, not "
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


def main(folder: Annotated[Path, typer.Argument(help="The folder of the results; the page is FOLDER.md.")]) -> None:
    """The page of all results of `attnflow reproduce`, every number from the files."""
    text = page(folder)
    path = folder.parent / f"{folder.name}.md"
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    progress(f"wrote {path}")


if __name__ == "__main__":
    run_command(main)
