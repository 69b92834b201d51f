"""An answer in the terminal: the prompt as running text, shaded by what the answer came from, and a table of its units."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from attnflow._arrays import FloatArray
from attnflow.answer import SHARES, Answer
from attnflow.answer_rows import shares
from attnflow.capture.prompt import Units
from attnflow.result import TokenAttention
from attnflow.source_methods import COMBINED, FADING
from attnflow.view.running_text import pieces
from attnflow.view.terminal import Printed, Screen, bar, heading, numbers_of, ramp, shade

LISTED = 10
"""Units in the table."""

WHOLE = 600
"""Tokens up to which the whole prompt is shown; of longer ones the parts around the strongest units."""

PARTS = 6
"""Units of a long prompt that are shown."""

AROUND = 60
"""Tokens of one of them that are shown, at most."""

GAP = 20
"""What is left out between two of them is at least so many tokens."""

PLAIN = 0.05
"""What has less than this part of the largest share stays plain: a text in which everything is shaded is hard to read."""

MEANINGS = {
    COMBINED: "what the answer read from them and how fast it falls as attention to them fades (combined)",
    FADING: "how fast the answer falls as attention to them fades (fading)",
}

LEAST = 0.0005
"""A share outside of all units is told where three digits show it."""

BAR_CELLS = 12


@dataclass(frozen=True)
class AnswerSheet:
    """All that is printed of an answer.

    chosen: the answer tokens that are explained. tokens: the share of each token of the prompt.
    units, values: the units of the prompt and their shares. falls: where units were left out, by how much the answer's
    log-probability falls.
    """

    answer: Answer
    chosen: Sequence[int]
    unit: str
    units: Units
    tokens: TokenAttention
    values: TokenAttention
    falls: TokenAttention | None

    def printed(self) -> Printed:
        return Printed(self._lines, None)

    def _lines(self, screen: Screen) -> Iterator[Text]:
        explained = screen.shown(self.tokens.query_tokens[0])
        name = f"explains {explained}" if len(self.chosen) < len(self.answer.ids) else "explains the whole answer"
        yield from heading(self.tokens, [self.values.method, screen.fitted(name, 60).rstrip()], screen)
        yield Text()
        yield self._prompt(screen)
        yield Text()
        yield self._answer(screen)
        yield Text()
        if screen.coloured:
            yield self._legend(screen)
        yield from self._table(screen)
        yield from (Text(line, style="dim") for line in self._facts(screen))
        yield from (Text(screen.shown(note)) for note in self.values.reliability)

    @property
    def _most(self) -> float:
        """The largest share that is shaded."""
        return float(self.tokens.row()[~self._marks].max(initial=0.0))

    def _prompt(self, screen: Screen) -> Text:
        prompt, row, marks = self.answer.prompt, self.tokens.row(), self._marks
        keep = _kept(row, self.units.groups, self.values.row())
        line, skipped = Text(), 0
        for piece in pieces(len(prompt.text), prompt.offsets):
            tokens = list(piece.tokens)
            if tokens and not keep[tokens[0]]:
                skipped += len(tokens)
                continue
            if skipped and not tokens:  # what stands between tokens goes with those before it
                continue
            text = prompt.text[piece.start : piece.end]
            if skipped:
                line.append(_gap(skipped, screen), "dim italic")
                text, skipped = text.lstrip(), 0
            share = float(row[tokens].sum()) / (self._most or 1.0)
            style = Style(dim=True) if marks[tokens].any() else _style(share, screen)
            _append(line, text, style, screen)
        if skipped:
            line.append(_gap(skipped, screen), "dim italic")
        return _trimmed(line)

    def _answer(self, screen: Screen) -> Text:
        answer, chosen = self.answer, set(self.chosen)
        line = Text("→ " if screen.blocks else "> ")
        for piece in pieces(len(answer.text), answer.labels.offsets):
            style = Style(bold=True, underline=True) if chosen & set(piece.tokens) else None
            _append(line, answer.text[piece.start : piece.end], style, screen)
        return _trimmed(line)

    def _legend(self, screen: Screen) -> Text:
        low, high = numbers_of(np.array([PLAIN, 1.0]) * self._most)
        return Text(f"share of a token ({self.tokens.method}): ").append_text(ramp(low, high, screen))

    def _table(self, screen: Screen) -> Iterator[Text]:
        ranked = self.values if self.falls is None else self.falls
        order = np.argsort(-ranked.row(), kind="stable")[:LISTED].tolist()
        if not order:
            return
        kind = "share" if self.values.provenance.get("values") == SHARES else self.values.method
        columns = [("", [str(i) for i in order]), (kind, numbers_of(self.values.row()[order]))]
        if self.falls is not None:
            columns += [
                ("log p falls by", numbers_of(self.falls.row()[order])),
                ("", [self.falls.parts[i] for i in order]),
            ]
        widths = [max(map(cell_len, [head, *cells])) for head, cells in columns]
        heads = "  ".join(f"{head:>{width}}" for (head, _), width in zip(columns, widths, strict=True))
        yield Text(f"{heads}  {'':{BAR_CELLS}} {self.unit}", style="dim", no_wrap=True, overflow="crop")
        most = float(np.abs(ranked.row()).max()) or 1.0
        for place, i in enumerate(order):
            cells = [f"{cells[place]:>{width}}" for (_, cells), width in zip(columns, widths, strict=True)]
            line = "  ".join([*cells, ""])
            length = bar(max(float(ranked.row()[i]), 0.0) / most, BAR_CELLS, screen)
            room = screen.width - cell_len(line) - BAR_CELLS - 1
            text = screen.fitted(screen.shown(self._name(i)), max(room, 8)).rstrip()
            yield Text(f"{line}{length:<{BAR_CELLS}} {text}", no_wrap=True, overflow="crop")
        if len(order) < len(self.values.tokens):
            yield Text(f"and {len(self.values.tokens) - len(order):,} more", style="dim")
        outside = float(self.values.provenance.get("outside", 0.0))
        if outside >= LEAST:
            yield Text(f"in no {self.unit}: a share of {outside:.3f}", style="dim")
        if self.values.method != self.tokens.method:
            yield Text(f"{self.unit}s by {MEANINGS.get(self.values.method, self.values.method)}", style="dim")

    def _name(self, unit: int) -> str:
        """The text of a unit in one line; of a token, its characters, where tokenizers write signs for some of them."""
        start, end = self.units.ranges[unit]
        if self.unit == "token" and end > start:
            text = self.answer.prompt.text[start:end]
            return text.strip() or text
        return " ".join(self.values.tokens[unit].split())

    def _facts(self, screen: Screen) -> Iterator[str]:
        answer, count = self.answer, len(self.answer.ids)
        each = float(np.exp(answer.log_probabilities.mean()))
        likely = f"probability {answer.probability:.3g}" + (f", {each:.2f} a token" if count > 1 else "")
        yield (
            f"The model wrote this answer: {likely}."
            if answer.written
            else (f"This answer was given, and not written by the model here: {likely}.")
        )
        sums = self.tokens.provenance["evidence"]
        first = sums.get("first_token")
        addends = [
            f"prompt {sums['prompt'] - (first or 0.0):.1f}",
            *([] if first is None else [f"first token {first:.1f}"]),
            f"the answer itself {sums['answer']:.1f}",
            f"constants {sums['constants']:.1f}",
        ]
        yield f"Log-odds {sums['log_odds']:.1f}: {', '.join(addends)}."
        unshaded = self._unshaded()
        if unshaded:
            yield f"Not shaded, of all that speaks for it: {', '.join(unshaded)}."

    def _unshaded(self) -> list[str]:
        """The share of the first token and of marks, which readers did not write, in all that speaks for the answer."""
        rows = self.answer.matrix(signed=True).values[0][list(self.chosen), : len(self.answer.prompt)]
        counted = shares(shares(rows).sum(0))
        sink = "first_token" in self.tokens.provenance["evidence"]
        marks = self._marks.copy()
        marks[:1] &= not sink
        return [
            *([f"the first token {counted[0]:.0%}"] if sink else []),
            *([f"special tokens and chat marks {counted[marks].sum():.0%}"] if marks.any() else []),
        ]

    @property
    def _marks(self) -> NDArray[np.bool_]:
        """Tokens that the chat template or the tokenizer wrote."""
        prompt = self.answer.prompt
        marks: NDArray[np.bool_] = np.logical_or(prompt.template, prompt.special)
        return marks


def _kept(row: FloatArray, groups: Sequence[Sequence[int]], values: FloatArray) -> list[bool]:
    """Which tokens of a prompt are shown: all, or those around the strongest units."""
    if len(row) <= WHOLE:
        return [True] * len(row)
    keep = np.zeros(len(row), bool)
    for unit in np.argsort(-values, kind="stable")[:PARTS].tolist():
        group = list(groups[unit])
        strongest = group[int(np.argmax(row[group]))]
        start = max(min(strongest - AROUND // 2, group[-1] + 1 - AROUND), group[0])
        keep[start : min(start + AROUND, group[-1] + 1)] = True
    for before, after in pairwise([-1, *np.flatnonzero(keep).tolist(), len(row)]):
        if after - before - 1 < GAP:
            keep[before + 1 : after] = True
    return [bool(x) for x in keep]


def _style(part: float, screen: Screen) -> Style | None:
    if part < PLAIN:
        return None
    return shade(part) if screen.coloured else Style(bold=part > 0.25)


def _gap(count: int, screen: Screen) -> str:
    dots = "…" if screen.blocks else "..."
    return f"\n{dots} {count:,} token{'s' * (count > 1)} left out {dots}\n"


def _append(line: Text, text: str, style: Style | None, screen: Screen) -> None:
    """Add running text: white space stays plain, and of several empty lines one is left."""
    for part in re.split(r"(\s+)", text):
        if part.isspace():
            line.append("\n" * min(part.count("\n"), 2) or " ")
        elif part:
            line.append(screen.shown(part), style)


def _trimmed(line: Text) -> Text:
    line.rstrip()
    while line.plain.startswith("\n"):
        line = line[1:]
    return line
