"""Joint flow: its speed compared with the published formulation, and its quality. ``python -m benchmarks.joint_flow``.

Generalized Attention Flow (Azarkhalili & Libbrecht, 2025) solves a convex problem over the flows of all edges with a
general constrained optimizer. Here that is scipy's SLSQP, with gradients and the Jacobian given, on the same problem as
ours. One of its steps costs the third power of the edges, so it is measured on growing graphs up to a time limit and
extrapolated from the growth of the last sizes. With ``--data`` (BLiMP's agreement with distractors), the benchmark
measures how often the subject ranks above the attractor, how often both tie, and how much the rows of different queries
differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import optimize

import attnflow as af
from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, progress
from benchmarks.command import run_command
from benchmarks.encoder_tasks import prefixes
from benchmarks.result_lines import HALVES, check_half

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Floats = NDArray[np.float64]
SIZES = (
    (4, 2),
    (6, 3),
    (8, 3),
    (8, 4),
    (10, 4),
    (10, 6),
    (12, 6),
    (14, 6),
    (16, 6),
    (16, 8),
    (20, 8),
)  # tokens, layers
GOAL = (64, 12)
TIE = 1e-9
LOOKED_AT = 150  # rows of BLiMP's table, odd ones included, that were used when choosing the norm


@dataclass(frozen=True)
class Slow:
    """The result of the published formulation: the shares of the inputs, and ``½ Σ f²``."""

    shares: Floats
    objective: float
    steps: int


def published(matrices: Sequence[Floats], query: int, value: float) -> Slow:
    """Return the maximum flow of least norm, by SLSQP over the flows of all edges.

    value: of a maximum flow; flows are measured in units of it.
    """
    layers = [*matrices[:-1], matrices[-1][query : query + 1]]
    starts = np.cumsum([0, layers[0].shape[1], *(layer.shape[0] for layer in layers)])
    count, last = int(starts[1]), int(starts[-2])
    places = [(l, *place) for l, layer in enumerate(layers) for place in np.argwhere(layer > 0)]
    if value == 0:
        return Slow(np.zeros(count), 0.0, 0)
    upper = np.array([starts[l + 1] + u for l, u, _ in places])
    lower = np.array([starts[l] + v for l, _, v in places])
    widths = np.array([layers[l][u, v] for l, u, v in places]) / value
    balance = np.zeros((int(starts[-1]), len(places)))
    balance[upper, np.arange(len(places))] += 1
    balance[lower, np.arange(len(places))] -= 1
    rows = balance[count : last + 1]  # outflow minus inflow: 0, and 1 at the query
    rows = rows[np.abs(rows).sum(1) > 0]
    right = np.zeros(len(rows))
    right[-1] = 1
    result = optimize.minimize(
        lambda f: (f @ f) / 2, np.minimum(widths, 1) / 2, jac=lambda f: f, method="SLSQP",
        bounds=[(0, min(width, 1.0)) for width in widths],
        constraints={"type": "eq", "fun": lambda f: rows @ f - right, "jac": lambda f: rows},
        options={"ftol": 1e-12, "maxiter": 300},
    )  # fmt: skip
    shares = np.bincount(lower, result.x, int(starts[-1]))[:count]
    return Slow(shares / shares.sum(), float(result.fun) * value**2, int(result.nit))


def graph(tokens: int, layers: int, seed: int = 0) -> Floats:
    """Return attention of random logits with the residual connection; rows sum to one."""
    weights = np.exp(2 * np.random.default_rng(seed).normal(size=(layers, 1, tokens, tokens)))
    A: Floats = af.attention_graph(weights / weights.sum(-1, keepdims=True))
    return A


def edges_of(tokens: int, layers: int) -> int:
    """Return the number of edges in the graph below one query."""
    return tokens + (layers - 1) * tokens**2


@dataclass(frozen=True)
class Timing:
    """Seconds for one query of one graph.

    published: None if it was not run.
    gap: relative, as we prove it.
    apart: the largest difference of a share.
    """

    tokens: int
    layers: int
    edges: int
    ours: float
    gap: float
    published: float | None = None
    apart: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.published is None else self.published / self.ours


def timings(sizes: Sequence[tuple[int, int]], limit: float) -> Iterator[Timing]:
    """Yield one timing per size.

    The published formulation runs until the next size would take longer than `limit` seconds.
    """
    times: list[tuple[int, float]] = []
    for tokens, layers in sizes:
        A, edges = graph(tokens, layers), edges_of(tokens, layers)
        ours, joint = _best(A)
        if len(times) > 1 and extrapolated(times, edges, least=2.0) > limit:
            yield Timing(tokens, layers, edges, ours, joint.gap)
            continue
        begin = time.perf_counter()
        slow = published(list(A), 0, joint.value)
        times.append((edges, time.perf_counter() - begin))
        apart = float(np.abs(slow.shares - joint.shares).max())
        yield Timing(tokens, layers, edges, ours, joint.gap, times[-1][1], apart)


def _best(A: Floats) -> tuple[float, af.JointFlow]:
    """Return the fastest of three times, and the flow."""
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        joint = af.least_norm_flow(A, 0)
        seconds.append(time.perf_counter() - begin)
    return min(seconds), joint


def growth(times: Sequence[tuple[int, float]]) -> float:
    """Return the power of the edges with which the last four times grow (least squares of the logarithms)."""
    edges, seconds = np.log(np.array(times[-4:], dtype=np.float64)).T
    return float(np.polyfit(edges, seconds, 1)[0])


def extrapolated(times: Sequence[tuple[int, float]], edges: int, least: float = 0.0) -> float:
    """Return seconds for this many edges, from the last time and the growth. least: a lower bound on the power."""
    last, seconds = times[-1]
    return float(seconds * (edges / last) ** max(least, growth(times)))


@dataclass(frozen=True)
class Worth:
    """The quality of a method on one kind of edges: fractions of the texts.

    above: the subject ranks above the attractor; a tie counts half.
    ties: both are equal to a billionth.
    apart: the mean total variation between the row of a query and the mean over all queries, each normalised.
    """

    edges: str
    method: str
    above: float
    ties: float
    apart: float
    texts: int


def worth(model: Model, path: Path, count: int, half: str, first: int = LOOKED_AT) -> list[Worth]:
    """Measure joint flow, rollout and flow for the class token at the last layer. first: skip earlier rows."""
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    texts = [prefix for prefix in prefixes(path) if prefix.seed >= first and prefix.seed % 2 == HALVES.index(half)][
        :count
    ]
    for number, prefix in enumerate(texts, 1):
        for edges, normalize in (("mean", None), ("attention-gradient", None), ("attention-gradient", "graph")):
            trace = model.trace(prefix.text, edges=edges, normalize=normalize)
            name = edges if normalize is None else f"{edges} ({normalize})"
            for method in ("joint_flow", "rollout", "flow"):
                values, words = _rows(trace, method)
                scores = [values[0, np.array(words) == word].sum() for word in (prefix.subject, prefix.attractor)]
                tied = abs(scores[0] - scores[1]) <= TIE * max(scores)
                won = 0.5 if tied else float(scores[0] > scores[1])
                shares = values / values.sum(1, keepdims=True)
                apart = float(np.abs(shares - shares.mean(0)).sum(1).mean() / 2)
                rows.setdefault((name, method), []).append((won, float(tied), apart))
        if number % 25 == 0:
            progress(f"{number} of {len(texts)} texts")
    results = []
    for (edges, method), cases in rows.items():
        above, ties, apart = (float(x) for x in np.mean(cases, 0))
        results.append(Worth(edges, method, above, ties, apart, len(cases)))
    return results


def _rows(trace: Trace, method: str) -> tuple[Floats, tuple[int | None, ...]]:
    """Return rows of all queries at the last layer, the class token first."""
    result = getattr(trace, method)("all", -1)
    return result.values[0], result.word_ids


def speed_table(rows: Sequence[Timing]) -> tuple[Table, str]:
    """Return the timings, and a sentence about the goal, which is the last row."""
    table = Table("tokens × layers", "edges", "ours, s", "gap", "SLSQP, s", "ratio", "shares apart", box=None)
    for row in rows:
        slow = (
            ["not run"] * 3
            if row.published is None
            else [f"{row.published:.3g}", f"{row.ratio:,.0f}", f"{row.apart:.0e}"]
        )
        table.add_row(f"{row.tokens} × {row.layers}", f"{row.edges:,}", f"{row.ours:.3g}", f"{row.gap:.0e}", *slow)
    times = [(row.edges, row.published) for row in rows if row.published is not None]
    goal = rows[-1]
    if goal.published is not None or len(times) < 2:
        return table, ""
    more = goal.edges / times[-1][0]
    seconds, square = extrapolated(times, goal.edges), times[-1][1] * more**2
    return table, (
        f"SLSQP grows with the power {growth(times):.2f} of the edges over its last {min(4, len(times))} sizes. "
        f"Extrapolated to {goal.tokens} × {goal.layers}, from {more:.0f} times fewer edges: {seconds / 86_400:,.1f} "
        f"days, {seconds / goal.ours:,.0f} times ours. If it grew only with the square, it would be "
        f"{square / goal.ours:,.0f} times."
    )


def main(
    limit: Annotated[float, typer.Option(min=0.1, help="Seconds that one run of SLSQP may take.")] = 120.0,
    data: Annotated[
        Path | None,
        typer.Option(help="A table with the columns prefix, good and bad: measure quality instead of speed."),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="With --data: how many texts.")] = 150,
    half: Annotated[str, typer.Option(help="With --data: unseen (odd rows) or seen.")] = "unseen",
    first_row: Annotated[
        int, typer.Option(min=0, help="With --data: skip earlier rows, which were used for tuning.")
    ] = LOOKED_AT,
    as_json: AsJson = False,
) -> None:
    """Compare the speed of joint flow with SLSQP, or measure its quality."""
    if data is not None:
        check_half(half)
        silence()
        measured: list[Any] = worth(af.load(), data, texts, half, first_row)
        if not as_json:
            table = Table("edges", "method", "subject above attractor", "ties", "queries apart", "texts", box=None)
            for row in measured:
                shown = (f"{row.above:.2f}", f"{row.ties:.2f}", f"{row.apart:.3f}", str(row.texts))
                table.add_row(row.edges, row.method, *shown)
            Console().print(table)
    else:
        measured = []
        for timing in timings([*SIZES, GOAL], limit):
            progress(f"{timing.tokens} × {timing.layers}: {timing.ours:.3g} s, SLSQP {timing.published or 'not run'}")
            measured.append(timing)
        if not as_json:
            table, sentence = speed_table(measured)
            Console().print(table)
            print(sentence)
    if as_json:
        print(json.dumps([asdict(row) for row in measured], indent=1))


if __name__ == "__main__":
    run_command(main)
