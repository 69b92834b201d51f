"""Answer pages without a model: texts of any length with numbers that resemble those of real answers."""

from __future__ import annotations

import numpy as np

from attnflow.capture.prompt import AnswerLabels, Part, Prompt
from attnflow.view.answer_numbers import Faded
from attnflow.view.answer_page import Explained

WORDS = ("the", "harbour", "museum", "was", "founded", "by", "a", "town", "council", "engineer", "of", "many", "ships")
DOCUMENT = 1500
"""Words in a document of a long prompt."""


def synthetic(tokens: int, answer: int, seed: int = 0) -> Explained:
    """Return the data of such a page.

    A few tokens contribute much, as in real answers: parts are normal random numbers cubed.
    """
    random = np.random.default_rng(seed)
    prompt = _prompt(tokens, random)
    labels = _labels(answer, random)
    matrix = random.standard_normal((answer, tokens + answer)) ** 3 * 0.05
    matrix[:, tokens:] = np.tril(matrix[:, tokens:], -1)
    slopes = random.standard_normal((answer, tokens)) ** 3 * 0.01
    logs = np.log(random.uniform(0.2, 0.99, answer))
    odds = logs - np.log(-np.expm1(logs))
    sums = {"log_odds": odds.sum(), "prompt": matrix[:, :tokens].sum(), "answer": matrix[:, tokens:].sum()}
    rest = sums["log_odds"] - sums["prompt"] - sums["answer"]
    evidence = {**sums, "constants": rest, "first_token": matrix[:, 0].sum(), "gap": 0.0}
    spans = ((0, answer - 1), *((i, i) for i in range(answer)))
    return Explained(
        prompt=prompt,
        labels=labels,
        log_probabilities=logs,
        written=True,
        matrix=matrix,
        evidence={name: float(value) for name, value in evidence.items()},
        chosen=range(answer),
        shares={},
        parts={},
        faded=Faded(spans, np.concatenate([slopes.sum(0, keepdims=True), slopes]), "token"),
        verified=None,
        provenance={"model": "generated numbers"},
    )


def _prompt(tokens: int, random: np.random.Generator) -> Prompt:
    words = random.choice(WORDS, tokens).tolist()
    pieces: list[str] = []
    offsets: list[tuple[int, int]] = []
    documents: list[Part] = []
    place, begun = 0, 0
    for i, word in enumerate(words):
        ends = i % 16 == 15 or i == tokens - 1
        shown = (word.capitalize() if i % 16 == 0 else word) + ("." if ends else "")
        after = "\n\n" if i % 80 == 79 else " "
        pieces.append(shown + after)
        offsets.append((place, place + len(shown)))
        place += len(shown) + len(after)
        if (i + 1) % DOCUMENT == 0 or i == tokens - 1:
            documents.append(Part(f"document {len(documents) + 1}", begun, place))
            begun = place
    text = "".join(pieces)
    no = (False,) * tokens
    numbers = tuple(range(tokens))
    return Prompt(numbers, text, tuple(offsets), tuple(words), no, numbers, tuple(words), (), tuple(documents), no)


def _labels(answer: int, random: np.random.Generator) -> AnswerLabels:
    words = random.choice(WORDS, answer).tolist()
    ends = np.cumsum([len(word) + 1 for word in words]).tolist()
    offsets = tuple((end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True))
    numbers = tuple(range(answer))
    return AnswerLabels(tuple(words), offsets, (False,) * answer, " ".join(words), numbers, tuple(words))
