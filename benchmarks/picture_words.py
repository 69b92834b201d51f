"""Does a written word find its patch? ``python -m benchmarks.picture_words``

Each image has three shapes in different places, and the question names one. The model writes "the square is red". The
map of the word "red" over the image finds the shape if its largest value is there. Answer edges are followed down to
the patches that enter the vision tower. For comparison there are answer rows, fading, raw attention of the last layer
and rollout, for the image's positions in the text, and distributed over patches by the tower's rollout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from benchmarks.command import run_command
from benchmarks.shapes import FOLDER, Scenes, scenes

if TYPE_CHECKING:
    from attnflow.answer import Answer
    from attnflow.model import Model

WAYS: dict[str, dict[str, Any]] = {
    "answer edges, the whole way down": {},
    **{
        f"{method}, {place}": {"method": method, "through": through}
        for method in ("answer_rows", "fading", "raw", "rollout")
        for place, through in (("places in the text", False), ("shared out by the tower's rollout", True))
    },
}
"""The arguments of `Answer.patches`."""

SEED = 2026
"""The seed of images that were not used in training."""


def answers(model: Model, of: Scenes) -> Iterator[Answer]:
    for number in range(len(of)):
        yield model.answer(of.question(number), image=of.pixels[number], max_new_tokens=8)


@dataclass(frozen=True)
class Found:
    """The results.

    right: the fraction of right answers.
    hits: for these, by way, the fraction of maps whose largest value is at the shape.
    shares: the mean share of the shape in everything on the image.
    colours: hits of the first way, by colour.
    """

    right: float
    hits: dict[str, float]
    shares: dict[str, float]
    colours: dict[str, float]


def measured(model: Model, of: Scenes, ways: Mapping[str, Mapping[str, Any]] = WAYS) -> Found:
    right = 0
    hits: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in ways}
    colours: dict[str, list[float]] = {}
    for number, answer in enumerate(answers(model, of)):
        if answer.text.strip() != of.answer(number):
            continue
        right += 1
        place = int(of.places[number, 0])
        for name, options in ways.items():
            values = answer.patches(of.colour(number), **options).ravel()
            hits[name].append(float(values.argmax() == place))
            shares[name].append(float(values[place] / (values.sum() or 1.0)))
        colours.setdefault(of.colour(number), []).append(hits[next(iter(ways))][-1])
    means = ({name: float(np.mean(x)) for name, x in some.items()} for some in (hits, shares, colours))
    return Found(right / len(of), *means)


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
    figures = measured(model, scenes(count, seed))
    print(f"right answers: {figures.right:.1%}\n{'':50} {'finds it':>8} {'its share':>9}")
    for name, hits in figures.hits.items():
        print(f"{name:50} {hits:8.1%} {figures.shares[name]:9.1%}")
    by_colour = ", ".join(f"{name} {hits:.1%}" for name, hits in sorted(figures.colours.items()))
    print(f"{next(iter(figures.hits))}, by colour: {by_colour}")


if __name__ == "__main__":
    run_command(main)
