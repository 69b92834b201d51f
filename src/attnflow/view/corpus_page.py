"""The page of a corpus: which tokens receive attention, how far the views agree and where they do not, in one file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attnflow.view.page import file_of


def html_of(summary: Mapping[str, Any]) -> str:
    """The whole file, of what `attnflow.corpus.corpus_report.summarize` gives, with two more entries.

    pages: the rows whose texts have a page of their own beside this one, texts/<row>.html.
    missing: a sentence on those that have none, or None.
    Whole texts stay out, which may be long: the page shows their tokens. So does the folder of the input: pages are shared.
    """
    texts = {
        row: {name: value for name, value in text.items() if name not in ("text", "pair")}
        for row, text in summary["disagreement"]["texts"].items()
    }
    source = re.split(r"[\\/]", (summary["input"] or "").rstrip("\\/"))[-1] or None
    shown = {**summary, "input": source, "disagreement": {**summary["disagreement"], "texts": texts}}
    title = f"{summary['folder']} · attnflow"
    return file_of(title, shown, "corpus")
