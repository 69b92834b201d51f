"""The page of a grid: methods and metrics as a table and as plots, in one file of HTML that asks nobody for anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnflow.view.page import STYLES, file_of

MODULES = ("colour.js", "draw.js", "state.js", "plots.js", "frame.js", "grid.js")
"""The modules of the script, each after those that it imports from."""


def html_of(summary: Mapping[str, Any]) -> str:
    """The whole file, of what `attnflow.evaluate.ranking.summarize` gives.

    The paired tests stay out, which are most of it: cells and who is ahead hold what the page tells of them.
    """
    held = {name: value for name, value in summary.items() if name != "tests"}
    title = f"{summary['provenance'].get('model') or 'grid'} · attnflow"
    return file_of(title, held, modules=MODULES, styles=(*STYLES, "grid.css"), start="showGrid")
