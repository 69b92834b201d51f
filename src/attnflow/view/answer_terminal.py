"""An answer in the terminal: the prompt shaded by what the answer came from, and a table of its units."""

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
from attnflow.capture.prompt import Units
from attnflow.errors import InputError
from attnflow.reliability import percent
from attnflow.result import TokenAttention
from attnflow.source_methods import COMBINED, FADING
from attnflow.view.running_text import pieces
from attnflow.view.terminal import Printed, Screen, bar, heading, numbers_of, patch_lines, ramp, shade

LISTED = 10
"""Number of units in the table."""

WHOLE = 600
"""Longest prompt, in tokens, that is shown in full. Longer ones are shown around their strongest units."""

PARTS = 6
"""Number of units shown of a long prompt."""

AROUND = 60
"""Maximum number of tokens shown per unit."""

GAP = 20
"""Shorter gaps between two of them are shown too."""

PLAIN = 0.05
"""Tokens below this fraction of the largest share stay unshaded, to keep the text readable."""

MEANINGS = {
    COMBINED: "what the answer reads from them, and how fast its probability falls as attention to them fades (combined)",
    FADING: "how fast the answer's probability falls as attention to them fades (fading)",
}

LEAST = 0.0005
"""Smallest share outside all units that is printed."""

BAR_CELLS = 12

PLACES = 5
"""Number of image patches in the list."""


@dataclass(frozen=True)
class AnswerSheet:
    """The printed view of an answer.

    chosen: the answer tokens to explain. tokens: the share of each prompt token.
    units, values: the units of the prompt and their shares.
    falls: how much the answer's log-probability falls without each unit, if units were left out.
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
        yield from self._image(screen)
        yield from (Text(line, style="dim") for line in self._facts(screen))
        yield from (Text(screen.shown(note)) for note in self.values.reliability)

    @property
    def _most(self) -> float:
        """The largest shaded share."""
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
            if skipped and not tokens:  # text between tokens belongs to the token before it
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
            yield Text(f"{self.unit}s ranked by {MEANINGS.get(self.values.method, self.values.method)}", style="dim")

    def _image(self, screen: Screen) -> Iterator[Text]:
        """Yield a small map of the image's patches, a list of the strongest, and one line for the rest."""
        answer = self.answer
        if not answer.prompt.image:
            return
        try:
            patches = answer.patches((self.chosen[0], self.chosen[-1] + 1))
        except InputError as e:
            yield Text(screen.shown(f"No map of the image: {e}"))
            return
        yield Text()
        patches = patches / (patches.sum() or 1.0)
        yield Text("Patches of the image, by answer edges through the vision tower:", style="dim")
        yield from patch_lines(patches, screen)
        order = np.argsort(-patches, axis=None, kind="stable")[:PLACES].tolist()
        most = float(patches.max()) or 1.0
        for i in order:
            row, column = divmod(i, patches.shape[1])
            value = float(patches.flat[i])
            if value > 0:
                name = f"image, row {row + 1} column {column + 1}"
                yield Text(f"{value:.3f}  {bar(value / most, BAR_CELLS, screen):<{BAR_CELLS}} {name}", no_wrap=True)
        rest = patches.size - len(order)
        yield Text(f"{patches.sum() - patches.ravel()[order].sum():.3f}  on {rest:,} other patches", style="dim")

    def _name(self, unit: int) -> str:
        """Return the text of a unit in one line. For a token, return its characters, not the tokenizer's spelling."""
        start, end = self.units.ranges[unit]
        if self.unit == "token" and end > start:
            text = self.answer.prompt.text[start:end]
            return text.strip() or text
        return " ".join(self.values.tokens[unit].split())

    def _facts(self, screen: Screen) -> Iterator[str]:
        answer, count = self.answer, len(self.answer.ids)
        each = float(np.exp(answer.log_probabilities.mean()))
        likely = f"probability {answer.probability:.3g}" + (f", {each:.2f} per token" if count > 1 else "")
        yield (
            f"The model wrote this answer: {likely}."
            if answer.written
            else (f"This answer was given, not written by the model: {likely}.")
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
            yield f"Not shaded: {', '.join(unshaded)} of the support for the answer."

    def _unshaded(self) -> list[str]:
        """Return the shares of the first token and of marks, which users did not write, in the support for the answer."""
        rows = self.answer.matrix(signed=True).values[0][list(self.chosen), : len(self.answer.prompt)]
        support = np.maximum(rows, 0).sum(0)  # as in the notes on reliability
        counted = support / (support.sum() or 1.0)
        sink = "first_token" in self.tokens.provenance["evidence"]
        marks = self._marks.copy()
        marks[:1] &= not sink
        return [
            *([f"the first token has {percent(counted[0])}"] if sink else []),
            *([f"special tokens and chat marks have {percent(counted[marks].sum())}"] if marks.any() else []),
        ]

    @property
    def _marks(self) -> NDArray[np.bool_]:
        """Whether each token was added by the chat template or the tokenizer."""
        prompt = self.answer.prompt
        marks: NDArray[np.bool_] = np.logical_or(prompt.template, prompt.special)
        return marks


def _kept(row: FloatArray, groups: Sequence[Sequence[int]], values: FloatArray) -> list[bool]:
    """Return which prompt tokens to show: all, or those around the strongest units."""
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
    """Append running text. White space stays unstyled, and several empty lines become one."""
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
