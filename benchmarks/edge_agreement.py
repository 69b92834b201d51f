"""How well edges that need no matrix agree with the edges they approximate: ``python -m benchmarks.edge_agreement``.

Rollout rows of the last layer, for the position that answers, are compared between two kinds of edges on the same
sentences: Spearman's and Pearson's correlation over the tokens of each sentence, and their means. docs/edges.md has the
results.
"""

from __future__ import annotations

import json
import re
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import attnflow
from attnflow._arrays import to_numpy
from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson
from attnflow.evaluate.statistics import spearman
from attnflow.model import Model
from benchmarks.command import run_command
from benchmarks.graphs import PASSAGE

PAIRS = tuple((ours, other) for ours in ("head-norm", "projection") for other in ("value-norm", "block-norm", "alti"))


def sentences() -> list[str]:
    """Return the sentences of the passage with at least eight words."""
    parts = re.split(r"(?<=[.?!]) ", " ".join(PASSAGE.split()))
    return [part for part in parts if len(part.split()) >= 8]


def agreement(model: Model, texts: list[str]) -> list[dict[str, float | str]]:
    """Return mean correlations of each pair of edges over the texts, without the sink at a decoder's first token."""
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in PAIRS}
    for text in texts:
        trace = model.trace(text, edges="mean")
        first = 1 if trace.default_query == len(trace.tokens) - 1 else 0
        names = {name for pair in PAIRS for name in pair}
        values = {name: to_numpy(trace.with_edges(name).rollout(layer=-1).values[0, 0, first:]) for name in names}
        for pair in PAIRS:
            a, b = (values[name] for name in pair)
            rows[pair].append((float(spearman(a, b)), float(np.corrcoef(a, b)[0, 1])))
    return [
        {
            "edges": a,
            "with": b,
            "spearman": means[0],
            "pearson": means[1],
            "lowest spearman": min(r for r, _ in of_pair),
        }
        for (a, b), of_pair in rows.items()
        for means in [np.mean(of_pair, axis=0).tolist()]
    ]


def main(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Folder or hub id; the embedded model by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare edges that need no matrix with value norms and ALTI, by their rollout rows."""
    silence()
    texts = sentences()
    rows = agreement(attnflow.load(model), texts)
    if as_json:
        print(json.dumps({"sentences": len(texts), "rows": rows}, indent=1))
        return
    table = Table("edges", "with", "Spearman", "Pearson", "lowest Spearman", title=f"{len(texts)} sentences")
    for row in rows:
        table.add_row(
            str(row["edges"]), str(row["with"]), *(f"{row[k]:.2f}" for k in ("spearman", "pearson", "lowest spearman"))
        )
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
