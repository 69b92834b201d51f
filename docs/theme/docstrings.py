"""Turns docstrings into Markdown: lines of "name: meaning" become a list, and examples become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r'((?:\w+|"[\w -]+")(?:, (?:\w+|"[\w -]+"))*): +(\S.*)|(\w+(?:, \w+)*) {2,}(\S.*)')


class PlainDocstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
            obj.docstring.parser = None  # they follow no style that has sections


def as_markdown(docstring: str) -> str:
    """Return a docstring with its lists and examples marked as such, paragraph by paragraph."""
    return "\n\n".join(_paragraph(text) for text in re.split(r"\n\s*\n", docstring.strip()))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if lines[0].startswith(">>>"):
        return "\n".join(["```pycon", *lines, "```"])
    if all(line.startswith("    ") for line in lines):
        return "\n".join(["```python", *(line[4:] for line in lines), "```"])
    result: list[str] = []
    inside = False
    for line in lines:
        item = ITEM.fullmatch(line)
        if item:
            name, meaning = (part for part in item.groups() if part)
            result += [""] if result and not inside else []  # a list begins after an empty line
            result.append(f"- **{name}**: {meaning}")
        else:
            result.append(f"  {line.strip()}" if inside else line)
        inside = inside or item is not None
    return "\n".join(result)
