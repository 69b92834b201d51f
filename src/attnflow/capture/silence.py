"""Suppression of progress bars and notices of other libraries: we report what goes wrong, in one sentence."""

from __future__ import annotations

import logging as logs
import os
import warnings

from attnflow.errors import InputError

LIBRARIES = ("torchao", "torch.utils._pytree", "bitsandbytes", "accelerate")
"""Libraries that print advice on every import, or for every layer."""


def silence() -> None:
    """Switch off warnings and progress bars of torch, transformers and the hub, for the life of the process."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # read at its first import
    for name in LIBRARIES:
        logs.getLogger(name).setLevel(logs.ERROR)
    try:
        import torch  # noqa: F401
        from transformers.utils import logging
    except ImportError:
        raise InputError("models need torch and transformers: pip install 'attnflow[models]'") from None
    from huggingface_hub.utils import logging as hub_logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="(transformers|torch|huggingface_hub|bitsandbytes)")
