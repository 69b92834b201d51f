"""The package as a whole: what importing it costs, what works without the compiled core, what the command says."""

import subprocess
import sys
from pathlib import Path

import attnflow

ROOT = Path(__file__).parent.parent


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "attnflow", *words], capture_output=True, text=True, timeout=120)


def test_importing_brings_neither_torch_nor_matplotlib_nor_the_core() -> None:
    done = python(
        "import sys, attnflow; print([m for m in ('torch', 'matplotlib', 'typer', 'attnflow._core._native') if m in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_importing_is_instant() -> None:
    """attnflow takes less than numpy, which it needs, and beside which it is timed; the best of five, because the machine may
    be busy."""
    code = """
import time
start = time.perf_counter()
import numpy
between = time.perf_counter()
import attnflow
print((time.perf_counter() - between) / (between - start))
"""
    assert min(float(python(code).stdout) for _ in range(5)) < 0.7


def test_the_source_tree_works_without_the_compiled_core() -> None:
    code = f"""
import sys
sys.path = [p for p in sys.path if "editable" not in p]
sys.meta_path = [f for f in sys.meta_path if "Editable" not in type(f).__name__ and "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, {str(ROOT / "src")!r})
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
    assert lines[1].startswith("flow needs attnflow's compiled core, which is not in this installation."), done.stdout


def test_one_version_everywhere() -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == attnflow.__version__ == command("--version").stdout.strip()
    assert f"version: {declared}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {declared}" in (ROOT / "CHANGELOG.md").read_text()
