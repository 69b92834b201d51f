"""The sentences of a page: what its numbers mean, and why rows should not be read as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnflow.result import TokenAttention
from attnflow.source_methods import INPUTS, METHOD

if TYPE_CHECKING:
    from attnflow.trace import Trace


def notes_of(
    trace: Trace, query: int | None, layers: Sequence[int], noted: Sequence[int], residual: float, solved: bool
) -> dict[str, list[list[str]]]:
    """Return the reliability of the rows of one query, for each method at each layer.

    query: None for a sentence embedding. layers: those that the page shows. noted: those with notes; others have none.
    solved: whether the page has flow.
    """

    def notes(name: str, layer: int) -> list[str]:
        more = {} if name == "raw" else {"residual": residual}
        return list(getattr(trace, name)(query, layer, **more).reliability) if layer in noted else []

    names = ("raw", "rollout", *(("flow",) if solved else ()))
    return {name: [notes(name, layer) for layer in layers] for name in names}


def explaining(
    importance: Sequence[TokenAttention], sentences: TokenAttention | None, unit: str, causal: bool
) -> list[str]:
    """Return what the numbers of a page mean, one sentence each."""
    lines = []
    edges = next((each for each in importance if each.method in (METHOD, INPUTS)), None)
    if edges is not None and edges.provenance.get("answer"):
        lines.append(
            f"answer edges: what each token contributes to the answer ({_answer(edges)}), as a share of its total support"
            + ("; values below 0 count against it" if (edges.values < 0).any() else "")
            + ("; the first token, where models park unused attention, is left out" if causal else "")
            + "."
        )
    others = [each for each in importance if each is not edges]
    if others and others[0].provenance.get("answer"):
        how = "".join(f"; {meaning}" for each in others if (meaning := _meaning(each)))
        names = " and ".join(each.method for each in others)
        lines.append(f"{names}: how much the answer ({_answer(others[0])}) changes with a token, up or down{how}.")
    if sentences is not None and np.isfinite(sentences.row()).any():
        values = sentences.row()
        most = int(np.nanargmax(np.abs(values)))
        change = f"{-values[most]:.3f}".replace("-", "−")
        lines.append(
            f"The sentence that matters most to the answer ({_answer(sentences)}) is "
            f"“{_short(sentences.tokens[most], 60)}”: without it, the {sentences.provenance['of']} changes by {change}."
        )
    if unit == "words":
        lines.append(
            "A word gets the sum of its pieces, in attention and in importance: long words rank high for that reason "
            "alone, and that raises ρ."
        )
    if causal:
        lines.append(
            "In a decoder, rollout and flow mostly show the position: more paths lead to early tokens. In Python, "
            "receptive_field= corrects for the mask."
        )
    return lines


def _meaning(result: TokenAttention) -> str:
    by = result.provenance.get("by")
    if result.method == "blank-out" and by:
        return f"blank-out puts {'nothing' if by == 'remove' else f'the {by} token'} in its place"
    return "gradient is the length of the derivative" if result.method == "gradient" else ""


def _answer(result: TokenAttention) -> str:
    return _short(result.provenance["answer"]["name"], 30)


def _short(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
