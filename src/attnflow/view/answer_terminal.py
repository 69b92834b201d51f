"""An answer in the terminal: the prompt as running text, shaded by what the answer came from, and a table of its units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from attnflow._arrays import FloatArray
from attnflow.answer import Answer
from attnflow.capture.prompt import Units
from attnflow.result import TokenAttention
from attnflow.view.terminal import Printed, Screen, bar, heading, numbers_of, ramp, shade

LISTED = 10
"""Units in the table."""

WHOLE = 600
"""Tokens up to which the whole prompt is shown; of longer ones the parts around the strongest units, so many tokens."""

AROUND = 60
"""Tokens of one strong unit that are shown of a long prompt, at most."""

PLAIN = 0.05
"""What has less than this part of the largest share stays plain: a text in which everything is shaded is hard to read."""

BAR_CELLS = 12


class Piece(NamedTuple):
    """Neighbouring characters that are shaded alike: those of one token, or of several that share a character."""

    start: int
    end: int
    share: float
    faint: bool
    tokens: int


@dataclass(frozen=True)
class AnswerSheet:
    """All that is printed of an answer.

    chosen: the answer tokens that are explained. tokens: the share of each token of the prompt. parts: the same, signed.
    units, values: the units of the prompt and their shares. falls: where units were left out, by how much the answer's
    log-probability falls.
    """

    answer: Answer
    chosen: Sequence[int]
    unit: str
    units: Units
    tokens: TokenAttention
    parts: TokenAttention
    values: TokenAttention
    falls: TokenAttention | None

    def printed(self) -> Printed:
        return Printed(self._lines, None)

    def _lines(self, screen: Screen) -> Iterator[Text]:
        explained = screen.shown(self.tokens.query_tokens[0])
        name = f"explains {explained}" if len(self.chosen) < len(self.answer.ids) else "explains the whole answer"
        yield from heading(self.tokens, [screen.shown(self.tokens.method), screen.fitted(name, 60).rstrip()], screen)
        yield Text()
        yield self._prompt(screen)
        yield Text()
        yield self._answer(screen)
        yield Text()
        if screen.coloured:
            yield self._legend(screen)
        yield from self._table(screen)
        yield from (Text(line, style="dim") for line in self._facts(screen))

    @property
    def _most(self) -> float:
        """The largest share that is shaded."""
        return float(self.tokens.row()[~self._marks].max(initial=0.0))

    def _prompt(self, screen: Screen) -> Text:
        row = self.tokens.row()
        most = self._most or 1.0
        keep = _kept(row, self.units.groups, self.values.row())
        text, line, end, skipped = self.answer.prompt.text, Text(), 0, 0
        for piece in _pieces(self.answer, row, keep):
            if piece is None:
                skipped += 1
                continue
            if skipped:
                line.append(_gap(skipped, screen), "dim italic")
                end, skipped = piece.start, 0
            style = Style(dim=True) if piece.faint else _style(piece.share / most, screen)
            _append(line, text[end : piece.start], None, screen)
            _append(line, text[piece.start : piece.end], style, screen)
            end = piece.end
        if skipped:
            line.append(_gap(skipped, screen), "dim italic")
        else:
            _append(line, text[end:], None, screen)
        return _trimmed(line)

    def _answer(self, screen: Screen) -> Text:
        answer, line, end = self.answer, Text(), 0
        line.append("→ " if screen.blocks else "> ")
        chosen = set(self.chosen)
        for i, (start, stop) in enumerate(answer.labels.offsets):
            if stop <= end:
                continue
            style = Style(bold=True, underline=True) if i in chosen else None
            _append(line, answer.text[max(start, end) : stop], style, screen)
            end = stop
        return _trimmed(line)

    def _legend(self, screen: Screen) -> Text:
        low, high = numbers_of(np.array([PLAIN, 1.0]) * self._most)
        return Text("share of a token: ").append_text(ramp(low, high, screen))

    def _table(self, screen: Screen) -> Iterator[Text]:
        ranked = self.values if self.falls is None else self.falls
        order = np.argsort(-ranked.row(), kind="stable")[:LISTED].tolist()
        if not order:
            return
        columns = [("", [str(i) for i in order]), ("share", numbers_of(self.values.row()[order]))]
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
            text = screen.fitted(screen.shown(" ".join(self.values.tokens[i].split())), max(room, 8)).rstrip()
            yield Text(f"{line}{length:<{BAR_CELLS}} {text}", no_wrap=True, overflow="crop")
        if len(order) < len(self.values.tokens):
            yield Text(f"and {len(self.values.tokens) - len(order):,} more", style="dim")

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
        positive = np.clip(self.parts.row(), 0, None)
        positive = positive / (positive.sum() or 1.0)
        sink = "first_token" in self.tokens.provenance["evidence"]
        marks = self._marks.copy()
        marks[:1] &= not sink
        return [
            *([f"the first token {positive[0]:.0%}"] if sink else []),
            *([f"special tokens and chat marks {positive[marks].sum():.0%}"] if marks.any() else []),
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
    for unit in np.argsort(-values, kind="stable").tolist():
        group = list(groups[unit])
        strongest = group[int(np.argmax(row[group]))]
        start = max(min(strongest - AROUND // 2, group[-1] + 1 - AROUND), group[0], 0)
        keep[start : min(start + AROUND, group[-1] + 1)] = True
        if keep.sum() >= WHOLE - AROUND:
            break
    return [bool(x) for x in keep]


def _pieces(answer: Answer, row: FloatArray, keep: Sequence[bool]) -> Iterable[Piece | None]:
    """The prompt's text in order; None for each token that is not shown. Tokens without characters have no piece."""
    prompt = answer.prompt
    pieces: list[Piece | None] = []
    end = 0
    for i, (start, stop) in enumerate(prompt.offsets):
        if not keep[i]:
            pieces.append(None)
            continue
        faint = prompt.template[i] or prompt.special[i]
        last = pieces[-1] if pieces else None
        if stop > start and start < end and last is not None:
            pieces[-1] = Piece(last.start, max(stop, last.end), last.share + float(row[i]), faint, last.tokens + 1)
        elif stop > start:
            pieces.append(Piece(start, stop, float(row[i]), faint, 1))
        end = max(end, stop)
    return pieces


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
    return line
