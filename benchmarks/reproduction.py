"""Write docs/reproduction.md from the results of `attnflow reproduce`: ``python -m benchmarks.reproduction FOLDER``.

No number is typed here. The full tables become FOLDER/tables.csv.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow import markdown
from attnflow.cli.options import progress
from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.paper import published as paper
from attnflow.paper.paper_tables import AUTHORS, TEXT, VERDICTS
from attnflow.paper.result_text import NAMES, recipe_name, section
from benchmarks.blimp import BLIMP, outside
from benchmarks.command import run_command
from benchmarks.reproduction_sections import (
    accuracy_table,
    evenness_section,
    gradient_section,
    pronoun_section,
    sentences_section,
    span,
    table_section,
    tables_csv,
)
from reproduction.card import recipe

ORDER = (
    "table1", "table1-authors", "table2", "table2-authors", "table3", "figure1", "figure1-authors", "figure2",
    "figure2-authors", "figure3", "figure3-authors", "figure4",
)  # fmt: skip
MADE = (
    "<!-- Made by `python -m benchmarks.reproduction docs/reproduction`; edit benchmarks/reproduction*.py or the results "
    "instead. -->\n\n"
    "# The paper, reproduced\n\n"
)


def read(folder: Path) -> dict[str, Any]:
    """Read all results of a folder, by name."""
    results = {}
    for name in ORDER:
        file = folder / f"{name}.json"
        if file.is_file():
            try:
                result = json.loads(file.read_text(encoding="utf-8"))
                if (result.get("table") or result["figure"]) != name.partition("-")[0]:
                    raise ValueError("it is of another table or figure")
                section(result)  # fails if any part is missing
                results[name] = result
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
                raise InputError(f"{str(file)!r} is damaged ({e}): run attnflow reproduce {name} again") from None
    if not results:
        raise InputError(
            f"the folder {str(folder)!r} has no results: run attnflow reproduce first, with the same --output"
        )
    return results


def page(folder: Path) -> str:
    """Return the page of all results of a folder; pictures and data are linked from the folder's own name."""
    results = read(folder)
    spread = folder / "sst2-trainings.json"
    trainings = json.loads(spread.read_text(encoding="utf-8")) if spread.is_file() else []
    parts = [
        MADE + INTRODUCTION,
        _findings(results),
        _how_to_read(results, folder.name),
        *(table_section(results, name, folder.name) for name in ("table1", "table2", "table3")),
        gradient_section(results),
        evenness_section(results),
        sentences_section(results, folder.name),
        pronoun_section(results, folder.name),
        outside(folder.parent / BLIMP),
        _deviations(results, trainings, folder.name),
        accuracy_table(results),
        COMMANDS,
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def data(folder: Path) -> dict[str, str]:
    """Return the full tables behind the page, by the name of their file."""
    results = read(folder)
    return {"tables.csv": tables_csv(results)} if any("table" in result for result in results.values()) else {}


INTRODUCTION = (
    f"{paper.TITLE}: which of its claims hold, and its tables and figures next to ours. All numbers come from the result "
    "files that are linked below."
)
COMMANDS = """## Commands and data

```
python -m reproduction teacher --data DATA --base ENCODER --seed 0 -o MODELS/teacher0                 # and 1, 2
python -m reproduction verb-number --data DATA --seed 1 -o MODELS/verb-number-best-seed1 --teacher MODELS/teacher0 …
python -m reproduction verb-number --data DATA --seed 0 -o MODELS/verb-number-authors-seed0 --recipe authors
python -m reproduction sst2 --data DATA --base ENCODER -o MODELS/sst2
python -m reproduction masked-lm --data DATA --base ENCODER -o MODELS/masked-lm
attnflow reproduce all --data DATA --models MODELS --seeds 0,1,2 -o docs/reproduction
attnflow reproduce table1 table2 --recipe authors --data DATA --models MODELS --seeds 0,1,2 -o docs/reproduction
python -m benchmarks.reproduction docs/reproduction
```

`attnflow reproduce` also writes each full table as Markdown. DATA is a folder with `agreement.tsv` (columns split, words,
tags, verb, number, subject_index, attractors) or the published `agr_50_mostcommon_10K.tsv.gz`, `agreement-more.tsv`,
`text.{train,valid,test}.txt`, `sst2/{train,dev,test}.tsv` and `linzen_subset/`. Files may be compressed and in folders of
any name. Without `--data` the published verb-number set is downloaded. Without trained models Table 3 uses DistilBERT and
Figure 4 uses BERT from the hub. `python -m reproduction` and `python -m benchmarks` need a clone of the repository."""


def _findings(results: dict[str, Any]) -> str:
    """The verdicts on the claims, for all tables, and what they depend on."""
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
            rows.append([f"{trained}{NAMES[r]}", *verdicts])
    return (
        "## Which of the paper's claims hold\n\n"
        f"{_why(tables)}"
        f"{markdown.table(rows)}\n\n"
        f"{claims}\n\n"
        "In our rows a claim holds if the 95 % intervals of all its differences are above 0, is contradicted if one is "
        "below 0, and is undecided otherwise. If seeds disagree, the cell counts them. A claim cannot be asked if "
        "attention is the same for all tokens. The paper gives only means, so its rows are judged by means."
    )


def _why(tables: Sequence[dict[str, Any]]) -> str:
    """What the verdicts depend on, if both recipes were trained and the authors' rows are more even."""
    even = {result["recipe"]: _evenness(result) for result in reversed(tables) if "recipe" in result}
    if not {"authors", "best"} <= set(even) or even["authors"] <= even["best"]:
        return ""
    scores = {t["recipe"]: [run["accuracy"] for run in t["runs"]] for t in tables if "recipe" in t}
    return (
        "**Most hold for models trained as the authors did. With little dropout only the last one mostly holds.** The "
        "authors' recipe drops 0.6 of the attention weights. Such a model hardly uses its upper layers: from L2 on, rows "
        f"of [CLS] have {even['authors']:.1%} of the entropy of equal weights. Raw attention ranks little there, while "
        "rollout and flow still carry what the first layer saw. With our recipe "
        f"({even['best']:.1%}) upper layers attend to words, and flow falls behind rollout once tokens tie at its "
        "bound. Two cautions: our models with the authors' recipe are right on "
        f"{span(scores['authors'], 3)} of the texts (the paper's model: {paper.ACCURACY['table1']:.2f} on its own "
        f"data; our recipe: {span(scores['best'], 3)}), and our recipe sees tags and subjects in training, so its "
        "attention differs from that of a model that found them itself.\n\n"
    )


def _how_to_read(results: dict[str, Any], folder: str) -> str:
    if not any("table" in result for result in results.values()):
        return ""
    return (
        "**How to read the tables.** A cell is the mean rank correlation over texts (and seeds); ± is the "
        "paper's standard deviation. Intervals are bootstrapped over texts. Where the paper's text and its released "
        "code differ, we follow both. By the text every token is ranked and ties share their mean rank; *code* rows use "
        "dense ranks and the formula without ties. *n* is given if some texts have no correlation because "
        f"attention is the same for all tokens. [tables.csv]({folder}/tables.csv) has every interval, seed and standard "
        "deviation, and a third reading that ranks words only; `runs` in the JSON files has the differences behind each "
        "verdict."
    )


def _verdicts(result: dict[str, Any], reading: str, name: str) -> str:
    """One verdict if all seeds agree, otherwise how many seeds have which."""
    verdicts = [run["claims"][reading][name]["verdict"] for run in result["runs"]]
    if len(set(verdicts)) == 1:
        return str(verdicts[0])
    return ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in VERDICTS if verdict in verdicts)


