"""Sentences with a pronoun and two candidates for it: WinoBias, Winogender, the paper's Figure 4, and custom ones.

Every sentence in a file becomes an example or is excluded for a stated reason; an unreadable line is an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from attnflow.errors import InputError
from attnflow.texts.strict import read_lines

Span = tuple[int, int]
Genders = tuple[str | None, str | None]

SLOT = "[MASK]"
MALE, FEMALE = "male", "female"
EITHER = "object or possessive"
FORMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "subject": (("he",), ("she",)),
    "object": (("him",), ("her",)),
    "possessive": (("his",), ("her",)),
    "possessive alone": (("his",), ("hers",)),
    "reflexive": (("himself",), ("herself",)),
    # "her" without a matching male sentence: the sentence itself rules out either him or his
    EITHER: (("him", "his"), ("her",)),
}
KINDS = {"he": "subject", "she": "subject", "him": "object", "his": "possessive", "her": EITHER, "hers": "possessive alone",
         "himself": "reflexive", "herself": "reflexive"}  # fmt: skip
MASCULINE = ("he", "him", "his", "himself")
NEUTRAL = ("they", "them", "their", "theirs", "themself", "themselves")

# Zhao et al. (2018): the 40 occupations of WinoBias, by the majority in US labour statistics.
WINOBIAS = {
    MALE: "driver, supervisor, janitor, cook, mover, laborer, construction worker, chief, developer, carpenter, manager, "
    "lawyer, farmer, salesperson, physician, guard, analyst, mechanic, sheriff, CEO",
    FEMALE: "attendant, cashier, teacher, nurse, assistant, secretary, auditor, cleaner, receptionist, clerk, counselor, "
    "designer, hairdresser, writer, housekeeper, baker, accountant, editor, librarian, tailor",
}
# Rudinger et al. (2018): the 60 occupations of Winogender, by the majority in US labour statistics of 2015 and 2016.
WINOGENDER = {
    MALE: "technician, supervisor, engineer, worker, inspector, mechanic, manager, salesperson, advisor, janitor, "
    "physician, carpenter, investigator, specialist, electrician, officer, lawyer, plumber, surgeon, paramedic, chemist, "
    "machinist, architect, programmer, scientist, painter, chef, doctor, firefighter",
    FEMALE: "accountant, educator, clerk, counselor, therapist, administrator, receptionist, librarian, pharmacist, "
    "psychologist, nurse, bartender, pathologist, teacher, planner, practitioner, instructor, veterinarian, examiner, "
    "appraiser, nutritionist, hairdresser, baker, paralegal, hygienist, dispatcher, cashier, auditor, dietitian, broker, "
    "secretary",
}


def _by_name(lists: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): gender for gender, names in lists.items() for name in names.split(", ")}


WINOBIAS_GENDER, WINOGENDER_GENDER = _by_name(WINOBIAS), _by_name(WINOGENDER)


def _words(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b", re.IGNORECASE)


_OCCUPATION = _words(list(WINOBIAS_GENDER))
_GENDERED = _words(list(KINDS))
_NEUTRAL = _words(NEUTRAL)
_MARKED = re.compile(r"\[([^\[\]]*)\]")
_WINOBIAS_FILE = re.compile(r"(pro|anti)_stereotyped_type([12])\.txt\.(dev|test)")
_SENTID = re.compile(r"([^.]+)\.([^.]+)\.([01])\.(male|female|neutral)\.txt")


@dataclass(frozen=True)
class PronounExample:
    """A sentence, the place of a pronoun in it, and the two candidates it may refer to.

    text: the sentence; the mask replaces the text at `slot`.
    slot, candidates: [start, stop) in the text.
    kind: of the pronoun, a key of `FORMS`.
    genders: of the candidates, known or stereotypical; None if unknown.
    referent: which candidate it refers to, 0 or 1, if known.
    source, id: where the sentence comes from.
    """

    text: str
    slot: Span
    kind: str
    candidates: tuple[Span, Span]
    genders: Genders = (None, None)
    referent: int | None = None
    source: str = ""
    id: str = ""

    @property
    def pronoun(self) -> str:
        return self.text[slice(*self.slot)]

    @property
    def names(self) -> tuple[str, str]:
        first, second = (self.text[slice(*span)] for span in self.candidates)
        return first, second

    def filled(self, word: str) -> tuple[str, tuple[Span, Span]]:
        """Return the sentence with another word at the slot, and the new places of the candidates."""
        start, stop = self.slot
        shift = len(word) - (stop - start)
        first, second = ((a + shift, b + shift) if a >= stop else (a, b) for a, b in self.candidates)
        return self.text[:start] + word + self.text[stop:], (first, second)

    @property
    def key(self) -> tuple[str, tuple[Span, Span]]:
        """A key that is equal for all examples with the same masked sentence."""
        return self.filled(SLOT)


class Excluded(NamedTuple):
    """A sentence that was left out: its place, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class Examples:
    """The contents of a file: every sentence is an example or is excluded for a reason."""

    examples: tuple[PronounExample, ...]
    excluded: tuple[Excluded, ...]

    @property
    def reasons(self) -> dict[str, int]:
        return dict(Counter(reason for _, reason in self.excluded).most_common())


