"""The paper's tables and figures, from data and models to files: .json and .md, and pictures of the figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnflow
from attnflow.errors import InputError
from attnflow.files import make_folder, write_whole
from attnflow.model import embedded_folder
from attnflow.paper import agreement, figures, paper_tables
from attnflow.paper.data_files import agreement_file, data_file, file_hash, folder_of, read_sst2
from attnflow.paper.result_text import section
from attnflow.view import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.model import Model

DISTILBERT = "distilbert-base-uncased-finetuned-sst-2-english"
BERT = "bert-base-uncased"
TABLES = ("table1", "table2", "table3")
FIGURES = ("figure1", "figure2", "figure3", "figure4")
EVERYTHING = (*TABLES, *FIGURES)

Result = dict[str, Any]
"""A table or figure as in its .json file."""


@dataclass(frozen=True)
class Reproduction:
    """What the experiments run on, and where their results go.

    output: folder for results.
    data: folder with the data, or the file of verb-number examples; see docs/reproduction.md.
    models: the folder of trained models; ``output / "models"`` by default.
    model: the classifier for Table 3, or the masked LM for Figure 4; by default the trained one, else the paper's.
    recipe, seeds: of the verb-number models.
    samples: test examples of Tables 1 and 2.
    """

    output: Path
    data: Path | None = None
    models: Path | None = None
    model: str | None = None
    recipe: str = "best"
    seeds: Sequence[int] = (0,)
    samples: int = 2000
    device: str | None = None
    say: Callable[[str], None] = lambda line: None

    def run(self, names: Sequence[str]) -> Iterator[str]:
        """Compute and write the tables and figures with these names; yield each as Markdown."""
        strange = [name for name in names if name not in (*EVERYTHING, "all")]
        if strange:
            raise InputError(f"{strange[0]!r}: expected some of {', '.join(EVERYTHING)}; or all")
        chosen = EVERYTHING if "all" in names else tuple(name for name in EVERYTHING if name in names)
        if self.model is not None and {"table3", "figure4"} <= set(chosen):
            raise InputError(
                "model= works for either table3 or figure4; for both, put the folders sst2 and masked-lm into models="
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds={list(self.seeds)}: expected each seed once")
        verb_number_tables = [name for name in ("table1", "table2") if name in chosen]
        if verb_number_tables:
            for name, result in self._verb_number(verb_number_tables).items():
                yield self._write(name, result)
        for name in chosen:
            if name == "table3":
                result = self._sentiment()
                yield self._write(name, result)
            elif name in FIGURES:
                yield self._write(name, *(self._pronouns() if name == "figure4" else self._attention(name)))

    @property
    def _models(self) -> Path:
        return self.models or self.output / "models"

    def _write(self, name: str, result: Result, picture: Figure | None = None) -> str:
        """Write the files of one result; return its Markdown."""
        file = name if self.recipe == "best" or name in ("table3", "figure4") else f"{name}-{self.recipe}"
        text = section(result)
        make_folder(self.output)
        for ending, content in (
            ("json", json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n"),
            ("md", text),
        ):
            path = self.output / f"{file}.{ending}"
            write_whole(path, lambda beside, content=content: beside.write_text(content, encoding="utf-8"))  # type: ignore[misc]
            self.say(f"wrote {path}")
        if picture is not None:
            for ending in ("svg", "pdf", "png"):
                path = self.output / f"{file}.{ending}"
                figure.save(picture, path)
                self.say(f"wrote {path}")
        return text

    def _verb_number(self, names: Sequence[str]) -> dict[str, Result]:
        source = agreement_file(self.data, self.output, self.say)
        examples = agreement.read(source)
        folders = {seed: self._folder(seed) for seed in self.seeds}
        models = [(f"seed {seed}", self._load(str(folder))) for seed, folder in folders.items()]
        tables = paper_tables.verb_number_tables(models, examples, self.say, samples=self.samples)
        for name in names:
            result = tables[name]
            result["recipe"] = self.recipe
            result["data"] = _data(source, result["samples"])
            for run, folder in zip(result["runs"], folders.values(), strict=True):
                run["training"] = _training(folder)
        return {name: tables[name] for name in names}

    def _folder(self, seed: int) -> Path:
        """Return the folder of a verb-number model; seed 0 of the recipe "best" comes with the package."""
        if self.recipe == "best" and seed == 0:
            return embedded_folder()
        folder = self._models / f"verb-number-{self.recipe}-seed{seed}"
        if not _is_trained(folder):
            raise InputError(
                f"there is no trained model in {str(folder)!r}: train the recipe {self.recipe!r} with seed {seed} there, "
                "by `python -m reproduction verb-number` in a clone of the repository"
            )
        return folder

    def _sentiment(self) -> Result:
        file = data_file(folder_of(self.data, "sst2"), "test.tsv")
        texts, labels = read_sst2(file)
        name, training = self._chosen("sst2", DISTILBERT)
        result = paper_tables.sentiment_table(self._load(name), list(texts), list(labels), self.say)
        result["data"] = _data(file, len(texts))
        result["runs"][0]["training"] = training
        return result

    def _attention(self, name: str) -> tuple[Result, Figure]:
        result, picture = figures.attention_figure(self._load(str(self._folder(0))), name)
        return {**result, "recipe": self.recipe}, picture

    def _pronouns(self) -> tuple[Result, Figure]:
        name, training = self._chosen("masked-lm", BERT)
        held_out = training.get("held out") if training else None
        return figures.pronoun_results(self._load(name), held_out)

    def _chosen(self, folder: str, hub: str) -> tuple[str, Result | None]:
        """Return the model for an experiment and its training report: the given, the trained, or the paper's model."""
        trained = self._models / folder
        name = self.model or (str(trained) if (trained / "config.json").is_file() else hub)
        return name, _training(Path(name))

    def _load(self, name: str) -> Model:
        """Load a model in single precision, named by the last part of its path."""
        model = attnflow.load(name, device=self.device, dtype="float32")
        model.name = Path(name).name if Path(name).is_dir() else name
        return model


def _is_trained(folder: Path) -> bool:
    return (folder / "training.json").is_file()  # the last file that a training writes


def _training(folder: Path) -> Result | None:
    """Return the training report of a model, or None."""
    if not _is_trained(folder):
        return None
    file = folder / "training.json"
    try:
        report: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as e:
        raise InputError(f"{str(file)!r} is damaged ({e}): train the model again") from None
    return report if isinstance(report, dict) else None


def _data(file: Path, count: int) -> Result:
    return {"file": file.name, "sha256": file_hash(file), "split": "test", "first": count}
