"""Every cell of docs/deployments.md is right within the page's tolerance, or refused with the page's sentence."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path

import pytest

import support
from deployments.all_cells import CELLS
from deployments.cells import Cell, Refused, Right


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.group}: {cell.name}")
def test_right_or_refused(cell: Cell, tmp_path: Path) -> None:
    missing = [name for name in cell.needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    assert cell.wrong(cell.run(tmp_path)) is None


def test_a_wrong_number_is_noticed() -> None:
    def run(folder: Path) -> Right:
        return Right(0.0)

    right, refused = Cell("", "", run), Cell("", "", run, refusal="layers")
    assert right.wrong(Right(1e-6)) is None
    assert "silently wrong" in str(right.wrong(Right(1e-3)))
    assert "silently wrong" in str(right.wrong(Right(float("nan"))))
    assert "refused" in str(right.wrong(Refused("no")))
    assert refused.wrong(Refused("fewer layers")) is None
    assert "otherwise" in str(refused.wrong(Refused("no")))
    assert "not refused" in str(refused.wrong(Right(0.0)))


def test_no_cell_twice() -> None:
    assert len({(cell.group, cell.name) for cell in CELLS}) == len(CELLS)


def test_the_page_is_what_the_cells_say() -> None:
    page = support.deployments()
    assert support.DEPLOYMENTS.read_text(encoding="utf-8") == page, "make models writes it"
    assert support.DEPLOYMENTS_DATA.read_text(encoding="utf-8") == support.deployments_data(), "make models writes it"
    assert len(page.split()) <= 2000


def test_every_cell_is_on_the_page_and_in_the_data() -> None:
    rows = list(csv.DictReader(support.deployments_data().splitlines()))
    assert [(row["group"], row["case"]) for row in rows] == [(cell.group, cell.name) for cell in CELLS]
    assert all((row["outcome"] == "refused") == bool(row["refusal"]) == (not row["within"]) for row in rows)
    works, refused = support.deployments().split("## What is refused")
    counts = [int(n) for pair in re.findall(r"^\| [^|]+ \| (\d+) \| (\d+) \|", works, re.MULTILINE) for n in pair]
    assert sum(counts) == len(CELLS) and sum(counts[::2]) == sum(cell.refusal is None for cell in CELLS)
    for cell in CELLS:
        part = works if cell.refusal is None else refused
        words = re.findall(r"\w[\w.-]*", cell.name)
        assert all(word in part for word in words), cell.name
        assert cell.refusal is None or f"| …{support.general(cell.refusal)}… |" in refused
