"""The page of a grid: methods and metrics as a table and as plots, in one self-contained file of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnflow.edges import EDGES
from attnflow.view.page import file_of


def html_of(summary: Mapping[str, Any]) -> str:
    """The whole file, of the `summary` of an `attnflow.evaluate.Evaluation`.

    The paired tests stay out, which are most of it: cells and who is ahead hold what the page tells of them.
    """
    shown = {name: value for name, value in summary.items() if name != "tests"}
    shown["edges"] = {name: kind.about for name, kind in EDGES.items()}
    title = f"{summary['provenance'].get('model') or 'grid'} · attnflow"
    return file_of(title, shown, "grid")
