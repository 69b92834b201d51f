"""What a corpus says as a whole: which tokens and positions receive attention, how far the views agree, where they do not.

`summarize` reads the parts once, a batch at a time; what it holds grows with the vocabulary, the longest text and how many
texts are asked for, never with the corpus. `attnflow.view.corpus_page` makes the page of it.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.corpus.lists import numbers, told_agreement, told_labels, told_lengths, told_positions, told_tokens
from attnflow.corpus.tally import (
    Agreement,
    Batch,
    Floats,
    Ints,
    Positions,
    Spread,
    Tokens,
    Worst,
)
from attnflow.errors import InputError
from attnflow.files import arrow
from attnflow.jobs.store import MANIFEST, read_manifest
from attnflow.texts.sources import first_line

VIEWS = ("raw", "rollout", "flow")
LABELLED = (
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

Say = Callable[[str], None]


def now_and_then(before: float, line: str, say: Say) -> float:
    """When something was said last: somebody who waits at a terminal is told every five seconds, and a log is not."""
    now = monotonic()
    if now - before <= 5 or not sys.stderr.isatty():
        return before
    say(line)
    return now


def summarize(
    folder: Path, *, layer: int | None = None, texts: int = 20, say: Say = lambda line: None
) -> dict[str, Any]:
    """All that the report tells, as JSON holds it.

    folder: the output of `explain_corpus`; of an unfinished job the shards that are there.
    layer: where texts are looked for in which the views disagree, counted from 0; the last that is there by default.
    texts: how many of them for each pair of views.
    say: is told of progress.
    """
    if texts < 0:
        raise InputError(f"texts={texts}: expected how many to show for each pair of views, 0 or more")
    folder = Path(folder)
    try:
        return _summarized(folder, layer, texts, say)
    except InputError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        NotImplementedError,
        RecursionError,
        TypeError,
        ValueError,
    ) as e:
        raise InputError(
            f"{str(folder)!r} holds what no corpus job writes ({type(e).__name__}: {first_line(e):.80}): run it "
            "again into another folder"
        ) from e


def _summarized(folder: Path, layer: int | None, texts: int, say: Say) -> dict[str, Any]:
    settings, finished = _manifest(folder)
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise InputError(f"{str(folder)!r} has no finished shard yet: resume the job first")
    views, layers = _views(paths[0])
    if layer is not None and layer + 1 not in layers:
        there = ", ".join(f"L{n}" for n in layers)
        raise InputError(f"layer={layer} (L{layer + 1}) has no scores in {str(folder)!r}: expected one of {there}")
    at = len(layers) - 1 if layer is None else layers.index(layer + 1)
    shape = (len(views), len(layers))
    columns = [[f"{view}_L{n}" for n in layers] for view in views]
    divided = [name for view, names in zip(views, columns, strict=True) if view in _divided(settings) for name in names]
    signed = np.array([view != "raw" and settings.get("receptive_field") == "difference" for view in views])
    pairs = tuple(combinations(range(len(views)), 2))
    tokens, positions, agreement = Tokens(shape), Positions(shape), Agreement(pairs, len(layers))
    spread = Spread(shape)
    worsts = [Worst(len(pairs), texts) for _ in WEIGHTY]
    lengths: Counter[int] = Counter()
    labels: dict[tuple[str, str], list[float]] = {}
    errors: dict[str, dict[str, Any]] = {}
    sources: dict[str, int] = {}
    rows = truncated = several = 0
    for table in _batches(paths, [*LABELLED, *chain.from_iterable(columns)], say):
        rows += table.num_rows
        batch, broken = _scored(table, columns, divided, signed, str(folder))
        _count_errors(table, broken, errors)
        if not len(batch.rows):
            continue
        held = table.take(batch.rows)
        for text, count in Counter(held.column("provenance").to_pylist()).items():
            sources[text] = sources.get(text, 0) + count
        truncated += sum(map(bool, held.column("truncated").to_pylist()))
        several += int((held.column("queries").value_lengths().to_numpy() > 1).sum())
        lengths.update(batch.sizes.tolist())
        _count_labels(held, labels)
        tokens.add(batch, held.column("tokens").flatten())
        positions.add(batch)
        spread.add(batch)
        found = agreement.add(batch)
        if pairs:

            def entry(k: int, held: Any = held, batch: Batch = batch, found: Floats = found) -> dict[str, Any]:
                return _entry(held.slice(k, 1).to_pylist()[0], batch, k, at, views, found[:, at, k])

            for least, worst in zip(WEIGHTY, worsts, strict=True):
                told = np.where(batch.plain >= least, found[:, at], np.nan)
                worst.add(told, held.column("row").to_numpy(), entry)
    if not lengths:
        kinds = ", ".join(f"{kind}: {told['count']:,}" for kind, told in errors.items())
        raise InputError(
            f"none of the {rows:,} texts in {str(folder)!r} has scores ({kinds or 'there is none'}): look at its column "
            "message for what went wrong"
        )
    source = max(sources, key=lambda text: sources[text])
    names = [f"L{n}" for n in layers]
    full = [all(len(found) == texts for found in worst.found) for worst in worsts]
    chosen = full.index(True) if any(full) else -1
    least, worst = WEIGHTY[chosen], worsts[chosen]
    ratios = np.where(signed[:, None], np.nan, spread.median())
    return {
        "format": "attnflow-corpus-report",
        "folder": folder.resolve().name,
        "input": settings.get("input"),
        "finished": finished,
        "parts": len(paths),
        "texts": rows,
        "scored": sum(lengths.values()),
        "truncated": truncated,
        "several_queries": several,
        "provenance": json.loads(source) if source else {},
        "differing": _differing(sources),
        "query": settings.get("query"),
        "gguf_file": settings.get("gguf_file"),
        "words": bool(tokens.words),
        "receptive_field": settings.get("receptive_field"),
        "views": list(views),
        "layers": names,
        **told_tokens(tokens, views, names, sum(lengths.values())),
        "positions": told_positions(positions, views, names),
        "ratio": {view: dict(zip(names, numbers(row), strict=True)) for view, row in zip(views, ratios, strict=True)},
        "agreement": told_agreement(agreement, views, names),
        "disagreement": {
            "layer": names[at],
            "least": least,
            "eligible": worst.eligible,
            "pairs": [
                {"views": [views[a], views[b]], "texts": [{"row": row, "correlation": value} for value, row in found]}
                for (a, b), found in zip(pairs, worst.found, strict=True)
            ],
            "texts": {str(row): worst.texts[row] for row in sorted(worst.texts)},
        },
        "errors": [{"kind": kind, **told} for kind, told in sorted(errors.items(), key=lambda e: -e[1]["count"])],
        "lengths": told_lengths(lengths),
        "predictions": told_labels(labels),
    }


def _manifest(folder: Path) -> tuple[dict[str, Any], bool]:
    """The settings, and whether the corpus is finished."""
    lines = read_manifest(folder)
    if not lines or lines[0].get("format") != "attnflow.corpus":
        raise InputError(
            f"{str(folder)!r} is no output of a corpus job: expected a folder with {MANIFEST} and part-*.parquet in it"
        )
    return lines[0], any(line.get("finished") is True for line in lines)


def _differing(sources: Iterable[str]) -> list[str]:
    """The entries of provenances that are not the same in all; not how attention was captured, which changes no score."""
    read = [json.loads(text) if text else {} for text in sources]
    names = dict.fromkeys(name for one in read for name in one if name != "captured")
    return [name for name in names if len({json.dumps(one.get(name)) for one in read}) > 1]


def _divided(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The views whose rows of scores are divided by their sums: rows of raw attention and rollout sum to 1 already, unless
    rollout is the ratio to something else; differences may be negative, and are no shares of anything."""
    by = {"ratio": ("rollout", "flow"), "difference": ()}
    return by.get(str(settings.get("receptive_field")), ("flow",))


