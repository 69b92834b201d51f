"""Small transformers with weights set by hand, so that the route of every answer is known.

A circuit is a `GPT2LMHeadModel` of two layers and four heads whose feed-forward networks add nothing. Its states
consist of features. Each feature has one dimension and a second one with the opposite sign, so that a LayerNorm has no
mean to subtract. The features are the token at this position, the position, what a head wrote here ("before", "moved"),
and the answer. Queries and keys match so strongly that a head attends to a single position. Heads without a task attend
to everything equally and have no value; in the circuit "sinks" they attend to a token whose value is zero.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.errors import InputError

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

COLOURS = 3
LETTERS = range(1, 21)
DIGITS = tuple(range(21 + 8 * c, 29 + 8 * c) for c in range(COLOURS))
"""Eight values of each colour."""
HUBS = range(45, 48)
"""One hub per colour: a place to which a digit is moved."""
QUERIES = range(48, 51)
"""One query per colour: the token that asks for the digit of its colour."""
SINK, BLANK, VOCABULARY = 51, 0, 52
SHORTEST, LONGEST = 20, 40
POSITIONS = LONGEST + 4
"""Room for an answer, and a width that four heads can share."""
LAYERS, HEADS = 2, 4

FEATURES = {"token": VOCABULARY, "position": POSITIONS, "before": VOCABULARY, "moved": VOCABULARY, "answer": VOCABULARY}
COUNT = sum(FEATURES.values())
WIDTH = 2 * COUNT
SIZE = WIDTH // HEADS
START = {name: sum(list(FEATURES.values())[:i]) for i, name in enumerate(FEATURES)}

STRENGTH = 40.0
"""The score of a key that matches its query; other scores are 0."""
LOGIT = 9.0
"""How far the answer's logit is above the others, approximately: likely but not certain."""


@dataclass(frozen=True)
class Planted:
    """A prompt of a circuit.

    source: the position whose token becomes the answer.
    route: positions whose tokens only decide where to look (marks, and the other copy of a repeated token). Changing
        them may lose the answer, but they never become the answer.
    through: the position that the answer is read from, if it is not the source.
    """

    circuit: str
    seed: int
    ids: list[int]
    answer: int
    source: int
    route: tuple[int, ...]
    through: int | None = None


@dataclass(frozen=True)
class Head:
    """A head of a circuit: matrices from features to the head's dimensions, and back.

    query, key: pairs of a feature and a dimension; a bias of the query applies to all positions.
    value: pairs of the feature that is read and the one that is written.
    """

    query: Sequence[tuple[int, int]] = ()
    key: Sequence[tuple[int, int]] = ()
    value: Sequence[tuple[int, int]] = ()
    everywhere: Sequence[int] = ()
    weight: float = 1.0


def feature(name: str, number: int) -> int:
    return START[name] + number


def copied(source: str, target: str, tokens: Sequence[int] = range(VOCABULARY)) -> list[tuple[int, int]]:
    return [(feature(source, t), feature(target, t)) for t in tokens]


