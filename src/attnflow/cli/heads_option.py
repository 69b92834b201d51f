"""`attnflow show --heads`: one head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.errors import InputError
from attnflow.heads import METHODS
from attnflow.selection import head_name, read_head, read_query

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

Heads = Annotated[str | None, typer.Option(help="Show one head: L3.5 is head 5 of layer 3.", show_default=False)]

RAW = "raw"


def read_heads(text: str) -> tuple[int, int]:
    """Parse --heads: layer and head, counted from 0."""
    head = read_head(text)
    if head is None:
        raise InputError(
            f"--heads {text!r}: expected a head such as L3.5, with layers and heads counted from 1; to rank heads, use "
            "Trace.rank_heads in Python"
        )
    return head


def check_heads(text: str, method: str | None, options: Mapping[str, object]) -> None:
    """Check --heads before a model is loaded. options: the other options that were chosen."""
    read_heads(text)
    if method is not None and method not in (RAW, *METHODS):
        raise InputError(f"--method {method}: with --heads, expected {RAW}, {', '.join(METHODS)}")
    if "layers" in options:
        raise InputError(f"--layer {options['layers']}: --heads {text} already names a layer, so leave --layer out")
    for name in (name for name in options if name not in ("words", "query", "target")):
        option = f"--{name.replace('_', '-')}"
        raise InputError(
            f"{option} cannot be combined with --heads, which shows attention weights unchanged: leave {option} out, or "
            "use --method rollout without --heads"
        )


def one_head(
    model: Model, text: Any, heads: str, query: str | None, *, method: str | None, words: bool, target: str | None,
    truncate: bool,
) -> TokenAttention:  # fmt: skip
    """Trace the text and return the head that --heads names: its own attention, or a method that follows it down."""
    layer, head = read_heads(heads)
    trace: Trace = model.trace(text, target=target, truncate=truncate, keep_heads=True)
    trace = trace.words() if words else trace
    counts = {number: int(weights.shape[0]) for number, weights in trace.weights.items()}
    if layer not in counts or head >= counts[layer]:
        last = max(counts)
        raise InputError(
            f"--heads {head_name(layer, head)!r}: expected {head_name(0, 0)} to {head_name(last, counts[last] - 1)}"
        )
    place = read_query(query, len(trace.tokens))
    return trace.single_head(layer, head, method, place) if method in METHODS else trace.head(layer, head, place)
