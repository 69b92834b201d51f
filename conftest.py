"""For all tests: modules whose libraries are not installed are left out of the doctests; torch uses one thread."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += ["src/attnflow/capture/kernels.py", "src/attnflow/capture/hopper.py"]

if importlib.util.find_spec("fastapi") is None:
    collect_ignore += ["src/attnflow/server"]

if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)  # the models are tiny, and threads that wait for each other are slow on a busy machine
