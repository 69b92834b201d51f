"""`attnflow show --heads`: the values of one head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.cli.options import STAGES, deliver
from attnflow.errors import InputError
from attnflow.heads import METHODS
from attnflow.jobs.progress import Stages
from attnflow.selection import head_name, read_head, read_query

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Heads = Annotated[
    str | None, typer.Option(help="Show one head: L3.5 is head 5 of layer 3, both from 1.", show_default=False)
]

RAW = "raw"


def read_heads(text: str) -> tuple[int, int]:
    """Parse --heads: the layer and the head, from 0."""
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
    if method not in (None, RAW, *METHODS):
        raise InputError(
            f"--method {method} cannot be combined with --heads {text}: leave one of them out; one head, such as --heads "
            f"L3.5, takes {RAW}, {', '.join(METHODS)}"
        )
    if "layers" in options:
        raise InputError(f"--layer {options['layers']}: --heads {text} already names a layer, so leave --layer out")
    for name in (name for name in options if name not in ("words", "query", "target")):
        option = f"--{name.replace('_', '-')}"
        raise InputError(
            f"{option} cannot be combined with --heads, which shows attention weights unchanged: leave {option} out, or "
            "use --method rollout without --heads"
        )


def show_heads(
    model: Model, text: Any, heads: str, query: str | None, *, method: str | None, words: bool, target: str | None,
    truncate: bool, special: bool, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Trace the text and keep its heads, then print or save the chosen one."""
    layer, head = read_heads(heads)
    with Stages(STAGES) as stages:
        stages("model", 0, 1)
        trace: Trace = model.trace(text, target=target, truncate=truncate, keep_heads=True)
    trace = trace.words() if words else trace
    counts = {number: int(own.shape[0]) for number, own in trace.weights.items()}
    if layer not in counts or head >= counts[layer]:
        last = max(counts)
        raise InputError(
            f"--heads {head_name(layer, head)!r}: expected {head_name(0, 0)} to {head_name(last, counts[last] - 1)}"
        )
    place = read_query(query, len(trace.tokens))
    result = trace.single_head(layer, head, method, place) if method in METHODS else trace.head(layer, head, place)
    deliver(result if special else result.without_special(), output, as_json)
