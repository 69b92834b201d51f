"""``attnflow train`` and ``attnflow reproduce``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.cli.options import make_folder, numbers, progress, quiet
from attnflow.errors import InputError
from attnflow.files import write_whole

train = typer.Typer(no_args_is_help=True, help="Train the models of the paper's experiments.")

DISTILBERT = "distilbert-base-uncased-finetuned-sst-2-english"
BERT = "bert-base-uncased"
TABLES = ("table1", "table2", "table3")
FIGURES = ("figure1", "figure2", "figure3", "figure4")
EVERYTHING = (*TABLES, *FIGURES)
DATA = {
    "agreement": ("agreement.tsv", "agr_50_mostcommon_10K.tsv"),
    "more": ("agreement-more.tsv",),
    "text": ("text.train.txt",),
    "sst2": ("test.tsv",),
}
ENDINGS = ("", ".xz", ".gz")

Data = Annotated[
    Path | None, typer.Option(help="A folder with the data, or the file itself; see docs/reproduction.md.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; a GPU if there is one, by default.")]
Out = Annotated[
    Path, typer.Option("-o", "--output", help="Folder for the model; a run that was cut off goes on from there.")
]
Base = Annotated[str, typer.Option(help="Folder or hub id of the encoder to start from.")]


@train.command("verb-number")
def train_verb_number(
    output: Out,
    data: Data = None,
    recipe: Annotated[
        str, typer.Option(help="best; authors: an LSTM teacher and their dropout; plain: neither.")
    ] = "best",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the examples; the recipe's if not given.")
    ] = None,
    teacher: Annotated[
        list[Path] | None, typer.Option(help="Folder of attnflow train teacher; may be given several times.")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """The paper's model: 6 layers, 8 heads, width 128, GPT-2 blocks without the causal mask."""
    quiet()
    from attnflow.paper import verb_number

    source = agreement_file(data, output.parent)
    changes: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    verb_number.train(
        source, output, recipe=recipe, more=found(data, "more"), text=found(data, "text"), linzen=linzen_subset(data),
        teachers=teacher or (), seed=seed, device=device, say=progress, **changes,
    )  # fmt: skip
    progress(f"wrote {output}")