def _evenness(result: dict[str, Any]) -> float:
    rows = [float(x) for run in result["runs"] for x in run["evenness"][1:]]
    return sum(rows) / len(rows)


def _deviations(results: dict[str, Any], trainings: Sequence[dict[str, Any]], folder: str) -> str:
    lines = []
    first = results.get("table1") or results.get("table2")
    if first is not None:
        lines.append(
            f"- **Verb-number data**: the first {first['samples']:,} test examples of `{first['data']['file']}` (SHA-256 "
            f"{first['data']['sha256'][:16]}…); the paper uses the set of Linzen et al., which loads too."
        )
        lines.append(
            "- **Verb-number model**: the paper's architecture as a stock GPT2ForTokenClassification. The embedded model "
            "is seed 0 of our recipe; its [model card](../src/attnflow/paper/verb-number/README.md) describes data and "
            "training."
        )
        authors = results.get("table1-authors")
        if authors is not None and authors["runs"][0]["training"]:
            steps = recipe(authors["runs"][0]["training"]).replace("\n- ", " ").removeprefix("- ")
            lines.append(f"- **{recipe_name(authors)[0].upper()}{recipe_name(authors)[1:]}**: {steps}")
    if "table3" in results:
        run = results["table3"]["runs"][0]
        if run["training"]:
            lines.append(
                f"- **Table 3**: `{run['model']}`, {run['training']['recipe']['base']}, fine-tuned on SST-2 "
                f"(accuracy {run['accuracy']:.3f}), instead of DistilBERT; {results['table3']['samples']} labelled "
                "sentences (GLUE's development set) instead of 101 unlabelled ones."
            )
    if trainings:
        accuracies = [run["test"] for run in trainings]
        lines.append(
            f"- **That seed was lucky**: {len(accuracies)} trainings with other seeds and settings reached "
            f"{span(accuracies, 3)} ([sst2-trainings.json]({folder}/sst2-trainings.json))."
        )
    if "figure4" in results:
        result = results["figure4"]
        if result["held_out"]:
            test = result["held_out"]["test"]
            lines.append(
                f"- **Figure 4**: `{result['model']}`, a masked-LM head trained on a six-layer encoder, instead of "
                f"BERT-base; held-out loss {test['held_out_loss']:.2f}, top-1 accuracy {test['top1']:.3f}."
            )
    lines.append(
        "- **Flow** is exact and certified for every layer. The released code divides each row by its sum, which "
        "changes no rank within a row."
    )
    return "## Substitutes and deviations\n\n" + "\n".join(lines)


def main(folder: Annotated[Path, typer.Argument(help="The folder of the results; the page is FOLDER.md.")]) -> None:
    """Write the page of all results of `attnflow reproduce`, and the full tables as CSV."""
    written = {folder.parent / f"{folder.name}.md": page(folder)}
    written |= {folder / name: text for name, text in data(folder).items()}
    for path, text in written.items():
        write_whole(path, partial(_write, text))
        progress(f"wrote {path}")


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
