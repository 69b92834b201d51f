"""Summary of a corpus: which words answers rest on, in all texts and in groups, with examples.

`summarize` reads the shards three times, in batches: to count labels, to sum, and to find listed words in context. Its
memory grows with the vocabulary, not with the corpus.
`attnflow.view.corpus_page` renders the page.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.corpus.apart import excluded, has_sink
from attnflow.corpus.contexts import ALL, Contexts, Key, list_contexts
from attnflow.corpus.input_columns import InputRows, input_of
from attnflow.corpus.lists import Types, least_count, list_splits, list_words
from attnflow.corpus.shards import Scores, answer_methods, read_batches, read_scores, scored_texts, type_names
from attnflow.corpus.splits import GroupSums, Split, groups_of, read_splits
from attnflow.corpus.tally import Ints, Tokens
from attnflow.errors import InputError
from attnflow.jobs.store import FORMAT, MANIFEST, SHARDS, read_manifest
from attnflow.texts.sources import Corpus, first_line

EXAMPLES = 10
"""Failed texts that are shown for each kind of error."""


def summarize(folder: str | Path, *, layer: str | None = None, source: str | Path | None = None) -> dict[str, Any]:
    """Return everything the report shows, as JSON-compatible data.

    folder: the output of `explain_corpus`; if the job is unfinished, its finished shards are used.
    layer: such as "L3"; the last one by default.
    source: where the input is, if it is not at the path in the job's settings; its columns (a label, a source) form
        splits.
    """
    folder = Path(folder)
    try:
        return _summarized(folder, layer, source)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise InputError(
            f"{str(folder)!r} contains files that no corpus job writes ({type(e).__name__}: {first_line(e):.80}): "
            "run the job again into another folder"
        ) from e


def _summarized(folder: Path, layer: str | None, source: str | Path | None) -> dict[str, Any]:
    settings, finished, paths = read_job(folder)
    every = read_scores(paths[0], settings)
    methods, names = every.methods, every.labels
    if layer is not None and layer not in names:
        raise InputError(f"layer {layer!r} has no scores in {str(folder)!r}: expected one of {', '.join(names)}")
    at = len(names) - 1 if layer is None else names.index(layer)
    scores = every.at(at)
    splits, unsplit, corpus, missing = read_splits(paths, *input_of(settings, source))
    sink = has_sink(paths, scores, folder)
    tokens, groups, cells = Tokens(), GroupSums(splits, len(methods)), InputRows(corpus)
    provenances: Counter[str] = Counter()
    errors: dict[str, dict[str, Any]] = {}
    rows = scored = truncated = several = 0
    for table in read_batches(paths, scores):
        rows += table.num_rows
        labels_of = cells.take(table.column("row").to_pylist(), table.column("text").to_pylist())
        batch, broken = scored_texts(table, scores, folder)
        _count_errors(table, broken, errors)
        if not len(batch.rows):
            continue
        here = table.take(batch.rows)
        scored += here.num_rows
        provenances.update(here.column("provenance").to_pylist())
        truncated += sum(map(bool, here.column("truncated").to_pylist()))
        several += int((here.column("queries").value_lengths().fill_null(0).to_numpy() > 1).sum())
        slots = tokens.add(batch, type_names(here, scores))
        groups.add(excluded(batch, here, sink), slots, _groups(splits, [labels_of[k] for k in batch.rows], here))
    cells.close()
    if not scored:
        kinds = ", ".join(f"{kind}: {error['count']:,}" for kind, error in errors.items())
        raise InputError(
            f"none of the {rows:,} texts in {str(folder)!r} has scores ({kinds or 'there is none'}): see the column "
            "message for the reasons"
        )
    provenance = max(provenances, key=lambda text: provenances[text])
    # methods about the answer come first
    lead = next((m for m, method in enumerate(methods) if method in scores.lone), 0)
    types, least = Types(tokens), least_count(scored)
    grouped = list_splits(types, splits, groups, methods, least)
    words = list_words(types, groups, methods, least)
    contexts = Contexts(_wanted(types, words, grouped), len(tokens.ids), lead, methods)
    _find_contexts(contexts, paths, scores, folder, tokens, splits, corpus, sink)
    return {
        "format": "attnflow-corpus-report",
        "folder": folder.resolve().name,
        "input": settings.get("input"),
        "finished": finished,
        "parts": len(paths),
        "texts": rows,
        "scored": scored,
        "truncated": truncated,
        "several_queries": several,
        "provenance": json.loads(provenance) if provenance else {},
        "differing": _differing(provenances),
        "edges": settings.get("edges"),
        "answers": bool(settings.get("answers")),
        "span": settings.get("span"),
        "unit": scores.unit or ("word" if tokens.words else "token"),
        "about_answer": answer_methods(scores, settings),
        "signed": [method for method, is_signed in zip(methods, scores.signed, strict=True) if is_signed],
        "views": list(methods),
        "least": least,
        "lead": {"method": methods[lead], "layer": names[at]},
        "top": words,
        "sink": sink,
        "splits": grouped,
        "unsplit": unsplit,
        "no_columns": missing,
        "contexts": list_contexts(contexts, types.number),
        "types": types.rows(),
        "errors": [{"kind": kind, **error} for kind, error in sorted(errors.items(), key=lambda e: -e[1]["count"])],
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
    """Find the listed words in one more pass over the shards."""
    with closing(InputRows(corpus)) as cells:
        for table in read_batches(paths, scores, "finding examples"):
            labels_of = cells.take(table.column("row").to_pylist(), table.column("text").to_pylist())
            batch, _ = scored_texts(table, scores, folder)
            if len(batch.rows):
                scored = table.take(batch.rows)
                groups = _groups(splits, [labels_of[k] for k in batch.rows], scored)
                slots = tokens.places(batch, type_names(scored, scores))
                contexts.add(excluded(batch, scored, sink), slots, groups, scored)


def read_job(folder: Path) -> tuple[dict[str, Any], bool, list[Path]]:
    """Return the settings, whether the job is finished, and its shards, of which there is at least one."""
    lines = read_manifest(folder)
    if not lines or lines[0].get("format") != FORMAT:
        raise InputError(
            f"{str(folder)!r} is not the output of a corpus job: expected a folder with {MANIFEST} and part-*.parquet"
        )
    paths = sorted(folder.glob(SHARDS))
    if not paths:
        raise InputError(f"{str(folder)!r} has no finished shard yet: resume the job first")
    return lines[0], any(line.get("finished") is True for line in lines), paths


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
