"""The grid on several processes: the same results as with one, and it resumes after they were killed."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the grid needs torch")
pytest.importorskip("pyarrow", reason="the grid needs pyarrow")

from attnflow.errors import JobError
from attnflow.evaluate import grid
from attnflow.jobs.workers import crew
from helpers.grids import TEXTS, bytes_of, files
from helpers.processes import helpers_of
from helpers.small_models import bert, saved


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved(bert("BertForSequenceClassification"), tmp_path_factory.mktemp("model"))


def test_a_worker_that_dies() -> None:
    """Each worker's tool is its own process id, and its task is to send itself a signal."""
    with pytest.raises(JobError) as e, crew(None, os.getpid, 2) as do:
        assert [number for number, other in do(operator.sub, {5: os.getpid(), 7: os.getpid()}) if other] in (
            [5, 7],
            [7, 5],
        )
        assert list(do(os.kill, {0: signal.SIGINT})) == [(0, None)]  # workers ignore Ctrl-C, which is for their parent
        list(do(os.kill, {0: signal.SIGTERM}))
    assert str(e.value) == (
        "one of 2 workers died, usually because memory ran out: give fewer workers, and run the same again"
    )
    assert not helpers_of(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_workers_drop_what_they_are_at_when_told() -> None:
    with pytest.raises(KeyboardInterrupt), crew(None, partial(partial, time.sleep), 2) as do:
        for number, _ in do(operator.call, {0: 600, 1: 0, 2: 600}):
            assert number == 1 and len(helpers_of(os.getpid())) == 2
            raise KeyboardInterrupt
    assert not helpers_of(os.getpid())


def test_a_script_that_works_on_its_first_line(tmp_path: Path) -> None:
    """multiprocessing would run it again in every worker."""
    script = tmp_path / "script.py"
    script.write_text(
        "import operator, os\nfrom attnflow.jobs.workers import crew\n"
        "with crew(None, os.getpid, 2) as do:\n"
        "    print(sorted(other != 0 for _, other in do(operator.sub, {1: os.getpid(), 2: os.getpid()})))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[True, True]\n", "")


def test_what_a_worker_fails_with_comes_back() -> None:
    with pytest.raises(ZeroDivisionError), crew(None, os.getpid, 2) as do:
        list(do(operator.floordiv, {0: 0}))
    with pytest.raises(JobError, match="too few"), crew(None, partial(_failing, "too few"), 2) as do:
        list(do(operator.add, {0: 1}))


def _failing(sentence: str) -> int:
    raise JobError(sentence)


def test_a_worker_that_cannot_start() -> None:
    with pytest.raises(JobError) as e, crew(None, partial(os._exit, 3), 2) as do:
        list(do(operator.add, {0: 1}))
    assert (
        str(e.value) == "one of 2 workers could not start (its output is above): fix the cause, and run the same again"
    )


def test_the_working_folder_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's file there must not shadow a module."""
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with crew(None, os.getpid, 2) as do:
        assert all(other != 0 for _, other in do(operator.sub, {1: os.getpid()}))


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from attnflow.evaluate import grid

def die(line):
    if line.startswith("sanity"):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    source, texts, folder, options = json.loads(sys.argv[1])
    grid.SHARD = 2
    grid.run(source, texts, Path(folder), **options, workers=2, say=die)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing can be killed without warning here")
def test_two_workers_find_what_one_finds_and_it_goes_on_after_they_were_killed(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "SHARD", 2)
    options = {"edges": ["alti"], "importances": ["blank-out"], "deletions": ["mask"], "steps": 3, "sanity": 3}
    script, folder = tmp_path / "script.py", tmp_path / "grid"
    script.write_text(SCRIPT)
    given = json.dumps([source, TEXTS, str(folder), options])
    # The pipe closes when all of its writers have ended: no worker outlives its parent.
    done = subprocess.run([sys.executable, str(script), given], stdout=subprocess.PIPE, timeout=600)
    assert done.returncode == -signal.SIGKILL
    assert [len(list(folder.glob(f"{stage}/*.parquet"))) for stage in grid.STAGES] == [3, 3, 1]
    before = files(folder)
    lines: list[str] = []
    found = grid.run(source, TEXTS, folder, **options, workers=1, say=lines.append)
    shown = [line.split(" texts")[0] for line in lines]
    assert shown in (["sanity: 2 of 3", "sanity: 3 of 3"], ["sanity: 1 of 3", "sanity: 3 of 3"])  # in any order
    assert {k: v for k, v in before.items() if k != "_manifest.jsonl"}.items() <= files(folder).items()
    one = grid.run(source, TEXTS, tmp_path / "one", **options, workers=1)
    assert bytes_of(found) == bytes_of(one) and found.provenance == one.provenance
    assert np.isfinite(found.seconds).all() and np.isfinite(found.pass_seconds).all()
