"""Output folders of corpus jobs, with random rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

WORDS = (
    "the",
    "a",
    "key",
    "keys",
    "to",
    "of",
    "cabinet",
    "cabinets",
    "man",
    "men",
    "##s",
    "is",
    "are",
    "old",
    "new",
    ".",
)
SENTENCES = (
    "the key to the cabinets", "the keys to the cabinet", "the author of the books near the window",
    "the man who knows the women", "the pictures of the old house", "a friend of my brothers and sisters",
    "the dogs in the park with the children", "the cost of the new roads", "the teachers of the small school",
    "one", "the results of the last test in the new building", "the girl with the flowers",
)  # fmt: skip
PROVENANCE = {
    "model": "small <model>", "revision": "0123456789abcdef", "class": "Small", "dtype": "float32", "device": "cpu",
    "captured": "attention interface", "heads": "mean", "residual": 0.5, "attnflow": "0.1.0",
}  # fmt: skip


def schema(columns: Sequence[str]) -> Any:
    """Return the schema of a part with the documented columns."""
    strings, numbers = pa.list_(pa.string()), pa.list_(pa.int32())
    top = pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))
    return pa.schema([
        ("row", pa.int64()), ("id", pa.string()), ("text", pa.string()), ("pair", pa.string()), ("tokens", strings),
        ("token_ids", numbers), ("special", pa.list_(pa.bool_())), ("word_ids", numbers), ("words", strings),
        ("parts", strings), ("truncated", pa.bool_()), ("queries", numbers),
        ("prediction", pa.struct([("kind", pa.string()), ("top", top)])),
        *((name, pa.list_(pa.list_(pa.float32()))) for name in columns),
        ("error", pa.string()), ("message", pa.string()), ("provenance", pa.string()),
    ])  # fmt: skip


def stored(
    folder: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str], parts: int = 3, finished: bool = True
) -> Path:
    """Write a folder like the output of a job."""
    folder.mkdir(parents=True, exist_ok=True)
    cuts = np.linspace(0, len(rows), parts + 1).astype(int)
    lines: list[dict[str, Any]] = [{"format": "attnflow.corpus", "version": 1, "input": "data/texts.txt"}]
    for number, (start, end) in enumerate(pairwise(cuts)):
        table = pa.Table.from_pylist(list(rows[start:end]), schema(columns))
        parquet.write_table(table, folder / f"part-{number:06}.parquet")
        lines.append({"part": number, "texts": int(end - start)})
    lines += [{"finished": True, "texts": len(rows)}] if finished else []
    (folder / "_manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def made_up(
    n: int = 160,
    views: Sequence[str] = ("raw", "rollout", "flow"),
    layers: Sequence[int] = (1, 2),
    vocabulary: Sequence[str] = WORDS,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows of random texts, some of them failed, with random scores that prefer nouns; and the score columns.

    Text 7 has all positions as queries, 8 is a pair, 9 exceeds the positions that reports distinguish, 10 ranks nothing.
    """
    rng = np.random.default_rng(0)
    columns = [f"{view}_L{layer}" for view in views for layer in layers]
    rows: list[dict[str, Any]] = []
    for number in range(n):
        base = {"row": number, "id": f"texts.txt:{number + 1}"}
        if number % 25 == 3:
            kind = ("empty", "too long", "encoding")[number // 25 % 3]
            text = None if kind == "empty" else "x" * 9
            rows.append({**base, "text": text, "error": kind, "message": f"text {number} is {kind}"})
            continue
        size = 80 if number == 9 else int(rng.integers(1, 14))
        picked = rng.integers(0, len(vocabulary), size)
        names = [vocabulary[i].title() if rng.random() < 0.2 else vocabulary[i] for i in picked]
        tokens = ["[CLS]", *names, "[SEP]"]
        words = [None, *range(size), None]
        for i in range(2, size + 1):
            if tokens[i].startswith("##"):
                words[i] = words[i - 1]
        queries = list(range(size + 2)) if number == 7 else [0]
        pull = np.array([2.0, *(1 + (picked % 5 == 2)), 1.5])
        scores = {}
        for layer in layers:
            shared = rng.gamma(1.0, size=(len(queries), size + 2)) * pull + 1e-3
            for view in views:
                own = shared if view == "rollout" else 0.5 * shared + rng.gamma(1.0, size=shared.shape)
                own = np.ones_like(own) if number == 10 else own
                own = own / own.max(-1, keepdims=True) if view == "flow" else own / own.sum(-1, keepdims=True)
                scores[f"{view}_L{layer}"] = own.astype(np.float32).tolist()
        sure = float(rng.uniform(0.5, 1))
        label = ("singular", "plural")[int(rng.integers(2))]
        rows.append({
            **base, **scores, "text": " ".join(names), "pair": "a pair" if number == 8 else None, "tokens": tokens,
            "token_ids": [101, *(int(i) + 5 for i in picked), 102], "special": [True, *[False] * size, True],
            "word_ids": words, "words": names, "truncated": number == 9, "queries": queries,
            "prediction": {"kind": "class", "top": [{"label": label, "probability": sure},
                                                    {"label": "other", "probability": 1 - sure}]},
            "provenance": json.dumps(PROVENANCE),
        })  # fmt: skip
    return rows, columns


def embedded(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        path.read_text(encoding="utf-8").split('id="attnflow-document">')[1].split("</script>")[0]
    )
    return document
