"""Pages of the site that are stored elsewhere: the tutorial notebook, the changes, and the card of the embedded model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"CHANGELOG.md": "changes.md", "src/attnflow/paper/verb-number/README.md": "verb-number.md"}
NOTEBOOK = "tutorial.ipynb"


def collect(folder: Path, docs: Path = ROOT / "docs") -> None:
    """Write every page and picture of the site into a new folder, with links that fit there."""
    shutil.copytree(docs, folder, ignore=shutil.ignore_patterns("theme"))
    made = {page: _without_header((ROOT / path).read_text(encoding="utf-8")) for path, page in ELSEWHERE.items()}
    made["tutorial.md"] = notebook_page((docs / NOTEBOOK).read_text(encoding="utf-8"))
    for page, content in made.items():
        (folder / page).write_text(content, encoding="utf-8")
    for path in folder.rglob("*.md"):
        path.write_text(in_the_site(path.read_text(encoding="utf-8")), encoding="utf-8")


def in_the_site(markdown: str) -> str:
    """Point links that leave docs/, which are right in the repository, to those files' pages in the site."""
    for path, page in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{path})", f"]({page})")
    return markdown.replace("<BLANKLINE>\n", "\n")  # for doctest, not for readers


def notebook_page(text: str) -> str:
    """Return a notebook as a page: its text, and its code in fences, so that the site need not run it."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def _without_header(markdown: str) -> str:
    """Drop the settings at the start of a model card."""
    return markdown.split("\n---\n", 1)[1].lstrip() if markdown.startswith("---\n") else markdown
