"""`attnflow show --heads`: one head, what every head attends to, or heads ranked by an alignment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnflow.cli.options import STAGES, deliver
from attnflow.errors import InputError
from attnflow.heads import ALIGNMENTS, METHODS, HeadScore
from attnflow.jobs.progress import Stages
from attnflow.result import Score
from attnflow.selection import head_name, read_head, read_layer, read_query

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.result import TokenAttention
    from attnflow.trace import Trace

Heads = Annotated[
    str | None,
    typer.Option(
        help="Show one head (L3.5 is head 5 of layer 3), the top token of every head (all), or a ranking of heads: "
        f"{', '.join(ALIGNMENTS)}, or query-key pairs such as 4-1,5-2.",
        show_default=False,
    ),
]
Pairs = list[tuple[str, str]]

ALL, RAW = "all", "raw"
SHOWN = 12
BAR = 24


def read_heads(text: str) -> tuple[int, int] | str | Pairs:
    """Parse --heads: a head, ALL, the name of an alignment, or pairs of query and key."""
    head = read_head(text)
    if head is not None or text == ALL or text in ALIGNMENTS:
        return text if head is None else head
    if re.fullmatch(r"[Ll]?[0-9]+\.[0-9]+", text.strip()):  # a head, but with a 0
        raise InputError(
            f"--heads {text!r}: layers and heads are counted from 1, so the first head of the first layer is L1.1"
        )
    pairs = [tuple(part.strip() for part in pair.split("-")) for pair in text.split(",")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise InputError(
            f"--heads {text!r}: expected a head such as L3.5, {ALL}, one of {', '.join(ALIGNMENTS)}, or pairs of query and "
            "key such as 4-1,5-2"
        )
    return [(query, key) for query, key in pairs]


def check_heads(text: str, method: str | None, options: Mapping[str, object], output: Path | None) -> None:
    """Check --heads before a model is loaded. options: the other options that were chosen."""
    chosen = read_heads(text)
    single = isinstance(chosen, tuple)
    if method is not None and not (single and method in (RAW, *METHODS)):
        raise InputError(
            f"--method {method} cannot be combined with --heads {text}: leave one of them out; one head, such as --heads "
            f"L3.5, takes {RAW}, {', '.join(METHODS)}"
        )
    if single and "layers" in options:
        raise InputError(f"--layer {options['layers']}: --heads {text} already names a layer, so leave --layer out")
    for name in (name for name in options if name not in ("words", "query", "layers", "target")):
        option = f"--{name.replace('_', '-')}"
        raise InputError(
            f"{option} cannot be combined with --heads, which shows attention weights unchanged: leave {option} out, or "
            "use --method rollout without --heads"
        )
    if output is not None and not single:
        raise InputError("--output needs a single head, such as --heads L3.5; use --json to get a ranking as JSON")


def show_heads(
    model: Model, text: Any, heads: str, query: str | None, *, method: str | None, layer: str, words: bool,
    target: str | None, truncate: bool, special: bool, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Trace the text and keep its heads, then print or save what --heads selects."""
    chosen = read_heads(heads)
    with Stages(STAGES) as stages:
        stages("model", 0, 1)
        trace: Trace = model.trace(text, target=target, truncate=truncate, keep_heads=True)
    trace = trace.words() if words else trace
    if layer not in ("last", ALL):
        number = read_layer(layer, trace.layer_count, "last or all")
        trace = replace(trace, weights={number: trace.weights[number]})
    if isinstance(chosen, tuple):
        result = _one(trace, *chosen, method, read_query(query, len(trace.tokens)))
        deliver(result if special else result.without_special(), output, as_json)
    elif chosen == ALL:
        _print_all(trace, read_query(query, len(trace.tokens)), special, as_json)
    else:
        alignment = chosen if isinstance(chosen, str) else [tuple(_place(p, trace) for p in pair) for pair in chosen]
        _print_ranking(trace.rank_heads(alignment), heads, as_json)  # type: ignore[arg-type]


def _place(text: str, trace: Trace) -> int | str:
    place = read_query(text, len(trace.tokens))
    assert place is not None
    return place


def _one(trace: Trace, layer: int, head: int, method: str | None, query: int | str | None) -> TokenAttention:
    counts = {number: int(heads.shape[0]) for number, heads in trace.weights.items()}
    if layer not in counts or head >= counts[layer]:
        last = max(counts)
        raise InputError(
            f"--heads {head_name(layer, head)!r}: expected {head_name(0, 0)} to {head_name(last, counts[last] - 1)}"
        )
    if method in METHODS:
        return trace.single_head(layer, head, method, query)
    return trace.head(layer, head, query)


def _print_all(trace: Trace, query: int | str | None, special: bool, as_json: bool) -> None:
    """Print the token that each head attends to most for one query, the largest weight first."""
    rows: list[dict[str, Any]] = []
    for layer, heads in trace.weights.items():
        for head in range(int(heads.shape[0])):
            result = trace.head(layer, head, query)
            if len(result.queries) > 1:
                raise InputError(f"--heads {ALL} needs one query: give a position or a token with --query")
            places = [i for i, own in enumerate(result.special) if special or not own]
            if not places:
                raise InputError(f"all {len(result.tokens)} tokens are special: leave --no-special out")
            at = max(places, key=lambda i: result.row()[i])
            best = Score(result.tokens[at], at, float(result.row()[at]))
            name = {"layer": layer, "head": head, "name": head_name(layer, head)}
            rows.append({**name, "token": best.token, "position": best.position, "weight": best.value})
    rows.sort(key=lambda row: (-row["weight"], row["layer"], row["head"]))
    label = result.query_tokens[0]
    if as_json:
        print(json.dumps({"query": label, "position": result.queries[0], "heads": rows}))
        return
    print(f"the token that each head attends to most, for the query {label!r}")
    for row in rows[:SHOWN]:
        print(f"{row['name']:>7}  {row['weight']:.3f}  {_bar(row['weight'])}  {row['token']!r}")
    _print_rest(len(rows))


def _print_ranking(scores: list[HeadScore], alignment: str, as_json: bool) -> None:
    if as_json:
        heads = [{"name": score.name, **score._asdict()} for score in scores]
        print(json.dumps({"alignment": alignment, "heads": heads}))
        return
    print(f"heads ranked by {alignment}: mean weight on those tokens, and how often one of them has the largest weight")
    for score in scores[:SHOWN]:
        print(f"{score.name:>7}  {score.weight:.3f}  {_bar(score.weight)}  {100 * score.top:3.0f} %")
    _print_rest(len(scores))


def _bar(weight: float) -> str:
    return ("█" * round(BAR * min(1.0, weight)) or "·").ljust(BAR)


def _print_rest(count: int) -> None:
    if count > SHOWN:
        print(f"and {count - SHOWN} more; --json prints all of them")
