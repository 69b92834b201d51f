"""Does a written word find its patch? ``python -m benchmarks.picture_words``

Each image has three shapes in different places, and the question names one. The model writes "the square is red". The
map of the word "red" over the image finds the shape if its largest value is there. Answer edges are followed down to
the patches that enter the vision tower.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from benchmarks.command import run_command
from benchmarks.shapes import FOLDER, Scenes, scenes

if TYPE_CHECKING:
    from attnflow.model import Model

SEED = 2026
"""The seed of images that were not used in training."""


@dataclass(frozen=True)
class Found:
    """The results.

    right: the fraction of right answers.
    hits: for these, the fraction of maps whose largest value is at the shape.
    share: the mean share of the shape in everything on the image.
    colours: hits by colour.
    """

    right: float
    hits: float
    share: float
    colours: dict[str, float]


def measured(model: Model, of: Scenes) -> Found:
    shares: list[float] = []
    colours: dict[str, list[bool]] = {}
    for number in range(len(of)):
        answer = model.answer(of.question(number), image=of.pixels[number], max_new_tokens=8)
        if answer.text.strip() != of.answer(number):
            continue
        place = int(of.places[number, 0])
        values = answer.patches(of.colour(number)).ravel()
        colours.setdefault(of.colour(number), []).append(int(values.argmax()) == place)
        shares.append(float(values[place] / (values.sum() or 1.0)))
    hits = [hit for some in colours.values() for hit in some]
    by_colour = {name: float(np.mean(some)) for name, some in colours.items()}
    return Found(len(hits) / len(of), float(np.mean(hits)), float(np.mean(shares)), by_colour)


def main(
    count: Annotated[int, typer.Option(min=1, help="Number of images, none of which were used in training.")] = 400,
    folder: Annotated[Path, typer.Option(help="The model, as written by benchmarks.shapes.")] = FOLDER,
    seed: Annotated[int, typer.Option(help="Seed of the images.")] = SEED,
) -> None:
    """Print how often a written colour finds the shape that has it."""
    silence()
    import attnflow

    model = attnflow.load(folder, device="cpu")
    progress(f"{count} images of three shapes at 36 places")
    result = measured(model, scenes(count, seed))
    print(
        f"right answers: {result.right:.1%}; the word finds the shape: {result.hits:.1%}; its share: {result.share:.1%}"
    )
    print("by colour: " + ", ".join(f"{name} {hits:.1%}" for name, hits in sorted(result.colours.items())))


if __name__ == "__main__":
    run_command(main)
