"""What a corpus says as a whole: which tokens and positions receive attention, how far the views agree, where they do not.

`summarize` reads the parts once, a batch at a time; what it holds grows with the vocabulary, the longest text and how many
texts are asked for, never with the corpus. `write` makes the page of it, and the pages of the texts that it shows.
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

from attnflow.command import make_folder
from attnflow.corpus.folder import FORMAT, MANIFEST
from attnflow.corpus.inputs import first_line
from attnflow.corpus.schema import arrow
from attnflow.corpus.tally import (
    BINS,
    PLACES,
    SPELLINGS,
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
from attnflow.evaluate.statistics import wilson
from attnflow.files import write_whole

REPORT = "_report"
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
LISTED = 100
"""Tokens in a list: so many by lift, with special tokens and without, and so many by share, for each view and layer."""
SPECIAL = 20
EXAMPLES = 10
LABELS = 20
SHOWN = 256
"""Tokens of a text that the report shows; the text's own page has all."""
BLANKED = 128
"""Tokens up to which a text's page has blank-out, which costs a pass of the model for each."""

Say = Callable[[str], None]


def summarize(
    folder: Path, *, layer: int | None = None, texts: int = 20, say: Say = lambda line: None
) -> dict[str, Any]:
    """All that the report tells, as JSON holds it.

    folder: the output of `attnflow corpus`; of an unfinished one the parts that are there.
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
            f"{str(folder)!r} holds what attnflow corpus does not write ({type(e).__name__}: {first_line(e):.80}): run it "
            "again into another folder"
        ) from e


def _summarized(folder: Path, layer: int | None, texts: int, say: Say) -> dict[str, Any]:
    settings, finished = _manifest(folder)
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise InputError(f"{str(folder)!r} has no finished part yet: let attnflow corpus go on with --resume")
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
        **_told_tokens(tokens, views, names, sum(lengths.values())),
        "positions": _told_positions(positions, views, names),
        "ratio": {view: dict(zip(names, _numbers(row), strict=True)) for view, row in zip(views, ratios, strict=True)},
        "agreement": _told_agreement(agreement, views, names),
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
        "lengths": _told_lengths(lengths),
        "predictions": _told_labels(labels),
    }


def write(
    folder: Path,
    output: Path | None = None,
    *,
    model: str | None = None,
    layer: int | None = None,
    texts: int = 20,
    say: Say = lambda line: None,
) -> list[Path]:
    """The report as a page, index.html, and texts/<row>.html for each text that it shows; where they were written.

    output: a folder; _report in the corpus's own by default.
    model: what makes the pages of texts; by default the model that explained the corpus. Where it is gone, the report has
        no links and says why.
    layer, texts, say: as in `summarize`.
    """
    from attnflow.view.corpus_page import html_of

    summary = summarize(folder, layer=layer, texts=texts, say=say)
    target = Path(folder) / REPORT if output is None else Path(output)
    make_folder(target)
    pages, missing = _text_pages(summary, model, target / "texts", say)
    if missing is not None:
        say(missing)
    page = html_of({**summary, "pages": sorted(pages), "missing": missing})
    write_whole(target / "index.html", lambda path: path.write_text(page, encoding="utf-8"))
    _remove_others(target / "texts", pages)
    return [target / "index.html", *(pages[row] for row in sorted(pages))]


def _text_pages(
    summary: Mapping[str, Any], name: str | None, folder: Path, say: Say
) -> tuple[dict[int, Path], str | None]:
    """The pages by row, and a sentence on those that could not be made."""
    entries = {int(row): text for row, text in summary["disagreement"]["texts"].items()}
    if not entries:
        return {}, None
    try:
        model = _model(summary, name)
    except InputError as e:
        hint = "" if name else "; -m MODEL says where the model is"
        return {}, f"No text has a page of its own: {e}{hint}."
    make_folder(folder)
    made: dict[int, Path] = {}
    reasons: list[str] = []
    before = monotonic()
    for done, (row, text) in enumerate(entries.items()):
        try:
            made[row] = _text_page(model, text, summary["provenance"], folder / f"{row}.html")
        except InputError as e:
            reasons.append(f"{text['id']}: {e}")
        before = _now_and_then(before, f"pages: {done + 1} of {len(entries)} texts", say)
    if not reasons:
        return made, None
    count = f"{len(reasons)} of {len(entries)} texts have" if len(entries) > 1 else "The text has"
    return made, f"{count} no page of {'their' if len(entries) > 1 else 'its'} own ({reasons[0]})."


def _remove_others(folder: Path, pages: Mapping[int, Path]) -> None:
    """Texts that an earlier report showed, and this one does not."""
    for path in folder.glob("*.html"):
        if re.fullmatch("[0-9]+", path.stem) and path not in pages.values():
            path.unlink(missing_ok=True)


def _model(summary: Mapping[str, Any], name: str | None) -> Any:
    """The model of the rows, as it was loaded for them; or the one named."""
    import attnflow
    from attnflow.capture.hub import DTYPES, EMBEDDED

    provenance, gguf = summary["provenance"], summary["gguf_file"]
    told, revision = provenance.get("model"), provenance.get("revision")
    dtype = next((name for name in DTYPES if name == provenance.get("dtype")), "auto")
    if name is not None:
        held = gguf and (Path(name) / gguf).is_file()
        return attnflow.load(name, dtype=dtype, gguf_file=gguf if held else None)
    if not told:
        raise InputError("the rows do not say which model explained them")
    if told == EMBEDDED and str(revision).startswith("attnflow "):
        return attnflow.load(dtype=dtype)
    revision = None if Path(told).exists() else revision
    return attnflow.load(told, revision=revision, dtype=dtype, gguf_file=gguf)


def _text_page(model: Any, text: Mapping[str, Any], provenance: Mapping[str, Any], path: Path) -> Path:
    given = text["text"] if text["pair"] is None else (text["text"], text["pair"])
    page = model.explain(
        given,
        query=None if text["words"] else text["queries"],  # which then count words, and tokens here
        truncate=bool(text["truncated"]),
        residual=provenance.get("residual", 0.5),
        importance=("gradient", "blank-out") if text["size"] <= BLANKED else ("gradient",),
    )
    units = page.document["units"]
    read = units.get("words" if text["words"] else "subwords", units["subwords"])["tokens"]
    if (len(read), list(read[:SHOWN])) != (text["size"], text["tokens"]):
        raise InputError(
            "the model reads other tokens than those in the corpus: give the one that explained it with -m"
        )
    page.save(path)
    return path


def _manifest(folder: Path) -> tuple[dict[str, Any], bool]:
    """The settings, and whether the corpus is finished. A line that a kill cut short counts as none."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    told = [line for line in found if isinstance(line, dict)]
    if not told or told[0].get("format") != FORMAT:
        raise InputError(
            f"{str(folder)!r} is no output of attnflow corpus: expected a folder with {MANIFEST} and part-*.parquet in it"
        )
    return told[0], any(line.get("finished") is True for line in told)


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


