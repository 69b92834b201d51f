"""The benchmarks as commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def benchmark(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", f"benchmarks.{name}", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["flow", "--graphs", "toy"], "benchmarks: graphs 'toy': expected some of real, peaked, causal, local, uniform"),
        (["flow", "--sizes", "many"], "benchmarks: sizes 'many': expected positive integers separated by commas, for example 16,64"),
        (["flow", "--model", "nowhere"], "benchmarks: model 'nowhere': expected a folder with a config.json"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_sentence_and_status_2(words: list[str], sentence: str) -> None:
    done = benchmark(*words)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", sentence)


HELP = """
import contextlib, io, json, runpy, sys
said = {}
for name in sys.argv[1:]:
    sys.argv = ["", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
        except SystemExit as e:
            said[name] = [e.code or 0, out.getvalue()]
print(json.dumps(said))
"""


@pytest.mark.long
def test_every_benchmark_is_a_command() -> None:
    paths = sorted((ROOT / "benchmarks").glob("*.py"))
    names = [path.stem for path in paths if "__main__" in path.read_text()]
    # A process each would load torch each time.
    done = subprocess.run([sys.executable, "-c", HELP, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert list(said) == names and len(names) > 10
    for name, (status, text) in said.items():
        assert status == 0 and f"python -m benchmarks.{name}" in text, (name, text)


def test_the_benchmark_agrees_with_its_peers_and_says_who_is_missing() -> None:
    done = benchmark("flow", "--graphs", "peaked,causal", "--layers", "3", "--rounds", "1", "--budget", "0.1", "--networkx-up-to", "1", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["graph"] for row in rows} == {"peaked", "causal"}
    ours = [row for row in rows if row["solver"] == "attnflow, 1 thread"]
    assert all(row["seconds"] > 0 and row["steps"]["pairs"] == row["pairs"] for row in ours)
    assert any(row["solver"] == "scipy" and row["seconds"] for row in rows)
    for row in rows:
        assert row["seconds"] or row["note"].startswith("not installed"), row
