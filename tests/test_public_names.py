"""`__all__` and docs/api.md list the same public names, and each of them exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import attnflow

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()
HEADINGS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
ENTRIES = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)


def entries(*headings: str) -> list[str]:
    """Return the names documented under these headings, without the modules."""
    sections = dict(zip(HEADINGS, re.split(r"^## .+$", PAGE, flags=re.MULTILINE)[1:], strict=True))
    paths = [path for heading in headings for path in re.findall(r"^::: (\S+)$", sections[heading], re.MULTILINE)]
    return sorted(path.rpartition(".")[2] for path in paths)


def test_the_package_and_the_reference_list_the_same_names() -> None:
    assert entries("On arrays", "Models", "Results", "Errors") == sorted(attnflow.__all__)


@pytest.mark.parametrize(("module", "heading"), [("importance", "Importance"), ("corpus", "Many texts")])
def test_rooms_and_the_reference_list_the_same_names(module: str, heading: str) -> None:
    pytest.importorskip("torch", reason=f"attnflow.{module} needs torch")
    assert entries(heading) == sorted(importlib.import_module(f"attnflow.{module}").__all__)


@pytest.mark.parametrize("path", ENTRIES)
def test_what_the_reference_names_exists_and_is_explained(path: str) -> None:
    pytest.importorskip("torch", reason="models need torch")
    module, _, name = path.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    assert thing.__doc__ and (thing.__module__ == module), f"{path} is defined in {thing.__module__}"


def test_every_public_name_is_reached_from_the_package() -> None:
    pytest.importorskip("torch", reason="models need torch")
    assert all(getattr(attnflow, name).__name__ == name for name in attnflow.__all__)
