"""Figures 1 to 4: what they show as numbers, and the pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.evaluate.correlation import VIEWS
from attnflow.paper import pronouns
from attnflow.paper import published as paper
from attnflow.view import figure as picture

if TYPE_CHECKING:
    from attnflow.model import Model

Say = Callable[[str], None]
NOTHING = dict.fromkeys(("mean", "low", "high"), float("nan"))
OF_FIGURE = {"figure1": VIEWS, "figure2": ("raw",), "figure3": ("rollout", "flow")}


def attention_figure(model: Model, name: str) -> tuple[dict[str, Any], Any]:
    """Figures 1, 2 and 3: the numbers, and the picture.

    Figure 1 has all rows of the first example, the others the row of [CLS] of all examples.
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
                "prediction": _said(trace),
                "changed": {"text": other, "prediction": _said(changed)},
                "paper": {"right": right, "flips": flips},
                "values": {view: result.values.tolist() for view, result in results.items()},
            }
        )
    drawn = picture.layered_graph(rows[0][1]) if name == "figure1" else picture.layer_maps(rows)
    return {"figure": name, "model": model.name, "revision": model.revision, "examples": examples}, drawn


def _said(trace: Any) -> dict[str, Any] | None:
    said = trace.prediction
    return None if said is None else dict(said.top)


def pronoun_figure(
    model: Model, winobias: Path | None, winogender: Path | None, held_out: Any, say: Say
) -> tuple[dict[str, Any], Any]:
    """Figure 4, and beyond its two sentences how often each view agrees with the model's own prediction.

    winobias, winogender: where these lie; without both, there are the two sentences alone. held_out: how well the model
        predicts words of other texts, if known.
    """
    shown = [pronouns.masked_pronoun(model, e.text, e.names, e.genders, kind=e.kind) for e in pronouns.FIGURE_4]
    told: dict[str, Any] = {
        "figure": "figure4",
        "model": model.name,
        "revision": model.revision,
        "held_out": held_out,
        "examples": [e.to_dict() for e in shown],
    }
    examples: list[Any] = []
    excluded: dict[str, dict[str, int]] = {}
    for name, path, read in (
        ("WinoBias", winobias, pronouns.read_winobias),
        ("Winogender", winogender, pronouns.read_winogender),
    ):
        if path is not None:
            found = read(path)
            examples += found.examples
            excluded[name] = dict(found.reasons)
    if examples:
        say(f"{len(examples)} sentences with a pronoun and two candidates")
        told["consistency"] = pronouns.consistency(model, examples, say=say).to_dict()
        told["left out"] = excluded
    return told, picture.pronoun_figure(shown)


def table_figure(tables: Sequence[dict[str, Any]], reading: str) -> Any:
    """The tables as curves, the paper's dashed; a layer without any correlation is a gap."""
    rows = []
    for table in tables:
        ours = {
            view: [(m["mean"], m["low"], m["high"]) for m in (c["mean"] or NOTHING for c in cells)]
            for view, cells in table["all"][reading].items()
        }
        depth = len(ours["raw"])
        theirs = {view: paper.means(table["table"], view) for view in ours} if depth == 6 else None
        rows.append((f"Table {table['table'][-1]}", ours, theirs))
    return picture.correlation_curves(rows)
