"""Set up all tests: skip doctests of modules whose libraries are missing, run torch on one thread, and lift deadlines."""

import importlib.util
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += [f"src/attnflow/capture/{name}.py" for name in ("kernels", "edge_kernels")]

if importlib.util.find_spec("fastapi") is None:
    collect_ignore += ["src/attnflow/server"]

if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)  # faster for tiny models on a busy machine

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")


class Printed(NamedTuple):
    out: str
    err: str


@pytest.fixture
def attnflow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Return attnflow(*words, status=…), which runs the command in this process and returns its output."""

    def run(*words: str, status: int = 0) -> Printed:
        from attnflow.cli import main

        monkeypatch.setattr(sys, "argv", ["attnflow", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        printed = Printed(*capsys.readouterr())
        assert (stop.value.code or 0) == status, printed
        return printed

    return run