@train.command("teacher")
def train_teacher(
    output: Out,
    base: Base,
    data: Data = None,
    epochs: Annotated[int, typer.Option(min=1)] = 2,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """An encoder fine-tuned to tell the number of the verb, for the model above to imitate."""
    quiet()
    from attnflow.paper import teacher

    source = agreement_file(data, output.parent)
    teacher.train_encoder(
        source, base, output, more=found(data, "more"), epochs=epochs, seed=seed, device=device, say=progress
    )
    progress(f"wrote {output}")


@train.command("sst2")
def train_sst2(
    output: Out,
    base: Base,
    data: Data = None,
    epochs: Annotated[int, typer.Option(min=1)] = 4,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """A sentence classifier for Table 3: train.tsv, dev.tsv and test.tsv with the columns sentence and label."""
    quiet()
    from attnflow.paper import sst2

    sst2.train(folder_of(data, "sst2"), base, output, epochs=epochs, seed=seed, device=device, say=progress)
    progress(f"wrote {output}")


@train.command("masked-lm")
def train_masked_lm(
    output: Out,
    base: Base,
    data: Data = None,
    epochs: Annotated[int, typer.Option(min=1)] = 30,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """A masked language model for Figure 4: text.train.txt, text.valid.txt and text.test.txt, one sentence a line."""
    quiet()
    from attnflow.paper import masked_lm

    masked_lm.train(folder_of(data, "text"), base, output, epochs=epochs, seed=seed, device=device, say=progress)
    progress(f"wrote {output}")


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(help=f"Some of {', '.join(EVERYTHING)}; all; or report: OUTPUT.md, a page of all results."),
    ],
    data: Data = None,
    samples: Annotated[int, typer.Option(min=2, help="Test examples of Tables 1 and 2.")] = 2000,
    seeds: Annotated[
        str, typer.Option(help="Training seeds of Tables 1 and 2; those without a model are trained.")
    ] = "0",
    recipe: Annotated[str, typer.Option(help="Of the verb-number models: best, authors or plain.")] = "best",
    models: Annotated[
        Path | None, typer.Option(help="Where trained models lie, or go; OUTPUT/models by default.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="For Table 3 the classifier, for Figure 4 the masked LM.")
    ] = None,
    device: Device = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for results, tables and pictures.")] = Path(
        "reproduction"
    ),
) -> None:
    """The paper's tables and figures, its numbers beside ours: .json, .md, and .svg, .pdf and .png pictures."""
    from attnflow.paper import reproduction as report

    if what == ["report"]:
        page = report.page(output)
        _write(output.parent / f"{output.name}.md", page)
        return
    strange = [name for name in what if name not in (*EVERYTHING, "all")]
    if strange:
        raise InputError(f"{strange[0]!r}: expected some of {', '.join(EVERYTHING)}; all; or report alone")
    wanted = EVERYTHING if "all" in what else tuple(what)
    if model is not None and {"table3", "figure4"} <= set(wanted):
        raise InputError(
            "--model is for one of table3 and figure4; for both, put the folders sst2 and masked-lm into --models"
        )
    models = models or output / "models"
    quiet()
    if {"table1", "table2"} & set(wanted):
        for name, told in _verb_number(wanted, data, samples, seeds, recipe, models, output, device).items():
            _tell(name, told, recipe, output)
    if "table3" in wanted:
        _tell("table3", _sentiment(data, model, models, output, device), recipe, output)
    for name in FIGURES:
        if name in wanted:
            _tell(name, _figure(name, data, model, recipe, models, output, device), recipe, output)


def _tell(name: str, told: dict[str, Any], recipe: str, output: Path) -> None:
    from attnflow.paper import reproduction as report

    text = report.section(told)
    _write(output / f"{_file_name(name, recipe)}.md", text)
    print(text)


def _file_name(name: str, recipe: str) -> str:
    return name if recipe == "best" or name in ("table3", "figure4") else f"{name}-{recipe}"


def _verb_number(
    wanted: tuple[str, ...],
    data: Path | None,
    samples: int,
    seeds: str,
    recipe: str,
    models: Path,
    output: Path,
    device: str | None,
) -> dict[str, Any]:
    from attnflow.paper import agreement, figures, training
    from attnflow.paper import paper_tables as tables

    source = agreement_file(data, output)
    examples = agreement.read(source)
    loaded = []
    chosen = numbers(seeds, "seeds", least=0)
    if len(set(chosen)) < len(chosen):
        raise InputError(f"seeds {seeds!r}: expected each seed once")
    for seed in chosen:
        loaded.append((f"seed {seed}", *_verb_number_model(seed, recipe, models, data, source, device)))
    found = tables.verb_number_tables([(name, m) for name, m, _ in loaded], examples, progress, samples=samples)
    written: dict[str, Any] = {}
    for name in ("table1", "table2"):
        if name not in wanted:
            continue
        told = found[name]
        told["recipe"] = recipe
        told["data"] = {
            "file": source.name,
            "sha256": training.file_hash(source),
            "split": "test",
            "first": told["samples"],
        }
        for run, (_, _, trained) in zip(told["runs"], loaded, strict=True):
            run["training"] = trained
        file = _file_name(name, recipe)
        _write(output / f"{file}.json", _json(told))
        _save(figures.table_figure([told], tables.TEXT), output, file)
        written[name] = told
    return written


def _folder(seed: int, recipe: str, models: Path) -> Path:
    """Where a verb-number model lies, or should; seed 0 of the recipe "best" comes with the package."""
    from attnflow.capture.hub import embedded_folder

    return embedded_folder() if recipe == "best" and seed == 0 else models / f"verb-number-{recipe}-seed{seed}"


def _trained(folder: Path) -> bool:
    return (folder / "training.json").is_file()  # the last file that a training writes


def _verb_number_model(
    seed: int, recipe: str, models: Path, data: Path | None, source: Path, device: str | None
) -> tuple[Any, Any]:
    """The model of a seed, trained if need be, and what its training reported."""
    from attnflow.paper import verb_number

    folder = _folder(seed, recipe, models)
    if not _trained(folder):
        teachers = sorted(models.glob("teacher*")) if recipe == "best" else []
        told = f" with {len(teachers)} teachers" if teachers else " without teachers" if recipe == "best" else ""
        progress(f"there is no trained model in {folder}: training it{told}")
        verb_number.train(
            source, folder, recipe=recipe, more=found(data, "more"), text=found(data, "text"),
            linzen=linzen_subset(data), teachers=teachers, seed=seed, device=device, say=progress,
        )  # fmt: skip
    return _loaded(str(folder), device), _training(folder)


def _loaded(name: str, device: str | None) -> Any:
    """A model in single precision, called by the last part of its path."""
    import attnflow

    loaded = attnflow.load(name, device=device, dtype="float32")
    loaded.name = Path(name).name if Path(name).is_dir() else name
    return loaded


def _training(folder: Path) -> dict[str, Any] | None:
    """What the training of a model reported; None where there is no such report."""
    file = folder / "training.json"
    if not file.is_file():
        return None
    try:
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return told if isinstance(told, dict) else None
    except ValueError as e:
        raise InputError(f"{str(file)!r} is damaged ({e}): train the model again") from None


def _sentiment(data: Path | None, model: str | None, models: Path, output: Path, device: str | None) -> dict[str, Any]:
    from attnflow.paper import figures, sst2, training
    from attnflow.paper import paper_tables as tables

    folder = folder_of(data, "sst2")
    file = next(f for f in (folder / f"test.tsv{e}" for e in ENDINGS) if f.is_file())
    texts, labels = sst2.read(file)
    name, trained = _chosen(model, models / "sst2", DISTILBERT)
    told = tables.sentiment_table(_loaded(name, device), list(texts), list(labels), progress)
    told["data"] = {"file": file.name, "sha256": training.file_hash(file), "split": "test", "first": len(texts)}
    told["runs"][0]["training"] = trained
    _write(output / "table3.json", _json(told))
    _save(figures.table_figure([told], tables.TEXT), output, "table3")
    return told


def _figure(
    name: str, data: Path | None, model: str | None, recipe: str, models: Path, output: Path, device: str | None
) -> dict[str, Any]:
    from attnflow.paper import figures

    if name != "figure4":
        folder = _folder(0, recipe, models)
        if not _trained(folder):
            raise InputError(
                f"there is no trained model in {str(folder)!r}: make one with attnflow train verb-number --recipe {recipe} "
                "--seed 0, or with attnflow reproduce table1"
            )
        told, drawn = figures.attention_figure(_loaded(str(folder), device), name)
        told["recipe"] = recipe
    else:
        chosen, trained = _chosen(model, models / "masked-lm", BERT)
        loaded = _loaded(chosen, device)
        winobias, winogender = (
            data / part if data is not None and (data / part).is_dir() else None for part in ("winobias", "winogender")
        )
        held_out = trained.get("held out") if trained else None
        told, drawn = figures.pronoun_figure(loaded, winobias, winogender, held_out, progress)
    file = _file_name(name, recipe)
    _write(output / f"{file}.json", _json(told))
    _save(drawn, output, file)
    return told


def _chosen(given: str | None, folder: Path, hub: str) -> tuple[str, Any]:
    """The model for an experiment: the one given, else the one trained, else the paper's from the hub."""
    name = given or (str(folder) if (folder / "config.json").is_file() else hub)
    return name, _training(Path(name))


def found(data: Path | None, name: str) -> Path | None:
    """A data file in the folder that was given, or in one of its folders."""
    if data is None or not data.is_dir():
        return data if data is not None and name == "agreement" else None
    for place in (data, *sorted(p for p in data.iterdir() if p.is_dir())):
        for file in DATA[name]:
            for ending in ENDINGS:
                if (place / (file + ending)).is_file():
                    return place / (file + ending)
    return None


def agreement_file(data: Path | None, cache: Path) -> Path:
    """The examples of verb number: what was given, or else the published set, downloaded."""
    from attnflow.paper import agreement

    if data is not None:
        if not data.exists():
            raise InputError(f"there is no {str(data)!r}: expected a folder with the data, or a file of examples")
        file = found(data, "agreement")
        if file is None:
            raise InputError(f"the folder {str(data)!r} has none of {', '.join(DATA['agreement'])} (or .xz, .gz) in it")
        return file
    file, digest = agreement.download_linzen(cache)
    progress(f"{file}: SHA-256 {digest}")
    return file


def linzen_subset(data: Path | None) -> Path | None:
    folder = None if data is None else data / "linzen_subset"
    return folder if folder is not None and folder.is_dir() else None


def folder_of(data: Path | None, name: str) -> Path:
    if data is None:
        raise InputError(f"this needs --data, a folder with {DATA[name][0]} (or .xz, .gz) in it")
    if not data.is_dir():
        raise InputError(f"there is no folder {str(data)!r}: expected one with {DATA[name][0]} (or .xz, .gz) in it")
    file = found(data, name)
    if file is None:
        raise InputError(f"the folder {str(data)!r} has no {DATA[name][0]} (or .xz, .gz) in it")
    return file.parent


def _json(told: dict[str, Any]) -> str:
    return json.dumps(told, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    make_folder(path.parent)
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    progress(f"wrote {path}")


def _save(drawn: Any, output: Path, name: str) -> None:
    from attnflow.view import figure

    for kind in ("svg", "pdf", "png"):
        figure.save(drawn, output / f"{name}.{kind}")
        progress(f"wrote {output / f'{name}.{kind}'}")
