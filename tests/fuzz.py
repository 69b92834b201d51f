"""Check random graphs against independent oracles: ``python tests/fuzz.py --graphs 100000 --seed 0``.

Dyadic capacities must match scipy's integer solver to the last bit. Capacities of a wide range (1e-300 to 1e300, small
ones next to quasi-infinite ones) must match a maximum flow in Python integers. One graph in eight also has its
certificate checked edge by edge. At the first disagreement the script names the seed and exits with 1.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time

import numpy as np

import attnflow as af
from attnflow.flow import flow_and_steps
from helpers.families import FAMILIES, WIDE_RANGE, attention, dyadic, widths
from helpers.oracles import exact_maximum, scipy_maximum
from helpers.validator import check_certificate

KINDS = [*sorted(FAMILIES), "attention", "attention deep", "attention wide"]
BITS = 18


def a_graph(rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    if kind == "attention":
        size = int(rng.integers(3, 13)), int(rng.integers(1, 17))
        return list(attention(rng, *size, rng.uniform(0, 6), rng.choice([0.0, 0.2, 0.5, 0.8])))
    if kind == "attention deep":
        return list(attention(rng, int(rng.integers(13, 41)), int(rng.integers(1, 7)), rng.uniform(0, 6)))
    if kind == "attention wide":
        return list(attention(rng, int(rng.integers(3, 5)), int(rng.integers(60, 72)), rng.uniform(0, 6)))
    depth = int(rng.integers(1, 6 if kind in WIDE_RANGE else 13))
    return FAMILIES[kind](rng, widths(rng, depth, 5 if kind in WIDE_RANGE else 8, square=rng.random() < 0.7))


def check(seed: int, kind: str, steps: collections.Counter[str]) -> int:
    rng = np.random.default_rng(seed)
    layers = a_graph(rng, kind)
    if kind not in WIDE_RANGE:
        layers = [dyadic(layer, BITS) for layer in layers]
    # One solver runs a lower layer and then the last, so state left over from the first pairs would show in the second.
    top, lower = len(layers) - 1, int(rng.integers(len(layers)))
    queries = rng.integers(min(len(layers[top]), len(layers[lower])), size=1 if kind == "attention wide" else 3)
    values, counts = flow_and_steps(layers, queries.tolist(), layers=[lower, top], threads=1)
    steps.update(counts)
    for row, query in enumerate(queries.tolist()):
        token, place = int(rng.integers(layers[0].shape[1])), int(rng.integers(2))
        layer, value = (lower, top)[place], values[place, row, token]
        below = layers[: layer + 1]
        if kind in WIDE_RANGE:
            truth = float(exact_maximum(below, query, token))
            assert abs(value - truth) <= 1e-9 * truth, (value, truth)
        else:
            truth = scipy_maximum(below, query, token, BITS)
            assert value == truth, (value, truth)
        if seed % 8 == 0:
            proof = af.max_flow(layers, query, token, layer)
            check_certificate(layers, proof)
            assert abs(proof.value - truth) <= 1e-9 * truth, (proof.value, truth)
    return len(queries)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, steps, compared = time.perf_counter(), collections.Counter[str](), 0
    for number in range(options.graphs):
        seed, kind = options.seed + number, KINDS[number % len(KINDS)]
        try:
            compared += check(seed, kind, steps)
        except AssertionError as e:
            print(f"disagreement at seed {seed}, kind {kind!r}: {e}")
            return 1
        if number % 5000 == 4999:
            print(f"{number + 1} graphs, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(
        f"{options.graphs} graphs, {compared} pairs compared with an oracle, {steps['pairs']} solved: no disagreement"
    )
    print("proven by: " + ", ".join(f"{name} {steps[name]}" for name in ("columns", "hops", "search", "reference")))
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
