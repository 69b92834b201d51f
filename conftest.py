"""For all tests: GPU modules are left out of the doctests where Triton is not installed; torch uses one thread."""

import importlib.util

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += ["src/attnflow/capture/kernels.py", "src/attnflow/capture/hopper.py"]

if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)  # the models are tiny, and threads that wait for each other are slow on a busy machine
