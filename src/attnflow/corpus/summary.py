"""Summary of a corpus: which tokens and positions receive attention, by group too, and how far methods agree.

`summarize` reads the shards three times, in batches: to count labels, to sum, and to find listed words in context. Its
memory grows with the vocabulary, the longest text and the number of texts to show, not with the corpus.
`attnflow.view.corpus_page` renders the page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.corpus.apart import ApartSums, aside, has_sink, list_apart
from attnflow.corpus.contexts import ALL, Contexts, Key, list_contexts
from attnflow.corpus.input_columns import InputRows, input_of
from attnflow.corpus.lists import (
    Types,
    list_agreement,
    list_labels,
    list_lengths,
    list_positions,
    list_splits,
    list_tokens,
    list_words,
    rounded,
)
from attnflow.corpus.shards import Scores, answer_methods, read_batches, read_scores, scored_texts, type_names
from attnflow.corpus.splits import GroupSums, Split, groups_of, read_splits
from attnflow.corpus.tally import Agreement, Batch, Floats, Ints, Lowest, Positions, Spread, Tokens
from attnflow.errors import InputError
from attnflow.jobs.store import MANIFEST, read_manifest
from attnflow.texts.sources import Corpus, first_line

WEIGHTY = (8, 6)
"""The fewest tokens, special ones excluded, of a text that is shown for its low correlation.

The second value applies if too few texts reach the first.
"""
EXAMPLES = 10
SHOWN = 256
"""The most tokens of a text that the report shows; the text's own page has all."""
WEAK = 1.2
"""The ratio of largest to smallest score in a typical text below which a method hardly distinguishes tokens."""


def summarize(
    folder: str | Path, *, layer: int | None = None, texts: int = 20, source: str | Path | None = None
) -> dict[str, Any]:
    """Return everything the report shows, as JSON-compatible data.

    folder: the output of `explain_corpus`; if the job is unfinished, its finished shards are used.
    layer: the layer for groups of texts and for texts on which the methods disagree, from 0; the last one by default.
    texts: how many texts with disagreement to show for each pair of methods.
    source: where the input is, if it is not at the path in the job's settings; its columns (a label, a source) form
        splits.
    """
    if texts < 0:
        raise InputError(f"texts={texts}: expected the number of texts to show for each pair of methods, 0 or more")
    folder = Path(folder)
    try:
        return _summarized(folder, layer, texts, source)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(
            f"{str(folder)!r} contains files that no corpus job writes ({type(e).__name__}: {first_line(e):.80}): "
            "run the job again into another folder"
        ) from e


def _summarized(folder: Path, layer: int | None, texts: int, source: str | Path | None) -> dict[str, Any]:
    settings, finished = read_job(folder)
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise InputError(f"{str(folder)!r} has no finished shard yet: resume the job first")
    scores = read_scores(paths[0], settings)
    methods, names = scores.methods, scores.labels
    if layer is not None and scores.layers == [0]:
        raise InputError(f"layer={layer}: the scores in {str(folder)!r} cover all layers together; leave it out")
    if layer is not None and layer + 1 not in scores.layers:
        raise InputError(
            f"layer={layer} (L{layer + 1}) has no scores in {str(folder)!r}: expected one of {', '.join(names)}"
        )
    at = len(names) - 1 if layer is None else scores.layers.index(layer + 1)
    shape = (len(methods), len(names))
    pairs = tuple(combinations(range(len(methods)), 2))
    tokens, positions, spread, agreement = Tokens(shape), Positions(shape), Spread(shape), Agreement(pairs, len(names))
    splits, unsplit, corpus, missing = read_splits(paths, *input_of(settings, source))
    sink = has_sink(paths, scores.at(at), folder)
    groups, apart = GroupSums(splits, len(methods)), ApartSums(len(methods))
    cells = InputRows(corpus)
    lowest = [Lowest(len(pairs), texts) for _ in WEIGHTY]
    lengths: Counter[int] = Counter()
    provenances: Counter[str] = Counter()
    labels: dict[tuple[str, str], list[float]] = {}
    errors: dict[str, dict[str, Any]] = {}
    rows = truncated = several = 0
    for table in read_batches(paths, scores):
        rows += table.num_rows
        labels_of = cells.take(table.column("row").to_pylist(), table.column("text").to_pylist())
        batch, broken = scored_texts(table, scores, folder)
        _count_errors(table, broken, errors)
        if not len(batch.rows):
            continue
        scored = table.take(batch.rows)
        provenances.update(scored.column("provenance").to_pylist())
        truncated += sum(map(bool, scored.column("truncated").to_pylist()))
        several += int((scored.column("queries").value_lengths().fill_null(0).to_numpy() > 1).sum())
        lengths.update(batch.sizes.tolist())
        _count_labels(scored, labels)
        slots = tokens.add(batch, type_names(scored, scores))
        own_groups = _groups(splits, [labels_of[k] for k in batch.rows], scored)
        groups.add(aside(batch, scored, sink), slots, own_groups, at)
        apart.add(batch, scored, sink, at)
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
    cells.close()
    if not lengths:
        kinds = ", ".join(f"{kind}: {error['count']:,}" for kind, error in errors.items())
        raise InputError(
            f"none of the {rows:,} texts in {str(folder)!r} has scores ({kinds or 'there is none'}): see the column "
            "message for the reasons"
        )
    provenance = max(provenances, key=lambda text: provenances[text])
    full = [all(len(entries) == texts for entries in some.entries) for some in lowest]
    chosen = full.index(True) if any(full) else -1
    ratios = np.where(scores.signed[:, None], np.nan, spread.median())
    # methods about the answer come first
    first = sorted(range(len(methods)), key=lambda m: methods[m] not in scores.lone)
    lead = next((m for m in first if not ratios[m, at] < WEAK), first[0])
    types = Types(tokens)
    received = list_tokens(types, methods, names, lengths.total())
    grouped = list_splits(types, splits, groups, methods, received["least"])
    words = list_words(types, groups, methods, received["least"])
    contexts = Contexts(_wanted(types, words, grouped), len(tokens.ids), lead, methods)
    _find_contexts(contexts, paths, scores.at(at), folder, tokens, splits, corpus, sink)
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
        "edges": settings.get("edges"),
        "answers": bool(settings.get("answers")),
        "span": settings.get("span"),
        "unit": scores.unit or ("word" if tokens.words else "token"),
        "lone": scores.lone,
        "about_answer": answer_methods(scores, settings),
        "signed": [method for method, is_signed in zip(methods, scores.signed, strict=True) if is_signed],
        "divided": [m for m, own in zip(methods, scores.names, strict=True) if own[0] in scores.divided],
        "views": list(methods),
        "layers": names,
        **received,
        "types": types.rows(received["least"]),
        "lead": {"method": methods[lead], "layer": names[at]},
        "top": words,
        "apart": list_apart(apart, methods, lengths.total()),
        "splits": grouped,
        "unsplit": unsplit,
        "no_columns": missing,
        "contexts": list_contexts(contexts, types.number),
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


