"""The page of a grid: methods and metrics as a table and plots, in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnflow.edges import EDGES
from attnflow.view.page import file_of


def html_of(summary: Mapping[str, Any]) -> str:
    """Return the HTML file for the `summary` of an `attnflow.evaluate.Evaluation`.

    The paired tests are left out because of their size; the page needs only their outcomes, which are in the cells.
    """
    shown = {name: value for name, value in summary.items() if name != "tests"}
    shown["edges"] = {name: kind.about for name, kind in EDGES.items()}
    title = f"{summary['provenance'].get('model') or 'grid'} · attnflow"
    return file_of(title, shown, "grid")
