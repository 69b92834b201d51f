"""Which method names the word that makes two texts similar: `python -m benchmarks.similarity MODEL`.

Two sentences are built from frames that have nothing in common. One content word is in both, as the same word
("shared") or as a synonym ("synonym"). It is a hit if a method's strongest word of a text is that word. Each pair
counts its two texts. Words and frames are included here, so the benchmark needs only a sentence-embedding model.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from statistics import NormalDist

import attnflow as af
from attnflow.similarity import METHODS

FRAMES = (
    ("My neighbour painted the {} on a rainy Tuesday.", "Nobody expected that the {} would cost so much."),
    ("She wrote a long letter about the {} to her uncle.", "Last night the {} was found behind the old station."),
    ("The children are drawing a {} with blue chalk.", "A newspaper printed one photograph of the {}."),
    ("He forgot the {} when the meeting ended.", "In the museum, visitors stand around a {} in silence."),
    ("Everybody in the village talks about the {}.", "I bought a {} for my sister yesterday."),
)
WORDS = (
    ("dog", "puppy"), ("car", "automobile"), ("doctor", "physician"), ("boat", "ship"), ("rabbit", "bunny"),
    ("sofa", "couch"), ("violin", "fiddle"), ("church", "cathedral"), ("stone", "rock"), ("thief", "burglar"),
    ("bicycle", "bike"), ("house", "home"), ("woods", "forest"), ("lawyer", "attorney"), ("movie", "film"),
    ("plane", "aircraft"), ("teacher", "instructor"), ("dish", "plate"), ("infant", "baby"), ("king", "monarch"),
)  # fmt: skip
NAMES = ("first word", "random word", *METHODS)


def cases(kind: str, count: int, seed: int) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Return pairs of texts, each with the words that make them similar."""
    draw = random.Random(seed)
    made = [
        (tuple(frame.format(word) for frame, word in zip(frames, words, strict=True)), words)
        for frames in FRAMES
        for pair in WORDS
        for words in ([(pair[0], pair[0]), (pair[1], pair[1])] if kind == "shared" else [pair, pair[::-1]])
    ]
    return draw.sample(made, min(count, len(made)))  # type: ignore[arg-type]


def strongest(similarity: af.Similarity, method: str, draw: random.Random) -> list[str]:
    """Return the word of each text that a method ranks first."""
    if method in ("first word", "random word"):
        words = [list(text.word_texts) for text in similarity.texts]
        return [own[0] if method == "first word" else draw.choice(own) for own in words]
    return [side.without_special().top(1)[0].token for side in similarity.by(method)]


def interval(hits: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval."""
    z, p = NormalDist().inv_cdf(0.975), hits / of
    middle, half = p + z * z / (2 * of), z * (p * (1 - p) / of + z * z / (4 * of * of)) ** 0.5
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def measure(model: af.Model, kinds: Sequence[str], methods: Sequence[str], count: int, seed: int) -> None:
    for kind in kinds:
        made = cases(kind, count, seed)
        hits, seconds = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0.0)
        draw, values = random.Random(seed), []
        for texts, words in made:
            similarity = model.similarity(*texts)
            values.append(similarity.value)
            for method in methods:
                begun = time.perf_counter()
                named = strongest(similarity, method, draw)
                seconds[method] += time.perf_counter() - begun
                hits[method] += sum(a.lower() == b for a, b in zip(named, words, strict=True))
        print(f"{kind}: {len(made)} pairs, mean similarity {sum(values) / len(values):.2f}")
        for method in methods:
            low, high = interval(hits[method], 2 * len(made))
            share = hits[method] / (2 * len(made))
            print(f"  {method:<22}{share:.2f} [{low:.2f}, {high:.2f}]  {seconds[method] / len(made):.3f} s per pair")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.similarity", description=__doc__)
    parser.add_argument("model", help="folder or hub id of a sentence-embedding model")
    parser.add_argument("--kinds", default="shared,synonym", help="comma-separated kinds")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(NAMES), help="comma-separated methods")
    options = parser.parse_args()
    measure(af.load(options.model), options.kinds.split(","), options.methods.split(","), options.pairs, options.seed)


if __name__ == "__main__":
    main()
