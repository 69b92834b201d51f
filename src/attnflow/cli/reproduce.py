"""`attnflow reproduce`: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.capture.silence import silence
from attnflow.cli.options import Data, Device, numbers, progress


def reproduce(
    what: Annotated[list[str], typer.Argument(help="Some of table1 to table3 and figure1 to figure4; or all.")],
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
    silence()
    from attnflow.paper.experiments import Reproduction

    reproduction = Reproduction(
        output, data=data, models=models, model=model, recipe=recipe, seeds=numbers(seeds, "seeds", least=0),
        samples=samples, device=device, say=progress,
    )  # fmt: skip
    for text in reproduction.run(what):
        print(text)
