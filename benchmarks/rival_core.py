"""FlashTrace's core, from a folder with its package: information-flow routes of a span of answer tokens."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from attnflow.errors import InputError

CHUNK, SINK_CHUNK = 128, 32
"""Tokens at a time; its package's defaults."""


def core_of(folder: str) -> ModuleType:
    """Load flashtrace/core.py alone, unchanged: its package imports spacy and others, which the core does not need."""
    path = Path(folder) / "flashtrace" / "core.py"
    if not path.is_file():
        raise InputError(f"{folder!r} has no flashtrace/core.py: expected a folder that contains FlashTrace's package")
    spec = importlib.util.spec_from_file_location("flashtrace_core", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def span_of(core: Any, model: Any, ids: Any, span: int, forward: Callable[[], Any]) -> Any:
    """Return the importance of each token to the last ``span`` ones, with attention recomputed a layer at a time.

    This follows its `_capture_model_state` and `calculate_ifr_span`; but ``forward``, which runs the model once on
    these tokens, may leave out unused logits.
    """
    import torch

    dtype = next(model.parameters()).dtype
    n = int(ids.shape[1])
    about = core.extract_model_metadata(model)
    cache, hooks = core.attach_hooks(about.layers, dtype)
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    shape = core.IFRParameters(
        n_layers=about.n_layers, n_heads_q=about.n_heads_q, n_kv_heads=about.n_kv_heads, head_dim=about.head_dim,
        group_size=about.group_size, d_model=about.d_model, sequence_length=n, model_dtype=dtype, chunk_tokens=CHUNK,
        sink_chunk_tokens=SINK_CHUNK,
    )  # fmt: skip
    with torch.no_grad():
        return core.compute_ifr_sentence_aggregate(
            sink_start=n - span, sink_end=n - 1, cache=cache, attentions=None,
            weight_pack=core.build_weight_pack(about, dtype), params=shape, rotary_emb=about.rotary_emb,
        ).token_importance_total  # fmt: skip
