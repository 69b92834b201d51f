"""The document of a page: labels, weights, and values that are too slow to compute in a browser.

A document is plain JSON. Arrays are zlib in base64. The bytes of float32 are sorted by significance, which compresses
better; weights of long texts are rounded to eight bits. The page multiplies them: raw attention and rollout of another
query. Flows, the certificates of the strongest ones, single heads and all sentences are stored in the document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._arrays import FloatArray, to_numpy
from attnflow.errors import InputError
from attnflow.reliability import percent
from attnflow.result import TokenAttention
from attnflow.result_files import plain_numbers
from attnflow.trace_results import Chosen, natural
from attnflow.view import came_from
from attnflow.view.came_from import causal
from attnflow.view.flow_paths import certificate, level_names, strongest_words
from attnflow.view.packing import packed, precise, rounded, table
from attnflow.view.page_notes import explaining, notes_of

if TYPE_CHECKING:
    from attnflow.selection import Query
    from attnflow.trace import Trace

Progress = Callable[[str, int, int], None]

EXACT = 600_000
"""Maximum number of weights stored as float32: 223 tokens in 12 layers."""

ROUNDED = 3_600_000
"""Maximum number of weights on a page: 547 tokens in 12 layers, about 4 MB. Above it, only the largest per row."""

LARGEST = 16_000_000
"""Maximum number of weights that a browser unpacks: 730 tokens in 30 layers. Above it, only the rows of one query."""

PAIRS = 200_000
"""Maximum number of pairs for flow of every query (129 tokens in 12 layers, seconds); above it, of the chosen one."""

SEVERAL = 32
"""Above `PAIRS`, maximum number of queries for flow. For a sentence embedding, every token is a query."""

LONGEST = 2048
"""Longest text with flow; for longer ones it would take minutes."""

LONGEST_FRAMES = 512
"""The same for positions that are no text, such as frames of a sound, whose nearly uniform attention is slow to solve."""

CERTIFIED = 5
"""Number of the strongest words with the paths and the cut of their flow, at every layer up to `EXACT` weights."""

HEADS = 150_000
"""Maximum number of weights of single heads."""

UNITS = ("subwords", "words")


def of_trace(
    trace: Trace,
    *,
    query: Query = None,
    residual: float = 0.5,
    importance: Sequence[TokenAttention] = (),
    missing: str = "",
    sentences: TokenAttention | None = None,
    image: FloatArray | None = None,
    state: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    flow: bool = True,
    answered: Trace | None = None,
) -> dict[str, Any]:
    """Return the document of one trace.

    query: the positions whose rows are stored if there is no room for all, as in `Trace.flow`; the first is shown first.
    importance: importance of tokens, by `blank_out` and similar methods.
    missing: why importance is missing.
    sentences: how much the answer loses without each sentence, by `blank_out(unit="sentence")`.
    image: what a vision model saw, uint8 [height, width, 3].
    state: the initial selection: "layer", "method", "unit", "special", as in the URL fragment of the page.
    flow: whether to compute flow, the slowest part; False for a page that is shown while the rest is computed.
    answered: the trace with the answer edges of the first importance.
    """
    if not hasattr(trace, "steps"):
        raise InputError(f'a page of a {type(trace).__name__}: expected a trace with a graph (memory="graph")')
    pooled = trace.pooled if query is None else None
    if pooled is not None and pooled.refusal:
        raise InputError(f"{pooled.refusal}: give query=, a position or a token")
    if pooled is not None:
        chosen = list(pooled.positions)
        pooled = pooled if pooled.several else None
    else:
        chosen = trace.query_positions(query if query is not None or trace.default_query is not None else 0)
    if not chosen:
        raise InputError(f"query={query!r}: expected a position, a token, or several of them")
    size = trace.steps[trace.ends[-1]].weights.shape[0]
    layers = shown_layers(trace)
    count = sum(step.weights.numel() for step in trace.steps)
    first = Chosen([trace.first_query + chosen[0]])
    left_out: list[str] = []
    units: dict[str, Any] = {"subwords": _unit(trace)}
    traces = {"subwords": trace}
    if trace.patches is None and trace.picture is None and _has_words(trace):
        traces["words"] = trace.words()
        units["words"] = {**_unit(traces["words"]), "groups": traces["words"].word_groups}
    methods: dict[str, Any] = {name: {"flow": None} for name in units}
    flows: list[dict[str, Any]] = []
    reliability: dict[str, Any] = {}
    groups = {name: unit["groups"] for name, unit in units.items()}
    certified = layers if count <= EXACT else layers[-1:]
    for name, its in traces.items():
        rows = chosen if name == "subwords" else _word_positions(trace, its, chosen)
        opened = None if pooled is not None else rows
        if count > EXACT:
            methods[name]["raw"] = table(its.raw(query=opened, layer=layers))
            methods[name]["rollout"] = table(its.rollout(query=opened, layer=layers, residual=residual))
        if flow:
            notes = left_out if name == "subwords" else []
            methods[name]["flow"] = _flows(its, rows, layers, residual, progress, notes)
        solved = methods[name]["flow"] is not None
        if solved and opened is not None:
            values = _values_of(importance[0], groups[name]) if importance else None
            flows += [{"unit": name, **one} for one in _certificates(its, rows[0], values, certified, residual)]
        reliability[name] = {
            "query": len(its.tokens) if opened is None else its.first_query + rows[0],
            "notes": notes_of(its, None if opened is None else rows[0], layers, certified, residual, solved),
        }
    if not flow:
        left_out.append("Flow is still being computed.")
    answer, state = trace.prediction, state or {}
    aside = {} if answered is None else came_from.first_shares(answered, importance[0], groups)
    return _document(
        trace,
        units=units,
        prediction=None if answer is None else {"kind": answer.kind, "top": [list(one) for one in answer.top]},
        queries=None if size == len(trace.tokens) else [str(i) for i in range(size)],
        pooled=None if pooled is None else {"name": pooled.name, "weights": _pool_weights(traces)},
        firstQuery=trace.first_query,
        causal=causal(trace),
        picture=None if trace.picture is None else asdict(trace.picture),
        image=None if image is None else packed(np.ascontiguousarray(image, np.uint8)),
        residual=residual,
        layers=layers,
        ends=list(trace.ends),
        levels=level_names(trace),
        steps=[
            {
                "rows": s.weights.shape[0],
                "cols": s.weights.shape[1],
                "residual": s.residual,
            }
            for s in trace.steps
        ],
        weights=_weights(trace, count, left_out),
        exact=count <= EXACT,
        methods=methods,
        flows=flows,
        heads=_heads(trace, chosen, layers, left_out),
        importance=[
            {
                "name": result.method,
                "values": plain_numbers(result.values)[-1][0],
                "answer": result.provenance.get("answer"),
                "settings": {
                    k: result.provenance[k]
                    for k in ("by", "reduce", "of", "values", "computed")
                    if k in result.provenance
                },
                "reliability": list(result.reliability),
                "aside": aside if number == 0 else {},
            }
            for number, result in enumerate(importance)
        ],
        origin=came_from.of_rollout(trace, natural(trace) if pooled else first, residual, groups)
        if answered is None
        else came_from.of_answer(answered, importance[0], groups),
        missing=missing,
        sentences=None if sentences is None else _of_sentences(sentences),
        notes={name: explaining(importance, sentences, name, causal(trace)) for name in units},
        reliability=reliability,
        leftOut=left_out,
        state={**state, **_opening(traces, None if pooled else chosen[0], state.get("unit"))},
    )


def _document(of: Trace | TokenAttention, **more: Any) -> dict[str, Any]:
    """Return a document with all fields: those in `more`, and defaults."""
    return {
        "format": "attnflow-page", "version": 1, "text": of.text, "model": dict(of.provenance), "prediction": None,
        "units": {}, "queries": None, "firstQuery": 0, "causal": False, "patches": of.patches, "picture": None,
        "image": None,
        "residual": 0.5, "layers": [], "ends": [], "levels": [], "steps": [], "weights": None, "exact": True,
        "methods": {}, "flows": [], "heads": None, "importance": [], "origin": None, "missing": "", "sentences": None,
        "notes": {}, "reliability": {}, "leftOut": [], "pooled": None, "state": {}, **more,
    }  # fmt: skip


def _of_sentences(result: TokenAttention) -> dict[str, Any]:
    """Return how much the answer loses without each sentence, with its first and last token; null if not computed."""
    return {
        "texts": list(result.tokens),
        "positions": result.provenance["positions"],
        "values": plain_numbers(result.values)[-1][0],
        "answer": result.provenance["answer"],
        "of": result.provenance["of"],
        "reliability": list(result.reliability),
    }


def _values_of(result: TokenAttention, groups: Sequence[Sequence[int]] | None) -> FloatArray:
    """Return the values of a unit's tokens: a word has the sum of its pieces."""
    row = result.row()
    return row if groups is None else np.array([row[list(group)].sum() for group in groups])


