"""What an editor knows about the public names: mypy checks the programs in tests/types, with torch's own types.

Programs named `ok_…` pass. Programs named `wrong_…` fail at every line that ends in `# error: CODE`, and nowhere else.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "types"
PROGRAMS = sorted(FOLDER.glob("*.py"))

Errors = dict[str, dict[int, set[str]]]


@pytest.fixture(scope="module")
def errors() -> Errors:
    """Return the failing lines of each program and their codes, from one run because reading torch takes seconds."""
    pytest.importorskip("torch", reason="the programs give tensors to attnflow")
    pytest.importorskip("mypy", reason="mypy is not installed; make test installs it")
    cache = ROOT / ".mypy_cache" / "types"
    words = ["--config-file", FOLDER / "mypy.ini", "--cache-dir", cache, "--no-error-summary", *PROGRAMS]
    run = subprocess.run([sys.executable, "-m", "mypy", *map(str, words)], capture_output=True, text=True, timeout=300)
    messages = [line for line in run.stdout.splitlines() if ": note: " not in line]
    assert run.stderr == ""
    programs: Errors = {path.name: {} for path in PROGRAMS}
    for message in messages:
        error = re.fullmatch(r"(.+?):(\d+): error: .*\[([\w-]+)\]", message)
        assert error, message
        programs[Path(error[1]).name].setdefault(int(error[2]), set()).add(error[3])
    return programs


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs(program: Path, errors: Errors) -> None:
    marks = {
        number: re.search(r"# error: (\S+)$", line) for number, line in enumerate(program.read_text().splitlines(), 1)
    }
    expected = {number: {mark[1]} for number, mark in marks.items() if mark}
    assert bool(expected) == program.stem.startswith("wrong_")
    assert errors[program.name] == expected
