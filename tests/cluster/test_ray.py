"""The job on Ray: the same bytes as on one machine, whoever is killed; and no words but ours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    CORES,
    below,
    command,
    content,
    explain,
    parts_done,
    processes,
    until,
    workers_of,
)

from attnflow.corpus.cluster import Shape, shape
from attnflow.errors import InputError

pytest.importorskip("ray", reason="the job on Ray needs ray: pip install 'attnflow[ray]'")
pq = pytest.importorskip("pyarrow.parquet", reason="a corpus is kept as parquet")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")

SAID = "300 texts, {tokens} tokens, 25 parts in {output}\nexplained: 297\nerror, empty: 1\nerror, encoding: 1\nerror, too long: 1\n"


def test_a_local_cluster(corpus: Path, one_machine: dict[str, bytes], ray_home: Path, tmp_path: Path) -> None:
    """Two workers; each text that fails is a row; nothing is said but what was done, and no process stays."""
    output = tmp_path / "out"
    done = explain(corpus, output, "--ray", "--workers", "2")
    assert done.stderr == ""
    assert done.returncode == 3
    tokens = json.loads(one_machine["_manifest.jsonl"].splitlines()[-1])["tokens"]
    assert re.fullmatch(
        re.escape(SAID.format(tokens=f"{tokens:,}", output=output)) + r"in [0-9.]+ s\n", done.stdout
    ), done.stdout
    assert content(output) == one_machine
    rows = pq.read_table(output, columns=["row", "error", "message"]).to_pylist()
    assert [row["row"] for row in rows] == list(range(300))
    assert {row["row"]: row["error"] for row in rows if row["error"]} == {20: "empty", 100: "encoding", 250: "too long"}
    until(lambda: not of_home(ray_home), "the end of the local cluster", 20)


def of_home(home: Path) -> list[str]:
    """What runs of Ray with its files there, other than the shared cluster, which begins later or is passed over."""
    return [line for _, line in processes().values() if str(home) in line and "--block" not in line]