def _views(path: Path) -> tuple[tuple[str, ...], list[int]]:
    """The views there are, in the order of the paper, and their layers, counted from 1."""
    try:
        names = arrow()[1].read_schema(path).names
    except (OSError, ValueError) as e:
        raise _damaged(path, e) from None
    found = [re.fullmatch(r"(raw|rollout|flow)_L([0-9]+)", name) for name in names]
    there = {(match[1], int(match[2])) for match in found if match}
    views = tuple(view for view in VIEWS if any(view == one for one, _ in there))
    layers = [n for n in sorted({n for _, n in there}) if all((view, n) in there for view in views)]
    if not layers:
        raise InputError(
            f"{str(path)!r} has no column of scores: expected raw_L1, rollout_L1, flow_L1 or others of them"
        )
    return views, layers


def _batches(paths: Sequence[Path], columns: list[str], say: Say) -> Iterator[Any]:
    _, parquet = arrow()
    before = monotonic()
    for done, path in enumerate(paths):
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
        before = now_and_then(before, f"report: {done + 1:,} of {len(paths):,} parts", say)


def _damaged(path: Path, error: BaseException) -> InputError:
    told = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return InputError(f"{str(path)!r} cannot be read ({told}): delete it, and resume the job to make it again")


def _scored(
    table: Any, columns: Sequence[Sequence[str]], divided: Sequence[str], signed: NDArray[np.bool_], folder: str
) -> tuple[Batch, Ints]:
    """The texts that have scores, and the rows of those whose scores are no numbers."""
    sizes = table.column("tokens").value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(table.column("error").is_null().to_numpy(zero_copy_only=False) & (sizes > 0))
    batch = _flat(table, rows, columns, divided, signed, folder)
    if not len(rows):
        return batch, rows
    finite = np.isfinite(np.add.reduceat(batch.shares.sum((0, 1)), batch.starts))
    if finite.all():
        return batch, rows[:0]
    return _flat(table, rows[finite], columns, divided, signed, folder), rows[~finite]


