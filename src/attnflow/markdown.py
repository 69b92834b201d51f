"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is the head.

    >>> print(table([["", "L1"], ["raw", "0.5"]]))
    |  | L1 |
    |---|---|
    | raw | 0.5 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
