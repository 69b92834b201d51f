"""The page of a corpus: which words answers rest on, in all texts and in groups, with examples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnflow.corpus.summary import summarize
from attnflow.files import check_folder_name, make_folder, write_whole
from attnflow.view.page import file_of

REPORT = "_report"


def write(
    folder: Path, output: Path | None = None, *, layer: str | None = None, source: str | Path | None = None
) -> Path:
    """Write the report, index.html, and return its path.

    output: a folder; by default, _report in the corpus folder.
    layer, source: as in `summarize`.
    """
    if output is not None:
        check_folder_name(
            Path(output), "pages", "the page is its index.html, and export_corpus() makes one CSV of the job"
        )
    page = html_of(summarize(folder, layer=layer, source=source))
    target = Path(folder) / REPORT if output is None else Path(output)
    make_folder(target)
    write_whole(target / "index.html", lambda path: path.write_text(page, encoding="utf-8"))
    return target / "index.html"


def html_of(summary: Mapping[str, Any]) -> str:
    """Return the HTML file for a result of `attnflow.corpus.summary.summarize`.

    The page contains tokens but not whole texts, which may be long, nor the folder of the input, because pages are shared.
    """
    source = re.split(r"[\\/]", (summary["input"] or "").rstrip("\\/"))[-1] or None
    return file_of(f"{summary['folder']} · attnflow", {**summary, "input": source}, "corpus")
