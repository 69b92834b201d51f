"""Flows proved on the GPU against the solver. Skipped without an NVIDIA GPU and Triton."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="flows are proven on tensors")
pytest.importorskip("triton", reason="flows are proven by Triton kernels")
if not torch.cuda.is_available():
    pytest.skip("flows are proven on an NVIDIA GPU", allow_module_level=True)

import attnflow as af  # noqa: E402
from attnflow import flow_device  # noqa: E402
from attnflow.flow import flow_and_steps  # noqa: E402
from attnflow.flow_batches import batch_flows  # noqa: E402
from attnflow.flow_kernels import COLUMNS, HOPS, OPEN  # noqa: E402
from attnflow.flow_pairs import Question, Unit  # noqa: E402
from benchmarks import graphs  # noqa: E402
from helpers.families import FAMILIES, attention  # noqa: E402


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def family(name: str, n: int, depth: int) -> np.ndarray:
    return np.stack(FAMILIES[name](rng(n), [n] * (depth + 1)))


GRAPHS = {
    "peaked": lambda: graphs.peaked(40, 6),
    "peaked, deep": lambda: graphs.peaked(33, 24),
    "peaked, 128": lambda: graphs.peaked(128, 5),
    "causal": lambda: graphs.causal(50, 6),
    "local": lambda: graphs.local(64, 5),
    "uniform, where all cuts tie": lambda: graphs.uniform(48, 6),
    "random": lambda: attention(rng(), 7, 31, 2.0),
    "without a residual connection": lambda: attention(rng(), 5, 31, 2.0, residual=0.0),
    "nearly all residual": lambda: attention(rng(), 5, 31, 2.0, residual=0.95),
    "one position": lambda: attention(rng(), 4, 1),
    "two positions": lambda: attention(rng(), 5, 2),
    "tiny capacities": lambda: attention(rng(), 5, 20, 3.0) * 1e-290,
    "few distinct capacities": lambda: family("equal", 24, 5),
    "sparse": lambda: family("sparse", 24, 5),
    "crossing": lambda: family("crossing", 12, 8),
    "disconnected": lambda: family("permutations", 24, 5),
    "extreme": lambda: family("extreme", 16, 5),
    "wide edges": lambda: family("quasi_infinite", 16, 5),
    "wide ends": lambda: family("wide_ends", 16, 5),
}  # fmt: skip


# The solver takes the first two steps in the same order only on these graphs: it renumbers the nodes of the others.
ALIKE = {name for name in GRAPHS if name.startswith(("peaked", "causal", "local", "uniform", "random", "tiny"))}


def agree(ours: np.ndarray, truth: np.ndarray) -> bool:
    return bool((np.abs(ours - truth) <= 1e-12 * truth).all())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_gpu_proves_is_the_maximum(name: str, dtype: str) -> None:
    A = GRAPHS[name]().clip(0, 1e38 if dtype == "float32" else np.inf).astype(dtype)
    depth, n, _ = A.shape
    tensors = [torch.from_numpy(layer[None]).cuda() for layer in A]
    everything = np.arange(n, dtype=np.int32)
    levels = list(range(1, depth + 1))
    question = Question(np.array([n], dtype=np.int32), levels, everything[None], everything)
    batch = flow_device.prepare(tensors, question.lengths, flow_device.are_full(tensors, question.lengths))
    unit = Unit(batch, question, slice(0, 1), slice(0, n))
    values, steps = (x.reshape(depth, n, n) for x in flow_device.collect(unit.proving))
    truth, counts = flow_and_steps(A)
    proven = steps != OPEN
    assert agree(values[proven], truth[proven])
    assert proven[:2].all(), "the first two layers have closed forms"
    if name in ALIKE:
        ours = (steps == COLUMNS).sum(), (steps == HOPS).sum()
        assert ours == pytest.approx((counts["columns"], counts["hops"]), rel=0.02, abs=2)


def by_device(steps: dict[str, int]) -> int:
    return sum(count for name, count in steps.items() if name.startswith("device"))


def test_two_hops_prove_most_of_what_one_leaves() -> None:
    _, steps = flow_and_steps(torch.from_numpy(graphs.peaked(128, 8)).cuda(), layers=-1)
    assert steps["device two hops"] > 10 * steps["search"]


@pytest.mark.parametrize("n", [15, 16, 17, 127, 129, 200, 257, 300, 512])
def test_any_number_of_positions(n: int) -> None:
    A = graphs.peaked(n, 4)
    queries, tokens = [0, n // 2, n - 1], sorted({0, 1, n // 3, n // 2, n - 1})
    ours = af.flow(torch.from_numpy(A).cuda(), queries, tokens)
    assert agree(ours, af.flow(A, queries, tokens))


def test_more_positions_than_the_kernel_takes() -> None:
    A = attention(rng(), 3, 520, 2.0)
    values, steps = flow_and_steps(torch.from_numpy(A).cuda(), [0], [1, 2], -1)
    assert (values == af.flow(A, [0], [1, 2], -1)).all()
    assert not by_device(steps)


@pytest.mark.parametrize("kind", graphs.GENERATED)
def test_flow_of_a_cuda_tensor_is_that_of_the_array(kind: str) -> None:
    A = np.stack([graphs.GENERATED[kind](40, 6, seed) for seed in (0, 1, 2)])
    ours, steps = flow_and_steps(torch.from_numpy(A).cuda(), layers=[0, 1, 3, 5])
    truth, counts = flow_and_steps(A, layers=[0, 1, 3, 5])
    assert agree(ours, truth)
    assert steps["pairs"] == counts["pairs"]
    assert by_device(steps) > 0
    solved = ("columns", "hops", "search")
    assert by_device(steps) + sum(steps[name] for name in solved) == sum(counts[name] for name in solved)


def test_infinite_capacities() -> None:
    A = np.where(rng(5).random((5, 9, 9)) < 0.2, np.inf, family("sparse", 9, 5))
    ours, truth = af.flow(torch.from_numpy(A).cuda()), af.flow(A)
    assert (np.isinf(ours) == np.isinf(truth)).all()
    assert agree(ours[np.isfinite(truth)], truth[np.isfinite(truth)])


def texts(causal: bool, dtype: Any) -> tuple[list[np.ndarray], list[int]]:
    """Return a padded batch with garbage outside the texts."""
    numbers = rng(7)
    lengths = [1, 2, 5, 33, 40, 17, 24]
    layers = [np.full((len(lengths), 40, 40), np.nan, dtype=dtype) for _ in range(6)]
    for text, n in enumerate(lengths):
        A = graphs.causal(n, 6, text) if causal else attention(numbers, 6, n, 2.0)
        for layer, matrix in zip(layers, A, strict=True):
            layer[text, :n, :n] = matrix
    return layers, lengths


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_a_padded_batch(causal: bool, dtype: Any) -> None:
    layers, lengths = texts(causal, dtype)
    on_device = [torch.from_numpy(layer).cuda() for layer in layers]
    for queries in ([0] * len(lengths), [-1] * len(lengths)):
        ours, steps = batch_flows(on_device, lengths, queries)
        truth, _ = batch_flows(layers, lengths, queries)
        assert agree(ours, truth)
        assert by_device(steps) > 0


def test_parts_of_a_batch_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, lengths = texts(False, np.float32)
    on_device = [torch.from_numpy(layer).cuda() for layer in layers]
    whole, counts = batch_flows(on_device, lengths, [0] * 7)
    monkeypatch.setattr("attnflow.flow_pairs.AT_ONCE", 2 * 6 * 40 * 40 * 4 * 2)  # room for two texts
    parts, steps = batch_flows(on_device, lengths, [0] * 7)
    assert (parts == whole).all()
    assert steps == counts


def test_a_broken_text_harms_no_other_on_the_gpu() -> None:
    layers, lengths = texts(False, np.float32)
    on_device = [torch.from_numpy(layer).cuda() for layer in layers]
    whole, _ = batch_flows(on_device, lengths, [0] * 7)
    on_device[3][4, 0, 0] = float("nan")
    values, _ = batch_flows(on_device, lengths, [0] * 7)
    assert np.isnan(values[4]).all()
    kept = [0, 1, 2, 3, 5, 6]
    assert (values[kept] == whole[kept]).all()