def _parquet() -> Any:
    arrow()
    from pyarrow import parquet

    return parquet


def _views(path: Path) -> tuple[tuple[str, ...], list[int]]:
    """The views there are, in the order of the paper, and their layers, counted from 1."""
    try:
        names = _parquet().read_schema(path).names
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
    parquet = _parquet()
    before = monotonic()
    for done, path in enumerate(paths):
        try:
            with parquet.ParquetFile(path) as file:
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
        before = _now_and_then(before, f"report: {done + 1:,} of {len(paths):,} parts", say)


def _now_and_then(before: float, line: str, say: Say) -> float:
    """When something was said last: somebody who waits at a terminal is told every five seconds, and a log is not."""
    now = monotonic()
    if now - before <= 5 or not sys.stderr.isatty():
        return before
    say(line)
    return now


def _damaged(path: Path, error: BaseException) -> InputError:
    told = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return InputError(
        f"{str(path)!r} cannot be read ({told}): delete it, and make it again with attnflow corpus --resume"
    )


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
                    f"rows {where} of {folder!r} do not have one score for each token: expected parts as attnflow corpus "
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
        "shares": {view: _numbers(row) for view, row in zip(views, shares, strict=True)},
        "correlations": _numbers(found),
    }


def _told_tokens(tokens: Tokens, views: Sequence[str], layers: Sequence[str], texts: int) -> dict[str, Any]:
    """Which tokens received most: types, and for each view and layer rows of their numbers."""
    least = max(2, min(10, texts // 20), texts // 1000)
    n = len(tokens.ids)
    counts, marked = tokens.counts[:n], 2 * tokens.special[:n] > tokens.counts[:n]
    alone = np.where(counts > tokens.special[:n], counts - tokens.special[:n], np.nan)
    plain = np.flatnonzero((counts >= least) & ~marked)
    ids = np.array(tokens.ids)
    lists: dict[str, dict[str, list[list[Any]]]] = {view: {} for view in views}
    apart: dict[str, dict[str, Any]] = {view: {} for view in views}
    listed: dict[int, int] = {}
    for v, view in enumerate(views):
        for k, layer in enumerate(layers):
            sums, lifts = tokens.sums[v, k, :n], tokens.lifts[v, k, :n] / counts
            lone = tokens.plain[v, k, :n] / alone
            share = sums / (np.abs(sums).sum() or 1)
            apart[view][layer] = _numbers([share[marked].sum()])[0]

            # ties by id, so that neither batches nor the order of texts choose
            def best(some: Ints, by: Floats, most: int) -> list[int]:
                return some[np.lexsort((ids[some], -by[some]))][:most].tolist()  # type: ignore[no-any-return]

            chosen = [*best(plain, lone, LISTED), *best(plain, lifts, LISTED), *best(plain, share, LISTED)]
            chosen += best(np.flatnonzero(marked), share, SPECIAL)
            lists[view][layer] = [
                [listed.setdefault(i, len(listed)), *_numbers([sums[i] / counts[i], share[i], lifts[i], lone[i]])]
                for i in dict.fromkeys(chosen)
            ]
    return {
        "least": least,
        "types": {
            "seen": n,
            "special": int(marked.sum()),
            "counted": len(plain),
            "fields": ["id", "text", "others", "spellings", "special", "count"],
            "spellings": SPELLINGS,
            "rows": [
                [
                    None if tokens.words else tokens.ids[i], *_spelled(tokens.names[i]), bool(marked[i]), int(counts[i]),
                ]
                for i in listed
            ],
        },
        "received": {"fields": ["type", "mean", "share", "lift", "plain"], **lists},
        "special_share": apart,
    }  # fmt: skip


def _spelled(names: Counter[str]) -> tuple[str, list[str], int]:
    """The most frequent text of a token, some others, and how many there are."""
    first, *others = sorted(names, key=lambda name: (-names[name], name))
    return first, others[:3], len(names)


def _told_positions(positions: Positions, views: Sequence[str], layers: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"places": PLACES}
    for end, name in enumerate(("start", "end")):
        found[name] = {}
        for plain, kind in enumerate(("all", "plain")):
            counts = positions.counts[end, plain]
            many = np.where(counts > 0, counts, np.nan)
            found[name][kind] = {
                "counts": counts.astype(int).tolist(),
                "uniform": _numbers(positions.uniform[end, plain] / many),
                "shares": {
                    view: {
                        layer: _numbers(positions.sums[end, plain, v, k] / many) for k, layer in enumerate(layers)
                    }
                    for v, view in enumerate(views)
                },
            }  # fmt: skip
    return found


def _told_agreement(agreement: Agreement, views: Sequence[str], layers: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for p, (a, b) in enumerate(agreement.pairs):
        for k, layer in enumerate(layers):
            for plain in (0, 1):
                at = (plain, p, k)
                n = int(agreement.n[at])
                mean = agreement.sums[at] / n if n else np.nan
                variance = max(0.0, agreement.squares[at] - n * mean**2) / (n - 1) if n > 1 else np.nan
                half = 1.959963984540054 * np.sqrt(variance / max(n, 1))
                low, high = wilson(int(agreement.first[at]), n)
                correlation = _numbers([mean, mean - half, mean + half])
                first = _numbers([agreement.first[at] / n, low, high] if n else [np.nan] * 3)
                found.append(
                    {
                        "views": [views[a], views[b]],
                        "layer": layer,
                        "special": not plain,
                        "texts": n,
                        "few": int(agreement.few[plain]),
                        "flat": int(agreement.flat[at]),
                        "correlation": dict(zip(("mean", "low", "high"), correlation, strict=True)),
                        "first": dict(zip(("share", "low", "high"), first, strict=True)),
                        "histogram": agreement.bins[at].astype(int).tolist(),
                    }
                )
    return found


def _told_lengths(lengths: Counter[int]) -> dict[str, Any]:
    """Tokens a text, in bins of whole numbers: `counts[i]` is how many texts have from 1 + i·width to (i + 1)·width."""
    longest, many = max(lengths), sum(lengths.values())
    width = -(-longest // BINS)
    counts = [0] * -(-longest // width)
    for n, count in lengths.items():
        counts[(n - 1) // width] += count
    seen, median = 0, 0
    for n in sorted(lengths):
        seen += lengths[n]
        if 2 * seen >= many:
            median = n
            break
    return {
        "width": width,
        "counts": counts,
        "mean": _numbers([sum(n * count for n, count in lengths.items()) / many])[0],
        "median": median,
        "shortest": min(lengths),
        "longest": longest,
    }


def _told_labels(labels: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Any]:
    order = sorted(labels, key=lambda name: (-labels[name][0], name))
    return {
        "labels": len(order),
        "texts": int(sum(count for count, _ in labels.values())),
        "top": [
            {
                "kind": kind,
                "label": label,
                "count": int(labels[kind, label][0]),
                "mean": _numbers([labels[kind, label][1] / labels[kind, label][0]])[0],
            }
            for kind, label in order[:LABELS]
        ],
    }


def _numbers(values: Iterable[float]) -> list[Any]:
    """Five digits, which is more than a page shows; None for what is no number."""
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in values]
