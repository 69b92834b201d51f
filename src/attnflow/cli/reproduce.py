"""`attnflow reproduce`: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.cli.options import Data, Device, numbers, start
from attnflow.jobs.progress import Stages


def reproduce(
    what: Annotated[list[str], typer.Argument(help="table1 to table3, figure1 to figure4, or all.")],
    data: Data = None,
    samples: Annotated[
        int, typer.Option(min=2, metavar="N", help="Number of test examples for Tables 1 and 2.")
    ] = 2000,
    seeds: Annotated[str, typer.Option(help="Training seeds of the models for Tables 1 and 2.")] = "0",
    recipe: Annotated[
        str, typer.Option(help="Training recipe of the verb-number models: best, authors or plain.")
    ] = "best",
    models: Annotated[
        Path | None, typer.Option(help="Folder of the trained models; by default, OUTPUT/models.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", help="The classifier for Table 3, or the masked language model for Figure 4."),
    ] = None,
    device: Device = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the results, tables and figures.")] = Path(
        "reproduced"
    ),
) -> None:
    """Reproduce the paper's tables and figures, with its numbers next to ours (.json, .md, .svg, .pdf and .png)."""
    start()
    from attnflow.paper.experiments import Reproduction

    with Stages({"run": f"reproducing {', '.join(what)}"}) as stages:
        reproduction = Reproduction(
            output, data=data, models=models, model=model, recipe=recipe, seeds=numbers(seeds, "--seeds", least=0),
            samples=samples, device=device, say=stages.say,
        )  # fmt: skip
        stages("run", 0, 1)
        for text in reproduction.run(what):
            stages.clear()
            print(text)
            stages("run", 0, 1)
