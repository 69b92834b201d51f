"""Without Triton's experimental language, which our Hopper kernels need, the plain kernels take over."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

ON_HOPPER: Any = SimpleNamespace(is_cuda=True, device="cuda:0")


def triton(version: str, **parts: ModuleType) -> dict[str, ModuleType]:
    """Return modules that resemble Triton enough to define kernels, which never run here."""
    package, language = ModuleType("triton"), ModuleType("triton.language")
    package.__dict__.update(__version__=version, jit=lambda function: function, language=language)
    language.__dict__["__getattr__"] = lambda name: None
    package.__path__ = []
    return {"triton": package, "triton.language": language, **parts}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    ours = ("attnflow.capture.kernels", "attnflow.capture.hopper", "attnflow.capture.hopper_edges")
    for name in [n for n in sys.modules if n.split(".")[0] == "triton" or n in ours]:
        monkeypatch.delitem(sys.modules, name)
    yield monkeypatch
    for name in ours:
        sys.modules.pop(name, None)


def kernels_with(clean: pytest.MonkeyPatch, modules: dict[str, ModuleType]) -> Any:
    for name, module in modules.items():
        clean.setitem(sys.modules, name, module)
    return importlib.import_module("attnflow.capture.kernels")


@pytest.mark.parametrize("name", ["hopper", "hopper_edges"])
@pytest.mark.parametrize("version", ["3.5.1", "3.7.0", "4.0.0"])
def test_another_triton_has_the_plain_kernels(clean: pytest.MonkeyPatch, version: str, name: str) -> None:
    kernels = kernels_with(clean, triton(version))
    assert kernels.hopper_kernels(ON_HOPPER, name) is None
    assert f"attnflow.capture.{name}" not in sys.modules  # not even tried


@pytest.mark.parametrize("name", ["hopper", "hopper_edges"])
def test_a_triton_of_our_version_without_the_language(clean: pytest.MonkeyPatch, name: str) -> None:
    kernels = kernels_with(clean, triton("3.6.0"))
    assert kernels.hopper_kernels(ON_HOPPER, name) is None


@pytest.mark.parametrize("name", ["hopper", "hopper_edges"])
def test_a_language_whose_parts_have_moved(clean: pytest.MonkeyPatch, name: str) -> None:
    names = ("experimental", "experimental.gluon", "experimental.gluon.language")
    moved = {f"triton.{n}": ModuleType(f"triton.{n}") for n in names}
    for module in moved.values():
        module.__path__ = []
    moved["triton.experimental"].__dict__["gluon"] = moved["triton.experimental.gluon"]
    moved["triton.experimental.gluon"].__dict__["language"] = moved["triton.experimental.gluon.language"]
    kernels = kernels_with(clean, triton("3.6.0", **moved))
    assert kernels.hopper_kernels(ON_HOPPER, name) is None


def test_other_gpus_have_the_plain_kernels(clean: pytest.MonkeyPatch) -> None:
    clean.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    kernels = kernels_with(clean, triton("3.6.0"))
    assert kernels.hopper_kernels(ON_HOPPER) is None
