"""Prompts with a known source of the answer, each built from a seed: a fact among sentences, people, variables, copies.

The prompt ends where the source gives the next words: after a question and the opening of its answer, or after the
opening of what is to be copied. Even and odd seeds share no sentence of the texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from attnflow.errors import InputError

Range = tuple[int, int]
"""Characters [start, end) of a prompt."""

FEWEST, MOST = 5, 60
"""How many sentences surround a needle."""

PEOPLE_COUNTS = (3, 12)
STEPS = (1, 3)
"""How many variables of a chain are copied from another."""

AROUND = (4, 16)
"""How many sentences surround the copied text."""

_SUBJECTS = (
    "The mayor", "A young engineer", "The farmer", "Her brother", "The old doctor", "A group of students", "The choir",
    "My neighbour", "The committee", "Nobody in the village", "The captain of the ferry", "Every visitor", "The baker",
    "A teacher from the coast",
)  # fmt: skip
_PREDICATES = (
    "walked slowly along the river.", "wrote a letter to the editor.", "wanted to repair the bridge.",
    "talked about the flood for hours.", "planted apple trees behind the school.", "sold the tractor last week.",
    "came to the market by train.", "painted the fence before the holidays.", "asked for a map of the valley.",
    "waited outside the theatre in the rain.", "promised to widen the road.", "measured the depth of the lake.",
)  # fmt: skip
SENTENCES = tuple(f"{subject} {predicate}" for predicate, subject in product(_PREDICATES, _SUBJECTS))
"""The sentences around a source if no file of sentences is given."""

THINGS = ("access code", "password", "secret word", "door code", "pass phrase", "entry code")
PLACES = (
    "archive", "north gate", "wine cellar", "library computer", "storage room", "old tower", "laboratory", "garden shed",
    "boat house", "south entrance", "workshop", "radio station", "bank vault", "city museum",
)  # fmt: skip
CODES = (
    "amber", "willow", "falcon", "copper", "velvet", "lantern", "marble", "thunder", "saffron", "walnut", "harbor",
    "pepper", "crystal", "meadow", "tiger", "orchid", "granite", "compass", "violin", "cactus", "emerald", "feather",
    "glacier", "hazel", "ivory", "jasmine", "maple", "nectar", "onyx", "pebble",
)  # fmt: skip

PEOPLE = (
    "Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack", "Karen", "Leo", "Maria", "Noah",
    "Olga", "Paul", "Rita", "Simon", "Tina", "Victor",
)  # fmt: skip

SYLLABLES = (
    "bra",
    "dol",
    "fen",
    "gri",
    "kal",
    "lor",
    "mun",
    "nev",
    "ost",
    "pim",
    "quor",
    "sil",
    "tav",
    "ul",
    "vex",
    "zor",
)


@dataclass(frozen=True)
class Relation:
    """A statement about a person: `verb` and a value. question: with a placeholder for the name."""

    verb: str
    question: str
    values: tuple[str, ...]


RELATIONS = (
    Relation("has a", "What animal does {} have?", (
        "dog", "cat", "horse", "rabbit", "parrot", "snake", "goat", "duck", "cow", "turtle", "mouse", "sheep", "pig",
        "canary",
    )),
    Relation("likes", "What does {} like?", (
        "chess", "tennis", "football", "music", "painting", "swimming", "cooking", "reading", "dancing", "fishing",
        "poetry", "golf", "hiking", "opera",
    )),
    Relation("lives in", "In which city does {} live?", (
        "Paris", "Rome", "London", "Berlin", "Madrid", "Vienna", "Oslo", "Tokyo", "Dublin", "Moscow", "Cairo", "Lisbon",
        "Athens", "Boston",
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Puzzle:
    """A prompt and its answer.

    expected: the words of the answer.
    at: where they are in the prompt, in characters.
    units: the sentences that may be left out; the question, the opening of the answer and solved examples are in none.
    chain: the numbers of the sentences that lead from the question to the answer, the one with the answer first, if
        there are several.
    """

    prompt: str
    expected: str
    at: int
    units: tuple[Range, ...]
    chain: tuple[int, ...] = ()


def written(
    before: str, lines: Sequence[str], end: str, expected: str, place: int, chain: Sequence[int] = ()
) -> Puzzle:
    """Return the puzzle of these sentences; the source is the last `expected` in sentence `place`.

    >>> puzzle = written("", ["I am.", "It is red."], "It is", "red", 1)
    >>> puzzle.prompt, puzzle.at, [puzzle.prompt[a:b] for a, b in puzzle.units]
    ('I am. It is red. It is', 12, ['I am. ', 'It is red. '])
    """
    units: list[Range] = []
    start = len(before)
    for line in lines:
        units.append((start, start + len(line) + 1))  # white space belongs to the sentence before it
        start = units[-1][1]
    at = units[place][0] + lines[place].rindex(expected)
    return Puzzle(f"{before}{' '.join(lines)} {end}", expected, at, tuple(units), tuple(chain))


def own_half(texts: Sequence[str], seed: int, *without: str) -> list[str]:
    """Return every other sentence, for even or odd seeds, without sentences that contain these words."""
    half = [text for text in texts[seed % 2 :: 2] if not any(word in text.lower() for word in without)]
    if len(half) < MOST:
        raise InputError(f"there are {len(half)} sentences for half of the seeds: expected at least {MOST}")
    return half


def needle(seed: int, texts: Sequence[str]) -> Puzzle:
    """Make a puzzle with a code among 5 to 60 sentences, uniformly distributed."""
    draw = random.Random(f"needle {seed}")
    code = draw.choice((draw.choice(CODES), str(draw.randint(1000, 9999))))
    subject = f"The {draw.choice(THINGS)} {draw.choice(('of', 'for'))} the {draw.choice(PLACES)} is"
    lines = draw.sample(own_half(texts, seed, code), draw.randint(FEWEST, MOST))
    place = draw.randint(0, len(lines))
    lines.insert(place, f"{subject} {code}.")
    return written("", lines, f"What is {subject[0].lower()}{subject[1:-3]}? {subject}", code, place)


def attributes(seed: int, texts: Sequence[str] = ()) -> Puzzle:
    """Make a puzzle with 3 to 12 people, each with an attribute; the question is about one of them."""
    draw = random.Random(f"attributes {seed}")
    people = draw.sample(PEOPLE, draw.randint(*PEOPLE_COUNTS))
    values = {relation.verb: draw.sample(relation.values, len(relation.values)) for relation in RELATIONS}
    relations = [draw.choice(RELATIONS) for _ in people]
    facts = [(f"{name} {r.verb}", values[r.verb].pop()) for name, r in zip(people, relations, strict=True)]
    place = draw.randrange(len(people))
    opening, expected = facts[place]
    question = relations[place].question.format(people[place])
    return written("", [f"{start} {value}." for start, value in facts], f"{question} {opening}", expected, place)


EXAMPLES = (
    "B1 = 38. F1 = 71. B2 = B1. F2 = F1. F3 = F2. What number is F3? The number is 71.\n"
    "B1 = 52. F1 = 64. F2 = F1. B2 = B1. B3 = B2. B4 = B3. What number is B4? The number is 52.\n"
)
"""Solved examples of tracking: without them a small model answers with another variable."""


def tracking(seed: int, texts: Sequence[str] = ()) -> Puzzle:
    """Make a puzzle with a variable copied from another in 1 to 3 steps, among one to three other such chains."""
    draw = random.Random(f"tracking {seed}")
    steps, chains = draw.randint(*STEPS), draw.randint(2, 4)
    letters = draw.sample("ACDEGHKMPRSTVWXYZ", chains)
    numbers = draw.sample([str(n) for n in range(11, 100) if str(n) not in EXAMPLES], chains)
    orders = [
        [f"{letter}1 = {number}.", *(f"{letter}{k + 1} = {letter}{k}." for k in range(1, length + 1))]
        for letter, number, length in zip(
            letters, numbers, [steps, *draw.choices(range(1, 4), k=chains - 1)], strict=True
        )
    ]
    turns = [number for number, order in enumerate(orders) for _ in order]
    draw.shuffle(turns)  # chains are interleaved, each in its own order
    rest = [iter(order) for order in orders]
    lines = [next(rest[turn]) for turn in turns]
    chain = [place for place, turn in enumerate(turns) if turn == 0]
    last = f"{letters[0]}{steps + 1}"
    return written(EXAMPLES, lines, f"What number is {last}? The number is", numbers[0], chain[0], chain)


def name(draw: random.Random) -> str:
    """Return a made-up name."""
    return "".join(draw.sample(SYLLABLES, draw.randint(2, 3))).capitalize()


FRAMES = ('The label on the door said "{}".', 'Somebody had written "{}" on the wall.', 'The note said "{}".')


def copy(seed: int, texts: Sequence[str]) -> Puzzle:
    """Make a puzzle that quotes a made-up name or number phrase among real sentences and ends in its first words."""
    draw = random.Random(f"copy {seed}")
    if draw.random() < 0.5:
        words = [name(draw), name(draw), draw.choice(("of", "from")), name(draw)]
    else:
        words = [draw.choice(CODES), draw.choice(CODES), *(str(draw.randint(100, 999)) for _ in range(2))]
    opening = draw.randint(1, 2)
    frame = draw.choice(
        ('The label on the door said "{}".', 'Somebody had written "{}" on the wall.', 'The note said "{}".')
    )
    lines = draw.sample(own_half(texts, seed), draw.randint(*AROUND))
    place = draw.randint(0, len(lines))
    lines.insert(place, frame.format(" ".join(words)))
    end = frame[: frame.index("{}")] + " ".join(words[:opening])
    return written("", lines, end, " ".join(words[opening:]), place)


def induction(seed: int, texts: Sequence[str]) -> Puzzle:
    """Make a puzzle with a rare word pair in a real sentence; the prompt ends in its first word."""
    draw = random.Random(f"induction {seed}")
    first, second = draw.sample(CODES, 2)
    *lines, last = draw.sample(own_half(texts, seed, first, second), draw.randint(*AROUND))
    place = draw.randrange(len(lines))
    words = lines[place].split()
    at = draw.randint(2, len(words) - 2)
    lines[place] = " ".join([*words[:at], first, second, *words[at:]])
    start = last.split()
    return written("", lines, " ".join([*start[: draw.randint(2, len(start) - 2)], first]), second, place)


BUILDERS: dict[str, Callable[[int, Sequence[str]], Puzzle]] = {
    "needle": needle,
    "attributes": attributes,
    "tracking": tracking,
    "copy": copy,
    "induction": induction,
}
KINDS = tuple(BUILDERS)
