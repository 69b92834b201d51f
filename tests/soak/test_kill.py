"""A job that is killed at any moment, or fills the disk: finished work stays, and resuming gives the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a corpus needs torch")
pytest.importorskip("pyarrow", reason="a corpus needs pyarrow")

KILLS = 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the jobs that are killed are forks")
def test_fifty_kills_at_random_moments_and_more_at_every_step_of_writing(tmp_path: Path) -> None:
    script = Path(__file__).parent / "killing.py"
    words = [sys.executable, str(script), str(tmp_path), "--kills", str(KILLS), "--steps", "4"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["killed"] == KILLS and told["at steps"] == 12
    inside = [count for count in told["parts there after a kill"] if 0 < count < told["parts"]]
    assert len(inside) >= KILLS // 5  # the kills are spread over the job, not all before its first part


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the error comes from the system, below pyarrow."""
    given = tmp_path / "t.txt"
    given.write_text((" ".join(["the key to the cabinets"] * 8) + "\n") * 200)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); sys.argv[0] = 'attnflow';"
        "from attnflow.cli import main; main()"
    )
    words = ["corpus", "run", str(given), str(tmp_path / "out"), "--method", "raw,rollout,flow", "--layer", "all"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"attnflow: cannot write {str(tmp_path / 'out' / 'part-000000.parquet')!r}: ")
    assert "File too large" in done.stderr and done.stderr.endswith(
        "finished shards stay valid: make room, and run the same again with resume=True\n"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_manifest.jsonl"]
