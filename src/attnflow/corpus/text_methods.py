"""Rows of texts that are explained one by one: by edges other than attention, by the answer, or by changes to the text.

The trace of a text follows the layers of its graph; `Options` says what a row is about.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.capture.check import Checked
from attnflow.capture.inputs import Encoded
from attnflow.capture.predict import NOT_FINITE
from attnflow.corpus.corpus_options import Options
from attnflow.corpus.row_inputs import label_of
from attnflow.corpus.schema import Explained, failed_row, score_columns
from attnflow.errors import AttentionWarning, InputError
from attnflow.method_table import IMPORTANCE, takes
from attnflow.model import Model
from attnflow.result import TokenAttention
from attnflow.selection import places_of
from attnflow.source_methods import ANSWER_WAYS, INPUTS
from attnflow.trace import Trace

WHOLE_BYTES = 1 << 30
"""All heads of a layer are computed at once up to this many bytes per batch; short texts need far less."""

OF_ONE_TEXT = ("answer", "unknown", "reliability", "evidence")
"""Provenance entries that are about one text: the provenance of all rows must be the same."""

Scores = dict[str, NDArray[np.floating]]


def explained(model: Model, checked: Checked, options: Options, encoded: Sequence[Encoded]) -> list[Explained]:
    """Return the rows of these texts. A text that fails does not affect the others.

    The model runs once for all of them if attention itself is propagated, and then on each text.
    """
    graphs: Sequence[Trace | None] = [None] * len(encoded)
    if _needs_attention(options):
        batch = model.run_batch(encoded, checked, whole_bytes=WHOLE_BYTES, measure=False)
        graphs = [Trace.of(batch.passed(number)) for number in range(len(encoded))]
    rows = []
    for one, graph in zip(encoded, graphs, strict=True):
        try:
            rows.append(explain_text(model, options, one, graph))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            rows.append(failed_row(e))
    return rows


def _needs_attention(options: Options) -> bool:
    """Return whether rows need the attention graph, or labels that no other pass gives."""
    plain = options.edges is None and bool(options.layered)
    return plain or (options.edges is None and not _needs_answer_edges(options))


def _needs_answer_edges(options: Options) -> bool:
    """Return whether a method adds up answer edges, whatever the edges of the others are."""
    return bool(set(options.methods) & set(ANSWER_WAYS))


def explain_text(model: Model, options: Options, encoded: Encoded, graph: Trace | None) -> Explained:
    """Return the row of one text. graph: its attention, if needed."""
    label = label_of(model, options, encoded)
    edges = options.edges
    edged = answered = None
    if edges is not None and any(takes(method, "edges") for method in options.methods if method not in ANSWER_WAYS):
        edged = model.trace(encoded, edges=edges, normalize=options.normalize, answer=label, of=options.of or "logit")
    if _needs_answer_edges(options):
        answered = (
            edged if edges == "answer" and edged is not None else model.trace(encoded, edges="answer", answer=label)
        )
    trace = edged or graph or answered
    assert trace is not None
    check_finite(trace)
    over = trace.words() if options.words else trace
    scores: Scores = {}
    places: Sequence[int] = ()
    if options.layered:
        places, scores = followed(over, options)
    records: list[Mapping[str, Any]] = []
    if trace.inside is not None and trace.inside.answer is not None:
        records.append(trace.inside.answer)
    for method in options.methods:
        if method in options.layered:
            continue
        result = _about_answer(model, method, options, encoded, label, answered)
        scores[method] = result.values[0]
        places = places or result.queries
        records += [result.provenance["answer"]] if "answer" in result.provenance else []
    return row_of(over, encoded, options, list(places), scores, records)


def check_finite(trace: Trace) -> None:
    if not all(bool(step.weights.isfinite().all()) for step in trace.steps):
        raise InputError(NOT_FINITE)


def _about_answer(
    model: Model,
    method: str,
    options: Options,
    encoded: Encoded,
    label: int | str | None,
    answered: Trace | None,
) -> TokenAttention:
    """Return one number per token or word, about the answer."""
    if method in IMPORTANCE:
        more: dict[str, Any] = {} if options.of is None else {"of": options.of}
        more |= {"unit": "word"} if options.words and method == "blank_out" else {}
        with warnings.catch_warnings():
            # it would repeat for thousands of texts
            warnings.filterwarnings("ignore", "the probability of ", AttentionWarning)
            result: TokenAttention = getattr(model, method)(encoded, answer=label, **more)
    elif method == INPUTS:
        assert answered is not None
        result = answered.answer_inputs(signed="shares")
    else:
        assert answered is not None
        over = answered.words() if options.words else answered
        query = None if options.query is None else places_of(options.query, over.tokens, None)
        return over.answer_rows(query)
    return result.words() if options.words else result


def followed(trace: Trace, options: Options) -> tuple[list[int], Scores]:
    """Return the explained positions, and the scores of each layered method for them."""
    places = places_of(options.query, trace.tokens[trace.first_query :], trace.default_query)
    scores: Scores = {}
    for method in options.layered:
        more: dict[str, Any] = {}
        if method != "raw":
            more = {"residual": options.residual}
        result = getattr(trace, method)(places, options.layers, **more)
        scores |= zip(score_columns([method], options.layers), result.values, strict=True)
    return places, scores


def row_of(
    trace: Trace,
    encoded: Encoded,
    options: Options,
    places: list[int],
    scores: Scores,
    records: Sequence[Mapping[str, Any]] = (),
) -> Explained:
    """Return the row of a text that has scores. records: the answer of each method, the same for all."""
    ids = [int(i) for name in ("input_ids", "decoder_input_ids") for i in encoded.tensors.get(name, _NONE)[0].tolist()]
    record = records[0] if records else {}
    return Explained(
        trace.tokens, None if options.words else ids, trace.special, trace.word_ids, trace.word_texts, trace.parts or None,
        encoded.cut is not None, places, trace.prediction, scores, provenance=json.dumps(provenance_of(trace, options)),
        answer=record.get("name"), answer_log_probability=_logarithm(record.get("probability")),
    )  # fmt: skip


def provenance_of(trace: Trace, options: Options) -> dict[str, Any]:
    """Return the provenance that all rows share."""
    record = {name: value for name, value in trace.provenance.items() if name not in OF_ONE_TEXT}
    return {**record, **recipe_of(options)}


def recipe_of(options: Options) -> dict[str, Any]:
    """Return the settings that were changed and affect the numbers, and always the residual weight."""
    recipe: dict[str, Any] = {}
    if any(takes(method, "residual") for method in options.methods) or set(options.methods) == {"raw"}:
        recipe["residual"] = options.residual
    for name in ("answer", "of", "answer_column"):
        if getattr(options, name) is not None:
            recipe[name] = getattr(options, name)
    return recipe


def _logarithm(probability: float | None) -> float | None:
    return None if probability is None or probability <= 0 else math.log(probability)


_NONE = torch.empty(1, 0, dtype=torch.int64)
