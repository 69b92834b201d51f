"""Flow of a batch of texts in one call against `flow` of each text."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow as af
from attnflow._core import native
from attnflow.errors import InputError
from attnflow.flow_batches import batch_flows
from helpers.families import FAMILIES, attention

Lengths = list[int]


def padded(texts: list[np.ndarray], dtype: type, filler: float = np.nan) -> tuple[list[np.ndarray], Lengths]:
    """Return graphs ``[layer, n, n]`` of different n as one array per layer, with `filler` outside each text."""
    depth, width = texts[0].shape[0], max(text.shape[1] for text in texts)
    layers = [np.full((len(texts), width, width), filler, dtype=dtype) for _ in range(depth)]
    for number, text in enumerate(texts):
        for layer, matrix in zip(layers, text, strict=True):
            layer[number, : text.shape[1], : text.shape[1]] = matrix
    return layers, [text.shape[1] for text in texts]


def graph(rng: np.random.Generator, kind: str, depth: int, n: int) -> np.ndarray:
    if kind == "attention":
        return attention(rng, depth, n, sharpness=3.0, residual=float(rng.choice([0.0, 0.3, 0.5, 0.9])))
    return np.stack(FAMILIES[kind](rng, [n] * (depth + 1)))


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(1, 7),
    st.sampled_from(["attention", "causal", "sparse", "equal", "crossing", "quasi_infinite"]),
    st.sampled_from([np.float32, np.float64]),
)
def test_equals_flow_text_by_text(seed: int, lengths: Lengths, depth: int, kind: str, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    texts = [graph(rng, kind, depth, n).clip(0, 1e38).astype(dtype) for n in lengths]
    queries = [int(rng.integers(n)) for n in lengths]
    layers, _ = padded(texts, dtype)
    values, steps = batch_flows(layers, lengths, queries, threads=2)
    assert values.shape == (len(texts), depth, max(lengths))
    assert steps["pairs"] == depth * sum(lengths)
    for row, text, n, query in zip(values, texts, lengths, queries, strict=True):
        assert (row[:, :n] == af.flow(text, query)[:, 0]).all()
        assert not row[:, n:].any()


@pytest.fixture(scope="module")
def batch() -> tuple[list[np.ndarray], Lengths]:
    rng = np.random.default_rng(3)
    return padded([attention(rng, 5, n, 2.0) for n in (24, 9, 17, 1, 30)], np.float64, filler=-1.0)


def test_layers_and_queries_are_those_asked_for(batch: tuple[list[np.ndarray], Lengths]) -> None:
    layers, lengths = batch
    everything, _ = batch_flows(layers, lengths, [-1] * 5)
    last, _ = batch_flows(layers, lengths, [n - 1 for n in lengths], at=[-1, 0])
    assert (last == everything[:, [4, 0]]).all()
    assert batch_flows(layers, lengths, [0] * 5, at=[])[0].shape == (5, 0, 30)


@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_does_not_change_a_bit(batch: tuple[list[np.ndarray], Lengths], threads: int) -> None:
    layers, lengths = batch
    queries = [0] * len(lengths)
    assert (
        batch_flows(layers, lengths, queries, threads=threads)[0] == batch_flows(layers, lengths, queries, threads=1)[0]
    ).all()


def test_many_pairs_of_one_text_are_divided_among_threads() -> None:
    """Splitting a text into parts that share its graph must not change the result."""
    A = attention(np.random.default_rng(4), 5, 20, 3.0, residual=0.0)  # the solver renumbers nodes here
    places = np.argwhere(np.ones((5, 20, 20))).astype(np.int32)
    pairs = np.concatenate([np.zeros_like(places[:, :1]), places + np.array([1, 0, 0], dtype=np.int32)], 1)
    values, steps = native().text_flows([layer[None] for layer in A], np.array([20], dtype=np.int32), pairs, 3)
    assert (values.reshape(5, 20, 20) == af.flow(A)).all()
    assert steps["pairs"] == 2000


def test_torch_gives_what_numpy_gives(batch: tuple[list[np.ndarray], Lengths]) -> None:
    torch = pytest.importorskip("torch", reason="compares tensors")
    layers, lengths = batch
    tensors = [torch.from_numpy(layer).float().requires_grad_() for layer in layers]
    values, _ = batch_flows(tensors, lengths, [0] * 5)
    assert (values == batch_flows([layer.astype(np.float32) for layer in layers], lengths, [0] * 5)[0]).all()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_text_that_is_not_finite_harms_no_other(batch: tuple[list[np.ndarray], Lengths], number: float) -> None:
    layers, lengths = batch
    broken = [layer.copy() for layer in layers]
    broken[2][1, 8, 8] = broken[4][4, 0, 3] = number
    values, _ = batch_flows(broken, lengths, [0] * 5)
    whole, _ = batch_flows(layers, lengths, [0] * 5)
    assert np.isnan(values[[1, 4]]).all()
    assert (values[[0, 2, 3]] == whole[[0, 2, 3]]).all()


def test_a_batch_of_nothing_but_broken_texts_has_no_flow() -> None:
    values, steps = batch_flows([np.full((2, 3, 3), np.nan)] * 4, [3, 2], [0, 0])
    assert np.isnan(values).all()
    assert not any(steps.values())


ONES = [np.ones((2, 3, 3))] * 3

MISTAKES = {
    "no layers": (([], [3, 3], [0, 0]), "the batch has no layers: expected at least one array [text, position, position]"),
    "not square": (
        ([np.ones((2, 3, 4))], [3, 3], [0, 0]),
        "layer 0 of the batch has shape (2, 3, 4): expected [text, position, position] in all layers",
    ),
    "different layers": (
        ([np.ones((2, 3, 3)), np.ones((2, 4, 4))], [3, 3], [0, 0]),
        "layer 1 of the batch has shape (2, 4, 4): expected [text, position, position] in all layers",
    ),
    "too few lengths": ((ONES, [3], [0, 0]), "lengths=[3]: expected 2 numbers, one for each text, from 1 to 3"),
    "too long": ((ONES, [3, 4], [0, 0]), "lengths=[3, 4]: expected 2 numbers, one for each text, from 1 to 3"),
    "empty text": ((ONES, [3, 0], [0, 0]), "lengths=[3, 0]: expected 2 numbers, one for each text, from 1 to 3"),
    "too few queries": ((ONES, [3, 2], [0]), "queries has 1 positions: expected 2, one for each text"),
    "query beyond its text": (
        (ONES, [3, 2], [0, 2]),
        "query 2 does not exist in text 1, which has 2 positions",
    ),
    "no such layer": ((ONES, [3, 2], [0, 0], [3]), "layer 3 does not exist: there are 3, so expected -3 to 2"),
    "no thread": ((ONES, [3, 2], [0, 0], None, 0), "threads=0: expected an int of at least 1, or None for all cores"),
    "negative": (
        ([np.ones((2, 3, 3)), -np.ones((2, 3, 3))], [3, 2], [0, 0]),
        "the graph of text 0 has a negative capacity: expected non-negative numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    arguments, message = MISTAKES[mistake]
    with pytest.raises(InputError, match=re.escape(message)):
        batch_flows(*arguments)


def test_too_large_a_flow_says_what_to_do() -> None:
    with pytest.raises(InputError, match="scale its capacities down"):
        batch_flows([np.full((1, 2, 2), 1.7e308)] * 3, [2], [0])


ONE = [np.ones((1, 2, 2))]
PAIR, TWO = [0, 1, 0, 0], [2]
NATIVE_MISTAKES = {
    "negative": (([-np.ones((1, 2, 2))], TWO, [PAIR]), ValueError, "a capacity is negative or NaN"),
    "NaN": (([np.full((1, 2, 2), np.nan)], TWO, [PAIR]), ValueError, "a capacity is negative or NaN"),
    "no layers": (([], TWO, [PAIR]), ValueError, "a graph needs at least one layer"),
    "misfit": (([np.ones((2, 2, 2))], TWO, [PAIR]), ValueError, "layers do not fit together"),
    "integers": (([np.ones((1, 2, 2), dtype=np.int64)], TWO, [PAIR]), TypeError, "a layer is no float32 or float64"),
    "length": ((ONE, [3], [PAIR]), IndexError, "length"),
    "text": ((ONE, TWO, [[1, 1, 0, 0]]), IndexError, "text"),
    "layer": ((ONE, TWO, [[0, 0, 0, 0]]), IndexError, "layer"),
    "query": ((ONE, TWO, [[0, 1, 2, 0]]), IndexError, "query"),
    "token": ((ONE, TWO, [[0, 1, 0, -1]]), IndexError, "token"),
    "order": (([np.ones((2, 2, 2))], [2, 2], [[1, 1, 0, 0], PAIR]), ValueError, "the pairs are not sorted by text"),
}


@pytest.mark.parametrize("mistake", NATIVE_MISTAKES)
def test_the_compiled_solver_checks_what_it_is_handed(mistake: str) -> None:
    (layers, lengths, pairs), error, message = NATIVE_MISTAKES[mistake]
    with pytest.raises(error, match=message):
        native().text_flows(layers, np.array(lengths, dtype=np.int32), np.array(pairs, dtype=np.int32), 2)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for a single child process")
def test_ctrl_c_stops_the_solver() -> None:
    script = textwrap.dedent("""
        import signal
        import numpy as np
        from attnflow.flow_batches import batch_flows
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits an ignored one
        rng = np.random.default_rng(0)
        layers = [rng.random((20, 200, 200)) * (rng.random((20, 200, 200)) < 0.5) for _ in range(20)]
        print("ready", flush=True)
        try:
            while True:
                batch_flows(layers, [200] * 20, range(20))
        except KeyboardInterrupt:
            print("stopped", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(1.0)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=30)
        assert out == "stopped\n"
    finally:
        child.kill()  # it would keep running after a failed assertion
