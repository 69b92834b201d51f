"""The libraries below without their bars and notices: we report what goes wrong, in one sentence."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from attnflow.errors import InputError


def silence() -> None:
    """Switches off warnings and progress bars of torch, transformers and the hub, for as long as the process lives."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when it is first imported
    try:
        import torch  # noqa: F401
        from transformers.utils import logging
    except ImportError:
        raise InputError("models need torch and transformers: pip install 'attnflow[models]'") from None
    from huggingface_hub.utils import logging as hub_logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", module="(transformers|torch|huggingface_hub)")


@contextmanager
def silenced() -> Iterator[None]:
    """transformers without progress bars and notices inside the block."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