def _flat(
    table: Any,
    rows: Ints,
    columns: Sequence[Sequence[str]],
    divided: Sequence[str],
    signed: NDArray[np.bool_],
    folder: str,
) -> Batch:
    held = table.take(rows)
    sizes = held.column("tokens").value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    given = held.column("token_ids")
    ids = None if given.null_count else given.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    special = held.column("special").flatten().to_numpy(zero_copy_only=False)
    shares = np.empty((len(columns), len(columns[0]), int(sizes.sum())))
    right = len(special) == shares.shape[-1] and (ids is None or len(ids) == len(special))
    for v, names in enumerate(columns):
        for k, name in enumerate(names):
            found = _shares(held.column(name), sizes, name in divided) if right else None
            if found is None:
                where = f"{held.column('row')[0]} to {held.column('row')[len(rows) - 1]}"
                raise InputError(
                    f"rows {where} of {folder!r} do not have one score for each token: expected shards as a corpus job "
                    "writes them"
                )
            shares[v, k] = found
    return Batch(rows, sizes, ids, special.astype(bool), shares, signed)


def _shares(column: Any, sizes: Ints, divide: bool) -> Floats | None:
    """The mean over queries of [text][query][token], flat; None where its sizes are others."""
    queries = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    each = column.flatten()
    wide = each.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if (queries < 1).any() or not np.array_equal(wide, np.repeat(sizes, queries)):
        return None
    values: Floats = each.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
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
    failed = np.flatnonzero(table.column("error").is_valid().to_numpy(zero_copy_only=False))
    lost = {int(row): ("scores", "some of its scores are no numbers") for row in broken}
    for row in sorted([*failed.tolist(), *lost]):
        kind, message = lost.get(row) or (table.column("error")[row].as_py(), table.column("message")[row].as_py())
        told = errors.setdefault(kind, {"count": 0, "examples": []})
        told["count"] += 1
        if len(told["examples"]) < EXAMPLES:
            told["examples"].append({"id": table.column("id")[row].as_py(), "message": message})


def _count_labels(held: Any, labels: dict[tuple[str, str], list[float]]) -> None:
    for said in held.column("prediction").to_pylist():
        if said and said["top"] and said["top"][0]["probability"] is not None:
            best = said["top"][0]
            told = labels.setdefault((said["kind"], best["label"]), [0, 0.0])
            told[0] += 1
            told[1] += best["probability"]


def _entry(
    held: Mapping[str, Any], batch: Batch, k: int, at: int, views: Sequence[str], found: Floats
) -> dict[str, Any]:
    """What the report shows of a text."""
    start, size = int(batch.starts[k]), int(batch.sizes[k])
    shares = batch.shares[:, at, start : start + min(size, SHOWN)]
    said = held["prediction"]
    words = held["word_ids"] or [None] * size
    return {
        "id": held["id"],
        "text": held["text"],
        "pair": held["pair"],
        "tokens": held["tokens"][:SHOWN],
        "words": held["token_ids"] is None,
        "size": size,
        "special": [int(x) for x in held["special"][:SHOWN]],
        "joins": [
            int(i > 0 and words[i] is not None and words[i] == words[i - 1]) for i in range(len(held["tokens"][:SHOWN]))
        ],
        "parts": held["parts"] and held["parts"][:SHOWN],
        "truncated": bool(held["truncated"]),
        "queries": held["queries"],
        "prediction": {"kind": said["kind"], **said["top"][0]}
        if said and said["top"] and said["top"][0]["probability"] is not None
        else None,
        "shares": {view: numbers(row) for view, row in zip(views, shares, strict=True)},
        "correlations": numbers(found),
    }
