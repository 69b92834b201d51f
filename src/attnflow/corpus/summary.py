"""What a corpus says as a whole: which tokens and positions receive attention, and how far the methods agree.

`summarize` reads the shards once, a batch at a time; what it holds grows with the vocabulary, the longest text and the
number of texts to show, never with the corpus. `attnflow.view.corpus_page` makes the page of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.corpus_job import METHODS
from attnflow.corpus.lists import list_agreement, list_labels, list_lengths, list_positions, list_tokens, rounded
from attnflow.corpus.tally import Agreement, Batch, Floats, Ints, Lowest, Positions, Spread, Tokens
from attnflow.errors import InputError
from attnflow.files import arrow
from attnflow.jobs.progress import track
from attnflow.jobs.store import MANIFEST, read_manifest
from attnflow.texts.sources import first_line

COLUMNS = (
    "row", "id", "text", "pair", "tokens", "token_ids", "special", "word_ids", "parts", "truncated", "queries",
    "prediction", "error", "message", "provenance",
)  # fmt: skip
"""The columns that are read beside those of scores."""

BATCH = 1024
"""Rows that are read at a time, and fewer where they would take more than `BYTES` in memory."""
BYTES = 32 << 20

WEIGHTY = (8, 6)
"""Tokens, special ones not counted, without which a low correlation means too little to show the text; and where there are
too few such texts, of which the next is true."""
EXAMPLES = 10
SHOWN = 256
"""Tokens of a text that the report shows; the text's own page has all."""


@dataclass(frozen=True)
class Scores:
    """The columns of scores of a corpus.

    methods, layers: those there are, in the order of the paper; layers counted from 1. names: of columns [method][layer].
    divided: columns whose rows are divided by their sums. signed: of each method, whether its scores are differences.
    """

    methods: tuple[str, ...]
    layers: list[int]
    names: list[list[str]]
    divided: frozenset[str]
    signed: NDArray[np.bool_]


def summarize(folder: str | Path, *, layer: int | None = None, texts: int = 20) -> dict[str, Any]:
    """All that the report tells, as JSON holds it.

    folder: the output of `explain_corpus`; of an unfinished job the shards that are there.
    layer: where to look for texts on which the methods disagree, counted from 0; the last that is there by default.
    texts: how many of them for each pair of methods.
    """
    if texts < 0:
        raise InputError(f"texts={texts}: expected how many to show for each pair of methods, 0 or more")
    folder = Path(folder)
    try:
        return _summarized(folder, layer, texts)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(
            f"{str(folder)!r} holds what no corpus job writes ({type(e).__name__}: {first_line(e):.80}): run it again into "
            "another folder"
        ) from e


def _summarized(folder: Path, layer: int | None, texts: int) -> dict[str, Any]:
    settings, finished = _manifest(folder)
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise InputError(f"{str(folder)!r} has no finished shard yet: resume the job first")
    scores = _scores(paths[0], settings.get("receptive_field"))
    methods, names = scores.methods, [f"L{n}" for n in scores.layers]
    if layer is not None and layer + 1 not in scores.layers:
        raise InputError(
            f"layer={layer} (L{layer + 1}) has no scores in {str(folder)!r}: expected one of {', '.join(names)}"
        )
    at = len(names) - 1 if layer is None else scores.layers.index(layer + 1)
    shape = (len(methods), len(names))
    pairs = tuple(combinations(range(len(methods)), 2))
    tokens, positions, spread, agreement = Tokens(shape), Positions(shape), Spread(shape), Agreement(pairs, len(names))
    lowest = [Lowest(len(pairs), texts) for _ in WEIGHTY]
    lengths: Counter[int] = Counter()
    provenances: Counter[str] = Counter()
    labels: dict[tuple[str, str], list[float]] = {}
    errors: dict[str, dict[str, Any]] = {}
    rows = truncated = several = 0
    for table in _batches(paths, [*COLUMNS, *chain.from_iterable(scores.names)]):
        rows += table.num_rows
        batch, broken = _scored(table, scores, folder)
        _count_errors(table, broken, errors)
        if not len(batch.rows):
            continue
        scored = table.take(batch.rows)
        provenances.update(scored.column("provenance").to_pylist())
        truncated += sum(map(bool, scored.column("truncated").to_pylist()))
        several += int((scored.column("queries").value_lengths().to_numpy() > 1).sum())
        lengths.update(batch.sizes.tolist())
        _count_labels(scored, labels)
        tokens.add(batch, scored.column("tokens").flatten())
        positions.add(batch)
        spread.add(batch)
        correlations = agreement.add(batch)
        if pairs:

            def entry(
                k: int, scored: Any = scored, batch: Batch = batch, values: Floats = correlations
            ) -> dict[str, Any]:
                return _entry(scored.slice(k, 1).to_pylist()[0], batch, k, at, methods, values[:, at, k])

            for least, some in zip(WEIGHTY, lowest, strict=True):
                weighty = np.where(batch.plain >= least, correlations[:, at], np.nan)
                some.add(weighty, scored.column("row").to_numpy(), entry)
    if not lengths:
        kinds = ", ".join(f"{kind}: {error['count']:,}" for kind, error in errors.items())
        raise InputError(
            f"none of the {rows:,} texts in {str(folder)!r} has scores ({kinds or 'there is none'}): look at its column "
            "message for what went wrong"
        )
    provenance = max(provenances, key=lambda text: provenances[text])
    full = [all(len(entries) == texts for entries in some.entries) for some in lowest]
    chosen = full.index(True) if any(full) else -1
    ratios = np.where(scores.signed[:, None], np.nan, spread.median())
    return {
        "format": "attnflow-corpus-report",
        "folder": folder.resolve().name,
        "input": settings.get("input"),
        "finished": finished,
        "parts": len(paths),
        "texts": rows,
        "scored": lengths.total(),
        "truncated": truncated,
        "several_queries": several,
        "provenance": json.loads(provenance) if provenance else {},
        "differing": _differing(provenances),
        "query": settings.get("query"),
        "gguf_file": settings.get("gguf_file"),
        "words": bool(tokens.words),
        "receptive_field": settings.get("receptive_field"),
        "views": list(methods),
        "layers": names,
        **list_tokens(tokens, methods, names, lengths.total()),
        "positions": list_positions(positions, methods, names),
        "ratio": {m: dict(zip(names, rounded(row), strict=True)) for m, row in zip(methods, ratios, strict=True)},
        "agreement": list_agreement(agreement, methods, names),
        "disagreement": {
            "layer": names[at],
            "least": WEIGHTY[chosen],
            "eligible": lowest[chosen].eligible,
            "pairs": [
                {"views": [methods[a], methods[b]], "texts": [{"row": n, "correlation": value} for value, n in entries]}
                for (a, b), entries in zip(pairs, lowest[chosen].entries, strict=True)
            ],
            "texts": {str(n): text for n, text in sorted(lowest[chosen].texts.items())},
        },
        "errors": [{"kind": kind, **error} for kind, error in sorted(errors.items(), key=lambda e: -e[1]["count"])],
        "lengths": list_lengths(lengths),
        "predictions": list_labels(labels),
    }


