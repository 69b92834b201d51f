"""Modules that only run on a GPU are left out of the doctests where Triton is not installed."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += ["src/attnflow/capture/kernels.py", "src/attnflow/capture/hopper.py"]