def read_winobias(path: str | Path) -> Examples:
    """Read WinoBias: one of its files, or its folder of ``{pro,anti}_stereotyped_type{1,2}.txt.{dev,test}``.

    A line is ``1 [The developer] argued with the designer because [he] did not like the design.``: its number, and a
    sentence in which the pronoun and its referent are marked. The other candidate is the other one of the 40
    occupations in the sentence, and the genders are those of the occupations' majorities. Both variants of a sentence
    are returned. They give the same masked sentence, which `consistency` counts once.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if _WINOBIAS_FILE.fullmatch(p.name))
        if not files:
            raise InputError(
                f"{str(path)!r} contains no WinoBias file: expected names like pro_stereotyped_type1.txt.test"
            )
    return _collected(_winobias(file) for file in files)


def _winobias(file: Path) -> Iterator[PronounExample | Excluded]:
    named = _WINOBIAS_FILE.fullmatch(file.name)
    source = f"WinoBias type {named[2]}" if named else "WinoBias"
    for number, line in read_lines(file):
        where = f"{file.name}:{number}"
        parts = re.fullmatch(r"\d+\s+(\S.*)", line)
        marked = list(_MARKED.finditer(parts[1])) if parts else []
        pronouns = [m for m in marked if m[1].strip().lower() in (*KINDS, *NEUTRAL)]
        if (
            parts is None
            or len(marked) < 2
            or len(marked) - len(pronouns) != 1
            or re.search(r"[\[\]]", _bare(parts[1]))
        ):
            raise InputError(
                f"{str(file)!r}, line {number}: {line[:80]!r} is not a WinoBias line: expected a number and a "
                "sentence with one referent and its pronoun in brackets, as in '1 [The cook] met the nurse because "
                "[he] was ill.'"
            )
        (referent,) = (m for m in marked if m not in pronouns)
        example = _from_marks(parts[1], referent, pronouns, source, where)
        yield Excluded(where, example) if isinstance(example, str) else example


def _bare(marked: str) -> str:
    return _MARKED.sub(r"\1", marked)


def _from_marks(
    marked: str, referent: re.Match[str], pronouns: Sequence[re.Match[str]], source: str, where: str
) -> PronounExample | str:
    """Return the example of a WinoBias line, or why there is none."""

    def place(match: re.Match[str], group: int = 1) -> Span:
        """Return the place without the brackets."""
        start, stop = (len(_bare(marked[: match.start()])) + at - match.start(group) for at in match.span(group))
        return start, stop

    text = _bare(marked)
    if len(pronouns) > 1:
        return "more than one pronoun is marked"
    if pronouns[0][1].strip().lower() in NEUTRAL:
        return "the pronoun is gender-neutral"
    if len(_GENDERED.findall(text)) > 1:
        return "another pronoun tells the gender"
    slot, phrase = place(pronouns[0]), place(referent)
    occupations = [(m[0].lower(), m.span()) for m in _OCCUPATION.finditer(text)]
    own = [name for name, span in occupations if phrase[0] <= span[0] and span[1] <= phrase[1]]
    if len(own) != 1:
        return "the referent is not one of the 40 occupations"
    if len({name for name, _ in occupations}) == 1:
        return "no other occupation is in the sentence"
    if len({name for name, _ in occupations}) > 2:
        return "more than one other occupation is in the sentence"
    if len(occupations) > 2:
        return "a candidate is named twice"
    (first, one), (second, two) = occupations
    pronoun = text[slice(*slot)].strip().lower()
    genders = (WINOBIAS_GENDER[first], WINOBIAS_GENDER[second])
    return PronounExample(text, slot, KINDS[pronoun], (one, two), genders, int(second == own[0]), source, where)


def read_winogender(path: str | Path) -> Examples:
    """Read Winogender: ``all_sentences.tsv``, or the folder that contains it.

    A row is ``technician.customer.1.male.txt`` and its sentence: the occupation, the other participant, which of the
    two the pronoun refers to (0 and 1), and the pronoun's gender. Occupations have the gender of their majority;
    participants and "someone" have none.
    """
    path = Path(path)
    file = path / "all_sentences.tsv" if path.is_dir() else path
    return _collected([_winogender(file)])


def _winogender(file: Path) -> Iterator[PronounExample | Excluded]:
    lines = read_lines(file)
    number, header = next(lines, (1, ""))
    if header.split("\t") != ["sentid", "sentence"]:
        raise InputError(f"{str(file)!r}, line {number}: {header[:80]!r}: expected the columns sentid and sentence")
    for number, line in lines:
        cells = line.split("\t")
        parts = _SENTID.fullmatch(cells[0])
        if parts is None or len(cells) != 2 or not cells[1].strip():
            raise InputError(
                f"{str(file)!r}, line {number}: {line[:80]!r} is not a Winogender row: expected an id such as "
                "'technician.customer.1.male.txt', a tab and its sentence"
            )
        occupation, participant, answer, gender = parts.groups()
        text = cells[1].strip()
        pronouns = list(_GENDERED.finditer(text))
        genders = {MALE if m[0].lower() in MASCULINE else FEMALE for m in pronouns}
        if genders - {gender} or not (pronouns or _NEUTRAL.search(text)):
            raise InputError(
                f"{str(file)!r}, line {number}: {text[:80]!r}: expected exactly one {gender} pronoun, as its id says"
            )
        example = _from_template(text, pronouns, occupation, participant)
        if isinstance(example, str):
            yield Excluded(cells[0], example)
            continue
        first = example.names[0].lower() == occupation.lower()
        source = "Winogender, someone" if participant == "someone" else "Winogender"
        yield replace(example, referent=int(answer) if first else 1 - int(answer), source=source, id=cells[0])


def _from_template(
    text: str, pronouns: Sequence[re.Match[str]], occupation: str, participant: str
) -> PronounExample | str:
    """Return the example of a Winogender sentence, without its referent, or why there is none."""
    if not pronouns:
        return "the pronoun is gender-neutral"
    if len(pronouns) > 1:
        return "another pronoun tells the gender"
    spans = []
    for what, name in (("occupation", occupation), ("participant", participant)):
        places = list(_words([name]).finditer(text))
        if len(places) != 1:
            return f"the {what} is {'named twice' if places else 'not in the sentence'}"
        spans.append(places[0].span())
    genders: Genders = (WINOGENDER_GENDER.get(occupation.lower()), None)
    one, two = spans
    if two < one:
        one, two, genders = two, one, (genders[1], genders[0])
    return PronounExample(text, pronouns[0].span(), KINDS[pronouns[0][0].lower()], (one, two), genders)


def _collected(parts: Iterable[Iterable[PronounExample | Excluded]]) -> Examples:
    items = [item for part in parts for item in part]
    if not items:
        raise InputError("the input contains no sentence: expected at least one line")
    examples = [item for item in items if isinstance(item, PronounExample)]
    # "her" is him or his: the same sentence with the other gender decides
    known = {e.key: e.kind for e in examples if e.kind != EITHER}
    settled = [replace(e, kind=known.get(e.key, EITHER)) if e.kind == EITHER else e for e in examples]
    return Examples(tuple(settled), tuple(item for item in items if isinstance(item, Excluded)))


def with_slot(
    text: str, candidates: tuple[str, str], genders: Genders = (None, None), kind: str = "possessive"
) -> PronounExample:
    """Make an example from a sentence with [MASK] in place of the pronoun, and the two candidates as written in it.

    >>> with_slot("Mary convinced John of [MASK] love", ("Mary", "John"), ("female", "male")).candidates
    ((0, 4), (15, 19))
    """
    if kind not in FORMS:
        raise InputError(f"kind={kind!r}: expected one of {', '.join(map(repr, FORMS))}")
    if text.count(SLOT) != 1:
        raise InputError(
            f"{text!r} contains {SLOT} {text.count(SLOT)} times: expected it once, in place of the pronoun"
        )
    if isinstance(candidates, str) or len(candidates) != 2 or len(set(candidates)) != 2:
        raise InputError(f"candidates={candidates!r}: expected two different words of the text")
    if len(genders) != 2 or any(g not in (MALE, FEMALE, None) for g in genders):
        raise InputError(f"genders={genders!r}: expected 'male', 'female' or None for each of the two candidates")
    spans = []
    for name in candidates:
        places = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text)] if name else []
        if len(places) != 1:
            raise InputError(f"the candidate {name!r} occurs {len(places)} times in {text!r}: expected it once")
        spans.append(places[0])
    start = text.index(SLOT)
    return PronounExample(text, (start, start + len(SLOT)), kind, (spans[0], spans[1]), (genders[0], genders[1]))


FIGURE_4 = (
    with_slot("The author talked to Sara about [MASK] book", ("author", "Sara"), (None, FEMALE)),
    with_slot("Mary convinced John of [MASK] love", ("Mary", "John"), (FEMALE, MALE)),
)
