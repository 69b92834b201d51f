"""One CSV of a corpus job: a row per text with the inputs that each method scores highest."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.errors import InputError
from attnflow.files import check_writable, of_extension, write_whole

if TYPE_CHECKING:
    from attnflow.corpus.shards import Scores

ABOUT = ("row", "id", "text", "pair")
TOP = 3


def export_corpus(folder: str | Path, file: str | Path, *, top: int = TOP) -> int:
    """Write one CSV from the shards of a corpus job, finished or not, and return the number of its rows.

    folder: the output of `explain_corpus`.
    file: the .csv file.
    top: how many inputs to list for each method and layer, those with the largest absolute scores, special tokens left out.

    A row has row, id, text, pair (if there are pairs), prediction, probability, answer (if the job is about answers), error
    and message; and for each score column such as rollout_L6, rollout_L6_token1, rollout_L6_score1, and so on. Scores are
    means over the queries of a text.
    """
    from attnflow.corpus.shards import read_scores  # these take a while, and every command imports this module
    from attnflow.corpus.summary import read_job

    folder, file = Path(folder), Path(file)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise InputError(f"top={top!r}: expected a whole number of at least 1, how many inputs to list")
    of_extension({".csv": None}, file)
    check_writable(file)
    settings, _, paths = read_job(folder)
    scores = read_scores(paths[0], settings)
    count = 0

    def write(beside: Path) -> None:
        nonlocal count
        with beside.open("w", newline="", encoding="utf-8") as stream:
            out = csv.DictWriter(stream, _columns(settings, scores, top))
            out.writeheader()
            for row in _rows(paths, settings, scores, top):
                out.writerow(row)
                count += 1

    write_whole(file, write)
    return count


def _score_names(scores: Scores) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(scores.names)))


def _is_about_answers(settings: dict[str, Any], scores: Scores) -> bool:
    from attnflow.corpus.shards import answer_methods

    return bool(settings.get("answers")) or bool(answer_methods(scores, settings))


def _columns(settings: dict[str, Any], scores: Scores, top: int) -> list[str]:
    own = ABOUT if settings.get("pair") else ABOUT[:-1]
    answer = ["answer"] if _is_about_answers(settings, scores) else []
    ranked = [
        f"{name}_{what}{k}" for name in _score_names(scores) for k in range(1, top + 1) for what in ("token", "score")
    ]
    return [*own, "prediction", "probability", *answer, "error", "message", *ranked]


def _rows(paths: list[Path], settings: dict[str, Any], scores: Scores, top: int) -> Iterator[dict[str, Any]]:
    from attnflow.corpus.shards import batches

    columns = _columns(settings, scores, top)
    unit = [] if scores.unit is None else ["units"]
    names = [name for name in columns if name in (*ABOUT, "answer", "error", "message")]
    for table in batches(paths, [*names, "prediction", "tokens", "special", *unit, *_score_names(scores)], "exporting"):
        for record in table.to_pylist():
            best = (record["prediction"] or {}).get("top") or [{"label": None, "probability": None}]
            row = {name: record[name] for name in names}
            row |= {"prediction": best[0]["label"], "probability": best[0]["probability"]}
            for name in _score_names(scores):
                for k, (token, score) in enumerate(_ranked(record, name, top), start=1):
                    row |= {f"{name}_token{k}": token, f"{name}_score{k}": score}
            yield row


def _ranked(record: dict[str, Any], name: str, top: int) -> list[tuple[str, float]]:
    """Return the inputs of one text with the largest scores; none if it failed."""
    if record[name] is None:
        return []
    units = record.get("units")
    inputs = record["tokens"] if units is None else units
    special = record["special"] if units is None else [False] * len(inputs)
    means = np.mean(np.array(record[name], np.float64), axis=0)
    places = [i for i in range(len(inputs)) if not special[i] and np.isfinite(means[i])]
    return [(inputs[i], float(means[i])) for i in sorted(places, key=lambda i: -abs(means[i]))[:top]]
