"""Pages of the site that are kept elsewhere: the tutorial notebook, the changes, and the card of the embedded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"CHANGELOG.md": "changes.md", "src/attnflow/paper/verb-number/README.md": "verb-number.md"}
NOTEBOOK = "tutorial.ipynb"


def on_files(files: Any, config: Any) -> Any:
    made = {page: _without_header((ROOT / path).read_text(encoding="utf-8")) for path, page in ELSEWHERE.items()}
    made["tutorial.md"] = notebook_page((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8"))
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/, which are right in the repository, to where those files are in the site."""
    for path, page in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{path})", f"]({page})")
    return markdown.replace("<BLANKLINE>\n", "\n")  # which is doctest's, not the reader's


def notebook_page(text: str) -> str:
    """A notebook as a page: its text, and its code in fences, so that the site need not run it."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def _without_header(markdown: str) -> str:
    """Without the settings that a model card begins with."""
    return markdown.split("\n---\n", 1)[1].lstrip() if markdown.startswith("---\n") else markdown