def _manifest(folder: Path) -> tuple[dict[str, Any], bool]:
    """The settings, and whether the corpus is finished."""
    lines = read_manifest(folder)
    if not lines or lines[0].get("format") != "attnflow.corpus":
        raise InputError(
            f"{str(folder)!r} is no output of a corpus job: expected a folder with {MANIFEST} and part-*.parquet in it"
        )
    return lines[0], any(line.get("finished") is True for line in lines)


def _differing(provenances: Iterable[str]) -> list[str]:
    """The entries of provenances that are not the same in all; not how attention was captured, which changes no score."""
    entries = [json.loads(text) if text else {} for text in provenances]
    names = dict.fromkeys(name for entry in entries for name in entry if name != "captured")
    return [name for name in names if len({json.dumps(entry.get(name)) for entry in entries}) > 1]


def _scores(path: Path, receptive_field: str | None) -> Scores:
    """Rows of raw attention and rollout sum to 1 already, unless rollout is the ratio to something else, and rows of flow
    are divided by their sums; differences may be negative, and are no shares of anything."""
    try:
        names = arrow()[1].read_schema(path).names
    except (OSError, ValueError) as e:
        raise _damaged(path, e) from None
    matches = [re.fullmatch(r"(raw|rollout|flow)_L([0-9]+)", name) for name in names]
    columns = {(match[1], int(match[2])) for match in matches if match}
    methods = tuple(method for method in METHODS if any(method == one for one, _ in columns))
    layers = [n for n in sorted({n for _, n in columns}) if all((method, n) in columns for method in methods)]
    if not layers:
        raise InputError(
            f"{str(path)!r} has no column of scores: expected raw_L1, rollout_L1, flow_L1 or others of them"
        )
    divided = {"ratio": ("rollout", "flow"), "difference": ()}.get(str(receptive_field), ("flow",))
    return Scores(
        methods,
        layers,
        [[f"{method}_L{n}" for n in layers] for method in methods],
        frozenset(f"{method}_L{n}" for method in divided for n in layers),
        np.array([method != "raw" and receptive_field == "difference" for method in methods]),
    )


