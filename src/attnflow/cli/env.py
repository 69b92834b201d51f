"""`attnflow env`: information for a bug report."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys

from attnflow import __version__
from attnflow.cli.options import AsJson
from attnflow.flow import cores

PACKAGES = (
    "numpy", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "triton", "pyarrow", "rich", "typer",
)  # fmt: skip
VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def environment() -> dict[str, str]:
    """Return versions, hardware, the state of the compiled core, and variables that affect how models load and run."""
    facts = {
        "attnflow": __version__,
        "core": _core(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cores": str(cores()),
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed"
    if facts["torch"] != "not installed":
        facts["gpu"] = _gpu()
    for variable in VARIABLES:
        if variable in os.environ:
            facts[variable] = os.environ[variable]
    return facts


def _core() -> str:
    try:
        from attnflow._core import native

        native()
    except ImportError as e:
        return f"missing: {str(e).split('.')[0]}"
    return "compiled"


def _gpu() -> str:
    try:
        import torch

        if torch.cuda.is_available():
            return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
        return "mps" if torch.backends.mps.is_available() else "none"
    except Exception as e:  # a broken torch is what the report is about
        print(f"torch cannot be loaded: {e}", file=sys.stderr)
        return f"unknown: {type(e).__name__}"


def env(as_json: AsJson = False) -> None:
    """Print versions, hardware and the state of the compiled core, for a bug report."""
    facts = environment()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
