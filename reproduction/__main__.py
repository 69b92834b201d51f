"""The command: ``python -m reproduction verb-number | teacher | sst2 | masked-lm``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from attnflow.cli.options import Data, Device, Seed, progress, start
from attnflow.errors import InputError
from attnflow.paper.data_files import agreement_file, find, folder_of

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train the models of the paper's experiments.")

Out = Annotated[Path, typer.Option("-o", "--output", help="Folder for the model.")]
Base = Annotated[str, typer.Option(help="Folder or hub id of the encoder to start from.")]
Epochs = Annotated[int, typer.Option(min=1, metavar="N", help="Number of epochs.")]


@app.command("verb-number")
def train_verb_number(
    output: Out,
    data: Data = None,
    recipe: Annotated[
        str, typer.Option(help="best, authors (LSTM teacher and the authors' dropout) or plain (neither).")
    ] = "best",
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of epochs; by default, from the recipe.")
    ] = None,
    teachers: Annotated[
        list[Path] | None, typer.Option("--teacher", help="Folder of a teacher; repeat the option for more.")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Train the paper's model: 6 layers, 8 heads, width 128, GPT-2 blocks without the causal mask."""
    start()
    from reproduction.verb_number import train

    changes: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    linzen = data / "linzen_subset" if data is not None and (data / "linzen_subset").is_dir() else None
    train(
        agreement_file(data, output.parent, progress), output, recipe=recipe, more=find(data, "more"),
        text=find(data, "text"), linzen=linzen, teachers=teachers or (), seed=seed, device=device, say=progress,
        **changes,
    )  # fmt: skip
    progress(f"wrote {output}")


@app.command("teacher")
def train_teacher(
    output: Out, base: Base, data: Data = None, epochs: Epochs = 2, seed: Seed = 0, device: Device = None
) -> None:
    """Fine-tune an encoder to predict verb number, as a teacher for the verb-number model."""
    start()
    from reproduction.teacher import train

    source = agreement_file(data, output.parent, progress)
    more = find(data, "more")
    train(source, base, output, more=more, epochs=epochs, seed=seed, device=device, say=progress)
    progress(f"wrote {output}")


@app.command("sst2")
def train_sst2(
    output: Out, base: Base, data: Data = None, epochs: Epochs = 4, seed: Seed = 0, device: Device = None
) -> None:
    """Train a sentence classifier for Table 3.

    The data are train.tsv, dev.tsv and test.tsv with the columns sentence and label.
    """
    start()
    from reproduction.sst2 import train

    train(folder_of(data, "sst2"), base, output, epochs=epochs, seed=seed, device=device, say=progress)
    progress(f"wrote {output}")


@app.command("masked-lm")
def train_masked_lm(
    output: Out, base: Base, data: Data = None, epochs: Epochs = 30, seed: Seed = 0, device: Device = None
) -> None:
    """Train a masked language model for Figure 4.

    The data are text.train.txt, text.valid.txt and text.test.txt with one sentence per line.
    """
    start()
    from reproduction.masked_lm import train

    train(folder_of(data, "text"), base, output, epochs=epochs, seed=seed, device=device, say=progress)
    progress(f"wrote {output}")


def main() -> None:
    try:
        app(prog_name="python -m reproduction")
    except InputError as e:
        print(f"reproduction: {e}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