def _batches(paths: Sequence[Path], columns: list[str]) -> Iterator[Any]:
    _, parquet = arrow()
    for path in track(paths, "reading the shards"):
        try:
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:
                groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
                wide = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
                most = max(1, min(BATCH, BYTES // max(1, wide)))
                missing = [name for name in columns if name not in file.schema_arrow.names]
                if missing:
                    raise ValueError(f"it has no column {missing[0]!r}")
                yield from file.iter_batches(most, columns=columns)
        except InputError:
            raise
        except (OSError, ValueError) as e:
            raise _damaged(path, e) from None


def _damaged(path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return InputError(f"{str(path)!r} cannot be read ({reason}): delete it, and resume the job to make it again")


def _scored(table: Any, scores: Scores, folder: Path) -> tuple[Batch, Ints]:
    """The texts that have scores, and the rows of those whose scores are no numbers."""
    sizes = _lengths(table.column("tokens"))
    rows = np.flatnonzero(_numpy(table.column("error").is_null()) & (sizes > 0))
    batch = _flat(table, rows, scores, folder)
    if not len(rows):
        return batch, rows
    finite = np.isfinite(np.add.reduceat(batch.shares.sum((0, 1)), batch.starts))
    return (batch if finite.all() else _flat(table, rows[finite], scores, folder)), rows[~finite]


def _flat(table: Any, rows: Ints, scores: Scores, folder: Path) -> Batch:
    scored = table.take(rows)
    sizes = _lengths(scored.column("tokens"))
    column = scored.column("token_ids")
    ids = None if column.null_count else _numpy(column.flatten()).astype(np.int64)
    special = _numpy(scored.column("special").flatten())
    shares = np.empty((len(scores.methods), len(scores.layers), int(sizes.sum())))
    right = len(special) == shares.shape[-1] and (ids is None or len(ids) == len(special))
    for m, k in np.ndindex(shares.shape[:2]):
        name = scores.names[m][k]
        values = _shares(scored.column(name), sizes, name in scores.divided) if right else None
        if values is None:
            numbers = scored.column("row")
            raise InputError(
                f"rows {numbers[0]} to {numbers[len(rows) - 1]} of {str(folder)!r} do not have one score for each token: "
                "expected shards as a corpus job writes them"
            )
        shares[m, k] = values
    return Batch(rows, sizes, ids, special.astype(bool), shares, scores.signed)


def _numpy(column: Any) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _lengths(column: Any) -> Ints:
    return _numpy(column.value_lengths().fill_null(0)).astype(np.int64)


def _shares(column: Any, sizes: Ints, divide: bool) -> Floats | None:
    """The mean over queries of [text][query][token], flat; None where its sizes are others."""
    queries, rows = _lengths(column), column.flatten()
    wide = _lengths(rows)
    if (queries < 1).any() or not np.array_equal(wide, np.repeat(sizes, queries)):
        return None
    values: Floats = _numpy(rows.flatten()).astype(np.float64)
    starts = np.cumsum(wide) - wide
    if divide and len(values):
        sums = np.add.reduceat(values, starts)
        values /= np.repeat(np.where(sums == 0, 1, sums), wide)
    if (queries == 1).all():
        return values
    first = np.repeat(np.cumsum(sizes) - sizes, queries)  # where the text of each row of scores begins
    places = np.repeat(first - starts, wide) + np.arange(len(values))
    mean: Floats = np.bincount(places, values, int(sizes.sum())) / np.repeat(queries, sizes)
    return mean


def _count_errors(table: Any, broken: Ints, errors: dict[str, dict[str, Any]]) -> None:
    failed = np.flatnonzero(_numpy(table.column("error").is_valid()))
    lost = {int(row): ("scores", "some of its scores are no numbers") for row in broken}
    for row in sorted([*failed.tolist(), *lost]):
        kind, message = lost.get(row) or (table.column("error")[row].as_py(), table.column("message")[row].as_py())
        error = errors.setdefault(kind, {"count": 0, "examples": []})
        error["count"] += 1
        if len(error["examples"]) < EXAMPLES:
            error["examples"].append({"id": table.column("id")[row].as_py(), "message": message})


def _best(prediction: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The kind, label and probability of what the model says of a text."""
    if not prediction or not prediction["top"] or prediction["top"][0]["probability"] is None:
        return None
    return {"kind": prediction["kind"], **prediction["top"][0]}


def _count_labels(scored: Any, labels: dict[tuple[str, str], list[float]]) -> None:
    for best in filter(None, map(_best, scored.column("prediction").to_pylist())):
        sums = labels.setdefault((best["kind"], best["label"]), [0, 0.0])
        sums[0] += 1
        sums[1] += best["probability"]


def _entry(
    row: Mapping[str, Any], batch: Batch, k: int, at: int, methods: Sequence[str], correlations: Floats
) -> dict[str, Any]:
    """What the report shows of a text."""
    start, size = int(batch.starts[k]), int(batch.sizes[k])
    shares = batch.shares[:, at, start : start + min(size, SHOWN)]
    words = row["word_ids"] or [None] * size
    return {
        "id": row["id"],
        "text": row["text"],
        "pair": row["pair"],
        "tokens": row["tokens"][:SHOWN],
        "words": row["token_ids"] is None,
        "size": size,
        "special": [int(x) for x in row["special"][:SHOWN]],
        "joins": [int(i > 0 and words[i] is not None and words[i] == words[i - 1]) for i in range(min(size, SHOWN))],
        "parts": row["parts"] and row["parts"][:SHOWN],
        "truncated": bool(row["truncated"]),
        "queries": row["queries"],
        "prediction": _best(row["prediction"]),
        "shares": {method: rounded(values) for method, values in zip(methods, shares, strict=True)},
        "correlations": rounded(correlations),
    }