def matching(name: str, groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return one dimension per group of tokens."""
    return [(feature(name, t), g) for g, group in enumerate(groups) for t in group]


def look_back(target: str) -> Head:
    """Return a head that looks at the previous position and writes its token."""
    query = [(feature("position", p), p) for p in range(POSITIONS)]
    key = [(feature("position", p), p + 1) for p in range(POSITIONS)]
    return Head(query, key, copied("token", target))


def induce() -> Head:
    """Return a head that looks at the position after the other copy of its token, and answers with the token there."""
    same = [[t] for t in range(VOCABULARY)]
    return Head(matching("token", same), matching("before", same), copied("token", "answer"))


HOPS = (
    Head(
        matching("token", [[hub] for hub in HUBS]), matching("token", DIGITS),
        copied("token", "moved", [t for digits in DIGITS for t in digits]),
    ),
    Head(
        matching("token", [[ask] for ask in QUERIES]), matching("token", [[hub] for hub in HUBS]),
        copied("moved", "answer"),
    ),
)  # fmt: skip

DISTRACTOR = Head(
    (), matching("token", [[SINK]]), copied("token", "answer", [t for t in range(VOCABULARY) if t != SINK]), [0], 0.3
)
"""A head that always looks at the sink; if it looked elsewhere, it would support what it sees."""

CIRCUITS: Mapping[str, tuple[Sequence[Head], Sequence[Head]]] = {
    "previous token": ([look_back("answer")], []),
    "induction": ([look_back("before")], [induce()]),
    "two hops": (HOPS[:1], HOPS[1:]),
    "sinks": ([look_back("before"), *[DISTRACTOR] * 3], [induce(), *[DISTRACTOR] * 3]),
}
"""The heads of both layers."""


def build(circuit: str) -> GPT2LMHeadModel:
    """Build the transformer of a circuit, in float32, on the CPU."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if circuit not in CIRCUITS:
        raise InputError(f"circuit {circuit!r}: expected one of {', '.join(CIRCUITS)}")
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=8,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(float(".ln_" in name and name.endswith("weight")))
        model.transformer.wte.weight.copy_(signed("token"))
        model.transformer.wpe.weight.copy_(signed("position"))
        model.lm_head.weight.copy_(signed("answer") * LOGIT / 2 * scale(3))
        for block, heads in zip(model.transformer.h, CIRCUITS[circuit], strict=True):
            for number, head in enumerate(heads):
                set_head(block.attn, number, head)
    return model


def scale(features: int) -> float:
    """Return what a LayerNorm divides by if this many features are active."""
    return float((2 * features / WIDTH) ** 0.5)


def signed(name: str) -> Tensor:
    """Return each feature of this kind as a state: [feature, width]."""
    rows = torch.zeros(FEATURES[name], WIDTH)
    numbers = torch.arange(FEATURES[name])
    rows[numbers, START[name] + numbers] = 1
    rows[numbers, COUNT + START[name] + numbers] = -1
    return rows


def set_head(attention: Any, number: int, head: Head) -> None:
    """Write a head's matrices. A feature is read from its first dimension and written to both."""
    gain = (STRENGTH * SIZE**0.5) ** 0.5 * scale(2)
    start = number * SIZE
    read, out = attention.c_attn.weight, attention.c_proj.weight  # [width, 3 · width], [width, width]
    for source, dimension in head.query:
        read[source, start + dimension] = gain
    for dimension in head.everywhere:
        attention.c_attn.bias[start + dimension] = gain / scale(2)
    for source, dimension in head.key:
        read[source, WIDTH + start + dimension] = gain
    for dimension, (source, target) in enumerate(head.value):
        read[source, 2 * WIDTH + start + dimension] = head.weight * scale(2)
        out[start + dimension, target] = 1
        out[start + dimension, COUNT + target] = -1


def prompt(circuit: str, seed: int) -> Planted:
    """Return a prompt of `SHORTEST` to `LONGEST` tokens."""
    if circuit not in PROMPTS:
        raise InputError(f"circuit {circuit!r}: expected one of {', '.join(PROMPTS)}")
    draw = random.Random(f"{circuit} {seed}")
    return PROMPTS[circuit](draw, seed, draw.randint(SHORTEST, LONGEST))


def previous_token(draw: random.Random, seed: int, n: int) -> Planted:
    """Make a prompt whose answer is the token before the last."""
    ids = [draw.choice(LETTERS) for _ in range(n)]
    return Planted("previous token", seed, ids, ids[-2], n - 2, ())


def induction(draw: random.Random, seed: int, n: int, circuit: str = "induction") -> Planted:
    """Make a prompt ``… A B … A``, whose answer is B."""
    repeated, *others = draw.sample(LETTERS, len(LETTERS))
    ids = [draw.choice(others) for _ in range(n - 1)] + [repeated]
    first = draw.randint(1, n - 4)
    ids[first] = repeated
    return Planted(circuit, seed, ids, ids[first + 1], first + 1, (first, n - 1))


def two_hops(draw: random.Random, seed: int, n: int) -> Planted:
    """Make a prompt with a digit and then a hub of each colour; the last token asks for the digit of one colour."""
    ids = [draw.choice(LETTERS) for _ in range(n)]
    places = sorted(draw.sample(range(1, n - 1), 2 * COLOURS))
    digits, hubs = [], []
    colours = draw.sample(range(COLOURS), COLOURS)
    for k, colour in enumerate(colours):  # a digit comes before its hub; other colours may come in between
        digits.append(places[k])
        ids[places[k]] = draw.choice(DIGITS[colour])
    for place, colour in zip(places[COLOURS:], draw.sample(colours, COLOURS), strict=True):
        hubs.append((colour, place))
        ids[place] = HUBS[colour]
    chosen = draw.randrange(COLOURS)
    ids[-1] = QUERIES[colours[chosen]]
    hub = next(place for colour, place in hubs if colour == colours[chosen])
    return Planted("two hops", seed, ids, ids[digits[chosen]], digits[chosen], (hub, n - 1), hub)


def sinks(draw: random.Random, seed: int, n: int) -> Planted:
    """Make an induction prompt with a sink that is not on the route."""
    base = induction(draw, seed, n, "sinks")
    free = [i for i in range(1, n - 1) if i not in (base.source, *base.route)]
    ids = list(base.ids)
    ids[draw.choice(free)] = SINK
    return Planted("sinks", seed, ids, base.answer, base.source, base.route)


PROMPTS: Mapping[str, Callable[[random.Random, int, int], Planted]] = {
    "previous token": previous_token,
    "induction": induction,
    "two hops": two_hops,
    "sinks": sinks,
}


def replacements(case: Planted, position: int) -> list[int]:
    """Return other tokens that may replace the one at a position: of the same kind, without opening another route."""
    own = case.ids[position]
    kinds: list[Sequence[int]] = [LETTERS, *DIGITS]
    kind = next((kind for kind in kinds if own in kind), LETTERS)
    return [t for t in kind if t != own and t not in [case.ids[i] for i in case.route]]


def interventions(case: Planted, tries: int) -> tuple[list[list[int]], list[int]]:
    """Return prompts with one token replaced, and what the circuit must answer to each.

    The answer follows the source, for `tries` other tokens there, and stays when a token off the route changes.
    """
    draw = random.Random(f"interventions {case.circuit} {case.seed}")
    prompts, answers = [], []
    for position in range(len(case.ids)):
        if position in case.route:
            continue
        others = replacements(case, position)
        for token in draw.sample(others, min(tries, len(others)) if position == case.source else 1):
            prompts.append([*case.ids[:position], token, *case.ids[position + 1 :]])
            answers.append(token if position == case.source else case.answer)
    return prompts, answers