def _longest(trace: Trace) -> int:
    """Return the maximum number of positions for flow."""
    return LONGEST if trace.text or trace.patches is not None else LONGEST_FRAMES


def _weights(trace: Trace, count: int, left_out: list[str]) -> dict[str, Any] | None:
    """Return the weights of all steps: exact, rounded, the largest of each row, or None, depending on their number."""
    if count <= EXACT:
        return packed(np.concatenate([to_numpy(s.weights).astype(np.float32).ravel() for s in trace.steps]))
    if count <= ROUNDED:
        left_out.append(
            f"The {count:,} weights are rounded to eight bits to keep the file small. Values computed from them are "
            "marked ≈. The rows of the query that the page opens with are exact."
        )
        return rounded([to_numpy(s.weights).astype(np.float64) for s in trace.steps])
    if count <= LARGEST:
        matrices = [to_numpy(s.weights).astype(np.float64) for s in trace.steps]
        most = max(1, ROUNDED // sum(len(matrix) for matrix in matrices))
        kept = sum(float(-np.partition(-m, most - 1)[:, :most].sum()) for m in matrices if m.shape[1] > most)
        kept += sum(float(m.sum()) for m in matrices if m.shape[1] <= most)
        left_out.append(
            f"Of the {count:,} weights, the page has the {most} largest of each row, rounded to eight bits: "
            f"{percent(kept / sum(float(m.sum()) for m in matrices), 1)} of all attention. Values computed from them are "
            "marked ≈. The rows of the query that the page opens with are exact."
        )
        return rounded(matrices, most)
    left_out.append(
        f"The {count:,} weights of this text would make the file too large. The graph, the flow paths and the map of a "
        "layer are left out. The rows of the query that the page opens with are exact."
    )
    return None


def _pool_weights(traces: Mapping[str, Trace]) -> dict[str, list[float]]:
    """Return the weight of each position in a sentence embedding, for every unit."""
    weights = {}
    for name, trace in traces.items():
        assert trace.pooled is not None
        own = dict(zip(trace.pooled.positions, trace.pooled.weights, strict=True))
        weights[name] = [own.get(i, 0.0) for i in range(len(trace.tokens))]
    return weights


def _opening(traces: Mapping[str, Trace], query: int | None, unit: str | None) -> dict[str, Any]:
    """Return the unit that the page opens with, and its query in that unit. A sentence embedding is past the text."""
    whole, words = traces["subwords"], traces.get("words")
    if query is None:
        name = "subwords" if unit == "subwords" or words is None else "words"
        return {"unit": name, "query": len(traces[name].tokens)}
    if unit == "subwords" or words is None:
        return {"unit": "subwords", "query": whole.first_query + query}
    return {"unit": "words", "query": words.first_query + _word_positions(whole, words, [query])[0]}


def of_result(result: TokenAttention) -> dict[str, Any]:
    """Return the document of values without a graph: from a file, one head, or a trace in linear memory."""
    values = {**table(result), "queries": list(range(len(result.queries)))}
    highest = [*([[]] * (len(result.layers) - 1)), list(result.reliability)]
    return _document(
        result,
        units={"subwords": _unit(result)},
        queries=list(result.query_tokens),
        image=None if result.image is None else packed(np.ascontiguousarray(result.image, np.uint8)),
        residual=result.provenance.get("residual", 0.5),
        layers=list(result.layers),
        methods={"subwords": {"flow": None, result.method: values}},
        reliability={"subwords": {"query": None, "notes": {result.method: highest}}},
        leftOut=[
            f"This page shows only the values of {result.method} from a saved result, without the attention graph and the "
            "model's prediction."
        ],
        state={"query": 0, "method": result.method},
    )


def rows(trace: Trace, unit: str, query: int, residual: float = 0.5) -> dict[str, Any]:
    """Return raw attention, rollout and flow of one query at all layers, for a page that does not contain them."""
    its = _of_unit(trace, unit)
    at = _query(its, query)
    layers = shown_layers(its)
    left_out: list[str] = []
    methods = {
        "raw": table(its.raw(query=[at], layer=layers)),
        "rollout": table(its.rollout(query=[at], layer=layers, residual=residual)),
        "flow": _flows(its, [at], layers, residual, None, left_out),
    }
    return {
        "unit": unit,
        "query": query,
        "methods": methods,
        "heads": _heads(its, [at], layers, []),
        "leftOut": left_out,
    }


def paths(trace: Trace, unit: str, query: int, layer: int, token: int, residual: float = 0.5) -> dict[str, Any]:
    """Return the certificate of one pair: its flow with its minimum cut, and what rollout sends along its paths."""
    its = _of_unit(trace, unit)
    at = its.first_query + _query(its, query)
    if not isinstance(layer, int) or not 0 <= layer < its.layer_count:
        raise InputError(f"layer {layer!r}: expected a number from 0 to {its.layer_count - 1}")
    if not isinstance(token, int) or not 0 <= token < len(its.tokens):
        raise InputError(f"token {token!r}: expected a position from 0 to {len(its.tokens) - 1}")
    return certificate(its, at, layer, token, residual)


def _flows(
    trace: Trace,
    chosen: Sequence[int],
    layers: list[int],
    residual: float,
    progress: Progress | None,
    left_out: list[str],
) -> dict[str, Any] | None:
    """Return flow of all queries if cheap, otherwise of those chosen."""
    n = len(trace.tokens)
    size = trace.steps[trace.ends[-1]].weights.shape[0] - trace.first_query
    if n > _longest(trace):
        left_out.append(f"Flow is left out: it takes minutes for {n:,} {'tokens' if trace.text else 'positions'}.")
        return None
    whole = len(layers) * size * n <= PAIRS
    if not whole and len(chosen) > SEVERAL:
        left_out.append(
            f"Flow is left out: for a sentence embedding, it is the mean over {n:,} tokens and takes "
            f"{len(layers) * size * n:,} maximum flows. For the flow of one token, use explain(text, query=…)."
        )
        return None
    if not whole:
        names = ", ".join(repr(trace.tokens[trace.first_query + q]) if size <= n else str(q) for q in chosen[:3])
        left_out.append(
            f"Flow was computed only for the query {names}{' and others' if len(chosen) > 3 else ''}: all pairs would take "
            f"{len(layers) * size * n:,} maximum flows. For other queries, use explain(text, query=…) or attnflow serve."
        )
    queries = list(range(size)) if whole else list(chosen)
    step = max(1, 20_000 // (n * len(layers)))
    parts = []
    for start in range(0, len(queries), step):
        if progress is not None:
            progress("flow", start, len(queries))
        parts.append(trace.flow(query=queries[start : start + step], layer=layers, residual=residual).values)
    return {
        "queries": [trace.first_query + q for q in queries],
        "values": packed(precise(np.concatenate(parts, axis=1))),
    }


def _certificates(
    trace: Trace, query: int, values: FloatArray | None, layers: Sequence[int], residual: float
) -> list[dict[str, Any]]:
    """Return the certificates of the flows to the strongest words.

    query: its number. values: how strong each token is; by default, rollout at the highest layer.
    """
    values = trace.rollout(query, layers[-1], residual).row() if values is None else values
    place = trace.first_query + query
    words = strongest_words(trace, values, place)[:CERTIFIED]
    return [certificate(trace, place, layer, token, residual) for token in words for layer in layers]


def _heads(trace: Trace, chosen: Sequence[int], layers: list[int], left_out: list[str]) -> dict[str, Any] | None:
    """Return single heads [head, query, key] of each layer, one after another, for all queries or those chosen."""
    heads = [to_numpy(trace.weights[l]) for l in layers if l in trace.weights]
    n = len(trace.tokens)
    fitting = [h for h in heads if h.ndim == 3 and h.shape[2] == n and h.shape[1] >= max(chosen, default=0) + 1]
    if not heads or len(fitting) < len(layers):
        return None
    size = sum(h.size for h in fitting)
    queries = list(range(fitting[0].shape[1]))
    if size > HEADS:
        queries = list(chosen)
        if sum(len(h) for h in fitting) * len(queries) * n > HEADS:
            left_out.append("Single heads are left out: their weights would make the file too large.")
            return None
        left_out.append("Single heads are stored only for the query that the page opens with.")
    values = np.concatenate([h[:, queries].astype(np.float32).ravel() for h in fitting])
    return {
        "queries": [trace.first_query + q for q in queries],
        "counts": [len(h) for h in fitting],
        "weights": packed(values),
    }


def _unit(of: Trace | TokenAttention) -> dict[str, Any]:
    sinks = [] if isinstance(of, TokenAttention) else [list(of.sinks([l]) or ()) for l in range(len(of.ends))]
    return {
        "tokens": list(of.tokens),
        "special": list(of.special),
        "parts": list(of.parts),
        "groups": None,
        "sinks": sinks,
    }


def shown_layers(trace: Trace) -> list[int]:
    """Return the layers with the same positions as the last one; positions of other layers have no names."""
    sizes = [trace.steps[end].weights.shape[0] for end in trace.ends]
    return [l for l, size in enumerate(sizes) if size == sizes[-1]]


def _has_words(trace: Trace) -> bool:
    if len({s.weights.shape for s in trace.steps}) > 1:
        return False
    words = [w for w in trace.word_ids if w is not None]
    return len(set(words)) < len(words)


def _word_positions(trace: Trace, words: Trace, chosen: Sequence[int]) -> list[int]:
    of = {position: number for number, group in enumerate(words.word_groups or ()) for position in group}
    return list(dict.fromkeys(of[trace.first_query + q] - words.first_query for q in chosen))


def _of_unit(trace: Trace, unit: str) -> Trace:
    if unit not in UNITS:
        raise InputError(f"unit {unit!r}: expected one of {', '.join(map(repr, UNITS))}")
    return trace if unit == "subwords" or not _has_words(trace) else trace.words()


def _query(trace: Trace, query: int) -> int:
    """Return the number of a query from its position in the whole sequence."""
    size = trace.steps[trace.ends[-1]].weights.shape[0]
    if isinstance(query, bool) or not isinstance(query, int) or not trace.first_query <= query < size:
        raise InputError(f"query {query!r}: expected a position from {trace.first_query} to {size - 1}")
    return query - trace.first_query
