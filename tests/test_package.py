"""The package as a whole: the cost of importing it, what works without the compiled core, and the command."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import attnflow

ROOT = Path(__file__).parent.parent


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "attnflow", *words], capture_output=True, text=True, timeout=120)


def test_importing_brings_numpy_and_little_else() -> None:
    """`import attnflow` is fast: it loads only numpy, a few small Python modules, and no room above the arrays."""
    code = """
import sys, numpy
before = set(sys.modules)
import attnflow
print(*sorted(set(sys.modules) - before))
"""
    modules = set(python(code).stdout.split())
    foreign = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"numpy"}
    assert foreign == {"attnflow"}
    assert "attnflow._core._native" not in modules  # the first flow loads it
    rooms = ("capture", "edges", "importance", "model", "evaluate", "jobs", "corpus", "view", "server", "cli", "paper")
    assert not {f"attnflow.{room}" for room in rooms} & modules
    assert not {"asyncio", "concurrent", "email", "http", "logging", "multiprocessing", "sqlite3", "unittest"} & modules


def test_the_source_tree_works_without_the_compiled_core() -> None:
    code = f"""
import sys
sys.path = [p for p in sys.path if "editable" not in p]
sys.meta_path = [f for f in sys.meta_path if "Editable" not in type(f).__name__ and "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, {str(ROOT / "src")!r})
sys.modules["attnflow._core._native"] = None  # also where it was built in the source tree
import numpy as np, attnflow as af
assert af.__file__.startswith({str(ROOT / "src")!r}), af.__file__
A = af.attention_graph(np.full((2, 1, 3, 3), 1 / 3))
print(af.rollout(A).shape, af.merge(A, [[0], [1, 2]]).shape, af.single_head(np.full((2, 1, 3, 3), 1 / 3), 1, 0).shape)
try:
    af.flow(A)
except ImportError as e:
    print(e)
"""
    done = python(code)
    lines = done.stdout.splitlines()
    assert lines[0] == "(2, 3, 3) (2, 2, 2) (3, 3)", done.stderr
    assert lines[1].startswith("flow needs attnflow's compiled core, which this installation does not have."), (
        done.stdout
    )


def test_one_version_everywhere() -> None:
    version = attnflow.__version__
    assert version == command("--version").stdout.strip()
    assert version == importlib.metadata.version("attnflow"), (
        "run make again: version.py changed since the installation"
    )
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version: "{version}"\n' in (ROOT / "packaging" / "recipe.yaml").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_help_lists_what_a_user_does_in_order() -> None:
    from attnflow.cli import COMMANDS

    shown = command("--help").stdout
    places = [shown.index(f"\n│ {name} ") for name in COMMANDS]
    assert places == sorted(places) and list(COMMANDS) == [
        "show", "answer", "similarity", "compare", "figure", "evaluate", "corpus", "serve", "reproduce", "env",
    ]  # fmt: skip
