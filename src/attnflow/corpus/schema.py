"""The columns of the output: one schema for all shards, including texts that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, TextError
from attnflow.files import arrow
from attnflow.method_table import LAYERED
from attnflow.texts.sources import Text

if TYPE_CHECKING:
    import pyarrow

    from attnflow.capture.passes import Prediction


@dataclass(frozen=True, eq=False)
class Explained:
    """The row of one text: either scores or an error.

    scores: for each column, [query, input].
    error: why there are no scores, in a word or two.
    message: the same in a sentence.
    answer: what the scores are about, in jobs about answers; with its tokens and log probability if a language model
        writes it.
    units: the texts of the inputs, if they are not tokens.
    """

    tokens: Sequence[str] | None = None
    token_ids: Sequence[int] | None = None
    special: Sequence[bool] | None = None
    word_ids: Sequence[int | None] | None = None
    words: Sequence[str] | None = None
    parts: Sequence[str] | None = None
    truncated: bool | None = None
    queries: Sequence[int] | None = None
    prediction: Prediction | None = None
    scores: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)
    error: str | None = None
    message: str | None = None
    provenance: str | None = None
    answer: str | None = None
    answer_tokens: Sequence[str] | None = None
    answer_log_probability: float | None = None
    units: Sequence[str] | None = None


def failed_row(e: BaseException, otherwise: str = "model") -> Explained:
    """Return the row of a text that failed. otherwise: the kind of error if the exception does not name one."""
    kind = e.kind if isinstance(e, TextError) else otherwise
    return Explained(error=kind, message=str(e) if isinstance(e, InputError) else f"{type(e).__name__}: {e}")


def score_columns(methods: Sequence[str], layers: Sequence[int]) -> list[str]:
    """Return the names of the score columns. Methods without layers have one column.

    layers: from 0; the names count from 1.

    >>> score_columns(["rollout", "flow", "answer_inputs"], [0, 5])
    ['rollout_L1', 'rollout_L6', 'flow_L1', 'flow_L6', 'answer_inputs']
    """
    return [
        name
        for method in methods
        for name in ([f"{method}_L{layer + 1}" for layer in layers] if method in LAYERED else [method])
    ]


def schema(scores: Sequence[str], answers: bool = False) -> pyarrow.Schema:
    """Return the columns, in order; docs/corpus.md describes them.

    answers: whether rows say which answer they are about.
    """
    pa, _ = arrow()
    answer = pa.struct([("label", pa.string()), ("probability", pa.float64())])
    return pa.schema([
        ("row", pa.int64()),
        ("id", pa.string()),
        ("text", pa.string()),
        ("pair", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("token_ids", pa.list_(pa.int32())),
        ("special", pa.list_(pa.bool_())),
        ("word_ids", pa.list_(pa.int32())),
        ("words", pa.list_(pa.string())),
        ("parts", pa.list_(pa.string())),
        ("truncated", pa.bool_()),
        ("queries", pa.list_(pa.int32())),
        ("prediction", pa.struct([("kind", pa.string()), ("top", pa.list_(answer))])),
        *((name, pa.list_(pa.list_(pa.float32()))) for name in scores),
        ("error", pa.string()),
        ("message", pa.string()),
        ("provenance", pa.string()),
        *(((("answer", pa.string()), ("answer_tokens", pa.list_(pa.string())), ("answer_log_probability", pa.float64()),
            ("units", pa.list_(pa.string())))) if answers else ()),
    ])  # fmt: skip


def table(
    first: int,
    texts: Sequence[Text],
    rows: Sequence[Explained],
    scores: Sequence[str],
    answers: bool = False,
    arrays: Mapping[str, pyarrow.ListArray] | None = None,
) -> pyarrow.Table:
    """Return the rows of a shard as a table.

    first: the number of its first text in the whole input.
    answers: as in `schema`.
    arrays: columns that are Arrow arrays already, from `nested` and `listed`.
    """
    pa, _ = arrow()
    fields = schema(scores, answers)
    columns: dict[str, Any] = {
        "row": np.arange(first, first + len(texts)),
        "id": [readable(text.id) for text in texts],
        "text": [None if text.text is None else readable(text.text) for text in texts],
        "pair": [None if text.pair is None else readable(text.pair) for text in texts],
        "prediction": [_plain(one.prediction) for one in rows],
    }
    for name in fields.names:
        if arrays is not None and name in arrays:
            columns[name] = arrays[name]
        elif name in scores:
            columns[name] = _nested([one.scores.get(name) for one in rows])
        else:
            values = columns[name] if name in columns else [getattr(one, name) for one in rows]
            columns[name] = _array(values, fields.field(name).type)
    return pa.table([columns[name] for name in fields.names], schema=fields)


def _array(values: Any, kind: Any) -> Any:
    pa, _ = arrow()
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # a tokenizer may produce pieces that are not valid text
        return pa.array(_all_readable(values), kind)


def _all_readable(x: Any) -> Any:
    if isinstance(x, str):
        return readable(x)
    if isinstance(x, Mapping):
        return {name: _all_readable(value) for name, value in x.items()}
    return [_all_readable(value) for value in x] if isinstance(x, list | tuple) else x


def readable(text: str) -> str:
    r"""Return text that UTF-8 can encode: undecodable bytes are written as escapes.

    >>> readable(b"caf\xe9".decode(errors="surrogateescape"))
    'caf\\xe9'
    """
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        pass
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON allows
        return text.encode(errors="backslashreplace").decode()


def _plain(prediction: Prediction | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    top = [{"label": label, "probability": p if isfinite(p) else None} for label, p in prediction.top]
    return {"kind": prediction.kind, "top": top}


def _nested(matrices: Sequence[NDArray[np.floating] | None]) -> pyarrow.ListArray:
    """Return the [query, input] matrices of texts as lists of lists of float32; None stays None."""
    there = [np.asarray(m, np.float32) for m in matrices if m is not None]
    values = np.concatenate([m.ravel() for m in there]) if there else np.empty(0, np.float32)
    widths = np.concatenate([np.full(len(m), m.shape[1]) for m in there]) if there else np.empty(0, int)
    rows = np.array([0 if m is None else len(m) for m in matrices], int)
    return nested(values, widths, rows, np.array([m is None for m in matrices], bool))


def nested(
    values: NDArray[np.float32], widths: NDArray[np.int64], rows: NDArray[np.int64], missing: NDArray[np.bool_]
) -> pyarrow.ListArray:
    """Return flat numbers as a list of lists per text. widths: of all rows. rows: of each text."""
    pa, _ = arrow()
    inner = pa.ListArray.from_arrays(pa.array(_ends(widths), pa.int32()), pa.array(values))
    return pa.ListArray.from_arrays(pa.array(_ends(rows), pa.int32()), inner, mask=pa.array(missing))


def listed(values: NDArray[np.int32], counts: NDArray[np.int64], missing: NDArray[np.bool_]) -> pyarrow.ListArray:
    """Return flat whole numbers as one list per text. counts: of each text."""
    pa, _ = arrow()
    return pa.ListArray.from_arrays(pa.array(_ends(counts), pa.int32()), pa.array(values), mask=pa.array(missing))


def _ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])
