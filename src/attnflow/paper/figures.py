"""Figures 1 to 4: their numbers and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import InputError
from attnflow.evaluate.correlation import VIEWS
from attnflow.paper import pronouns
from attnflow.paper import published as paper
from attnflow.view import figure as picture
from attnflow.view import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.model import Model
    from attnflow.trace import Trace

OF_FIGURE = {"figure1": VIEWS, "figure2": ("raw",), "figure3": ("rollout", "flow")}


def attention_figure(model: Model, name: str) -> tuple[dict[str, Any], Figure]:
    """Return the numbers and the picture of Figures 1, 2 and 3.

    Figure 1 has all rows of the first example; the others have the [CLS] row of all examples.
    """
    views = OF_FIGURE[name]
    examples = []
    rows = []
    for text, other, right, flips in paper.EXAMPLES[: 1 if name == "figure1" else None]:
        trace, changed = model.trace(text), model.trace(other)
        results = {view: getattr(trace, view)(query="all" if name == "figure1" else "[CLS]") for view in views}
        rows.append((text, results))
        examples.append(
            {
                "text": text,
                "tokens": list(trace.tokens),
                "prediction": _prediction(trace),
                "changed": {"text": other, "prediction": _prediction(changed)},
                "paper": {"right": right, "flips": flips},
                "values": {view: result.values.tolist() for view, result in results.items()},
            }
        )
    figure = picture.layered_graph(rows[0][1]) if name == "figure1" else picture.layer_maps(rows)
    return {"figure": name, "model": model.name, "revision": model.revision, "examples": examples}, figure


def _prediction(trace: Trace) -> dict[str, float] | None:
    return None if trace.prediction is None else dict(trace.prediction.top)


def pronoun_results(model: Model, held_out: Any) -> tuple[dict[str, Any], Figure]:
    """Return the numbers and the picture of Figure 4.

    held_out: how well the model predicts words of other texts, if known.
    """
    shown = [pronouns.masked_pronoun(model, e) for e in pronouns.FIGURE_4]
    result = {
        "figure": "figure4",
        "model": model.name,
        "revision": model.revision,
        "held_out": held_out,
        "examples": [e.to_dict() for e in shown],
    }
    return result, pronoun_figure(shown)


def pronoun_figure(examples: Sequence[pronouns.MaskedPronoun]) -> Figure:
    """Plot Figure 4: p(his) against p(her), and each view's weights from the mask to both candidates by layer.

    The bars split 1 between the two forms, in the colour of the candidate that each form implies. The squares above the
    curves show which candidate is favoured at each layer. Each set of curves has its own scale, because flows are
    larger.

    examples: from `pronouns.masked_pronoun`; all with the same views.
    """
    if not examples:
        raise InputError("there are no examples: expected at least one from masked_pronoun()")
    names = list(examples[0].weights)
    if any(list(e.weights) != names for e in examples):
        raise InputError(f"the examples have different views: expected {names} in each, as in the first one")
    with sheet.style():
        bars, tall, over, under = 0.8, 0.95, 0.5, 0.26
        left = 0.1 + sheet.room(pronouns.FORMS)
        right = 0.16 + sheet.room(sheet.label(name) for e in examples for name in e.example.names)
        wide = (sheet.PAGE - left - bars - right - 0.42 * len(names)) / len(names)
        page = sheet.empty(sheet.PAGE, (tall + over + under) * len(examples) + 0.06)
        for number, e in enumerate(examples):
            y = page.get_size_inches()[1] - (tall + over + under) * number - over - tall
            sentence = sheet.line(e.example.text, sheet.PAGE - 0.3)
            sheet.note(page, 0.04, y + tall + 0.3, sentence, style="italic", va="bottom")
            _bars(sheet.axes(page, left, y + 0.22, bars, tall - 0.4), e)
            sheet.note(page, left, y + 1.15 * tall, "prediction", va="bottom")
            for column, name in enumerate(names):
                x = left + bars + 0.42 + (wide + 0.42) * column
                at = sheet.axes(page, x, y, wide, tall)
                _candidate_curves(at, e, name, wide)
                at.text(0, 1.15, sheet.title(name), transform=at.transAxes, va="bottom")
                if column == 0:
                    at.set_ylabel("weight", size=sheet.small())
                if column == len(names) - 1:
                    _name_lines(at, e, name, tall)
    return page


def _bars(at: Axes, e: pronouns.MaskedPronoun) -> None:
    total = (e.p_male + e.p_female) or 1.0
    meant = (pronouns.implied(e.example, 1.0, 0.0), pronouns.implied(e.example, 0.0, 1.0))
    for row, (form, p, candidate) in enumerate(zip(pronouns.FORMS, (e.p_male, e.p_female), meant, strict=True)):
        at.barh(row, p / total, height=0.62, color=sheet.FAINT if candidate is None else sheet.PAIR[candidate])
        at.text(p / total + 0.04, row, f"{p / total:.2f}", va="center", size=sheet.small())
        at.text(-0.06, row, form, va="center", ha="right")
    at.set(xlim=(0, 1.25), ylim=(1.6, -0.6), xticks=[], yticks=[])
    at.spines["bottom"].set_visible(False)


def _candidate_curves(at: Axes, e: pronouns.MaskedPronoun, name: str, wide: float) -> None:
    weights = e.weights[name]
    layers = np.arange(len(weights))
    for candidate, mark in ((0, "o"), (1, "^")):
        at.plot(layers, weights[:, candidate], color=sheet.PAIR[candidate], marker=mark, markersize=2.6, clip_on=False)
    at.set(xlim=(-0.4, len(weights) - 0.6), ylim=(0, max(float(weights.max()), 1e-12) * 1.04))
    at.set_xticks(
        layers, sheet.layer_names(range(len(weights)), wide / len(weights), sheet.small()), size=sheet.small()
    )
    at.locator_params(axis="y", nbins=4)
    at.tick_params(axis="y", labelsize=sheet.small())
    for layer in layers:
        which = e.favoured(name, int(layer))
        at.scatter(
            layer, 1.08, s=9, marker="s", color=sheet.FAINT if which is None else sheet.PAIR[which], linewidths=0,
            transform=at.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip


def _name_lines(at: Axes, e: pronouns.MaskedPronoun, name: str, tall: float) -> None:
    """Write the candidates' names at the ends of their curves, moved apart if the curves meet."""
    ends = e.weights[name][-1] / at.get_ylim()[1]
    apart = 1.3 * sheet.points() / 72 / tall
    middle, half = float(ends.mean()), max(float(abs(ends[0] - ends[1])), apart) / 2
    upper = int(ends[1] > ends[0])
    for candidate, word in enumerate(e.example.names):
        y = middle + (half if candidate == upper else -half)
        at.annotate(
            sheet.label(word), (1, y), xycoords="axes fraction", xytext=(4, 0), textcoords="offset points", va="center",
            color=sheet.PAIR[candidate], fontfamily=sheet.families(word), annotation_clip=False,
        )  # fmt: skip