def _groups(splits: Sequence[Split], cells: Sequence[Mapping[str, str]], scored: Any) -> Ints:
    """Return the groups of these rows, [split, text]."""
    return groups_of(splits, cells, scored.column("prediction").to_pylist() if splits else [None] * len(cells))


def _wanted(
    types: Types, words: Mapping[str, Sequence[Any]], splits: Sequence[Mapping[str, Any]]
) -> dict[Key, list[int]]:
    """Return the slots of the tokens that a page lists first: in all texts, and in each group."""
    slots = types.slots
    wanted: dict[Key, list[int]] = {ALL: [slots[row[0]] for rows in words.values() for row in rows]}
    for s, split in enumerate(splits):
        for g, group in enumerate(split["groups"]):
            wanted[s, g] = [slots[row[0]] for rows in group["received"].values() for row in rows]
    return wanted


def _find_contexts(
    contexts: Contexts,
    paths: Sequence[Path],
    scores: Scores,
    folder: Path,
    tokens: Tokens,
    splits: Sequence[Split],
    corpus: Corpus | None,
    sink: bool,
) -> None:
    """Find the listed words in one more pass over the shards. scores: of one layer."""
    with closing(InputRows(corpus)) as cells:
        for table in read_batches(paths, scores, "finding examples"):
            labels_of = cells.take(table.column("row").to_pylist(), table.column("text").to_pylist())
            batch, _ = scored_texts(table, scores, folder)
            if len(batch.rows):
                scored = table.take(batch.rows)
                groups = _groups(splits, [labels_of[k] for k in batch.rows], scored)
                slots = tokens.places(batch, type_names(scored, scores))
                contexts.add(aside(batch, scored, sink), slots, groups, scored)


def read_job(folder: Path) -> tuple[dict[str, Any], bool]:
    """Return the settings, and whether the job is finished."""
    lines = read_manifest(folder)
    if not lines or lines[0].get("format") != "attnflow.corpus":
        raise InputError(
            f"{str(folder)!r} is not the output of a corpus job: expected a folder with {MANIFEST} and part-*.parquet"
        )
    return lines[0], any(line.get("finished") is True for line in lines)


def _differing(provenances: Iterable[str]) -> list[str]:
    """Return the provenance entries that differ, except how attention was captured, which changes no score."""
    entries = [json.loads(text) if text else {} for text in provenances]
    names = dict.fromkeys(name for entry in entries for name in entry if name != "captured")
    return [name for name in names if len({json.dumps(entry.get(name)) for entry in entries}) > 1]


def _count_errors(table: Any, broken: Ints, errors: dict[str, dict[str, Any]]) -> None:
    failed = np.flatnonzero(table.column("error").is_valid().to_numpy(zero_copy_only=False))
    lost = {int(row): ("scores", "some of its scores are not finite") for row in broken}
    for row in sorted([*failed.tolist(), *lost]):
        kind, message = lost.get(row) or (table.column("error")[row].as_py(), table.column("message")[row].as_py())
        error = errors.setdefault(kind, {"count": 0, "examples": []})
        error["count"] += 1
        if len(error["examples"]) < EXAMPLES:
            error["examples"].append({"id": table.column("id")[row].as_py(), "message": message})


def _best(prediction: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the kind, label and probability of the likeliest prediction."""
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
    """Return what the report shows of a text."""
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
