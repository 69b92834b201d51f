"""Joint flow against slow formulations, and facts about every graph: shares, conservation, widths, proof."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, sparse

import attnflow as af
from attnflow.joint_flow import joint_flow_and_gaps
from benchmarks.joint_flow import published
from helpers.families import attention

torch = pytest.importorskip("torch", reason="tensors need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")
Floats = NDArray[np.float64]


def graph_of(kind: str, rng: np.random.Generator, depth: int, n: int) -> list[Floats]:
    random = [rng.random((n, n)) for _ in range(depth)]
    wide = rng.integers(1, 7, depth + 1)
    return {
        "attention": lambda: list(attention(rng, depth, n, sharpness=2.0)),
        "causal": lambda: [np.tril(layer) for layer in random],
        "holes": lambda: [layer * (rng.random((n, n)) < 0.5) for layer in random],
        "scales": lambda: [layer * 10.0 ** rng.uniform(-3, 3) for layer in random],
        "integers": lambda: [rng.integers(0, 3, (n, n)).astype(float) for _ in range(depth)],
        "sizes": lambda: [rng.random((high, low)) for low, high in itertools.pairwise(wide)],
    }[kind]()


KINDS = ["attention", "causal", "holes", "scales", "integers", "sizes"]
kinds = pytest.mark.parametrize("kind", KINDS)


class Edges:
    """The edges below a query as a list, with the matrix of outflow minus inflow of each inner node."""

    def __init__(self, matrices: list[Floats], query: int) -> None:
        rows = [*matrices[:-1], matrices[-1][query : query + 1]]
        starts = np.cumsum([0, rows[0].shape[1], *(m.shape[0] for m in rows)])
        ends = [(l, u, v) for l, m in enumerate(rows) for u in range(m.shape[0]) for v in range(m.shape[1])]
        self.upper = np.array([starts[l + 1] + u for l, u, _ in ends])
        self.lower = np.array([starts[l] + v for l, _, v in ends])
        self.capacities = np.concatenate([m.ravel() for m in rows])
        self.query, self.nodes, self.inputs = int(starts[-2]), int(starts[-1]), int(starts[1])
        at, one = np.arange(len(ends)), np.ones(len(ends))
        leaving = sparse.csr_matrix((one, (self.upper, at)), (self.nodes, len(ends)))
        entering = sparse.csr_matrix((one, (self.lower, at)), (self.nodes, len(ends)))
        self.balance = (leaving - entering)[self.inputs : self.query]
        self.leaving = leaving.toarray()[self.query]

    def of(self, joint: af.JointFlow) -> Floats:
        return np.concatenate([*(e.ravel() for e in joint.edges[:-1]), joint.edges[-1][joint.query]])

    def maximum(self, cost: Floats | None = None, value: float | None = None) -> Floats:
        """Compute a maximum flow by linear programming or, if a value is given, the cheapest flow of that value."""
        equal = self.balance if value is None else sparse.vstack([self.balance, sparse.csr_matrix(self.leaving)])
        right = np.zeros(equal.shape[0])
        if value is not None:
            right[-1] = value
        bounds = np.stack([np.zeros_like(self.capacities), self.capacities], axis=1)
        objective = -self.leaving if cost is None else cost
        constraints = {"A_eq": equal, "b_eq": right} if equal.shape[0] else {}
        return np.asarray(optimize.linprog(objective, bounds=bounds, method="highs", **constraints).x)

    def potentials_fit(self, flow: Floats, tolerance: float) -> float:
        """Return how far the best potentials miss ``flow = min(c, max(0, p_u - p_v))``; zero proves the least norm."""
        count = len(flow)
        drop = sparse.csr_matrix((np.ones(count), (np.arange(count), self.upper)), (count, self.nodes))
        drop = drop - sparse.csr_matrix((np.ones(count), (np.arange(count), self.lower)), (count, self.nodes))
        live = self.capacities > 0
        not_above = live & (flow < self.capacities - tolerance)  # drop ≤ flow
        not_below = live & (flow > tolerance)  # drop ≥ flow
        rows = sparse.vstack([drop[not_above], -drop[not_below]])
        right = np.concatenate([flow[not_above], -flow[not_below]])
        rows = sparse.hstack([rows, -np.ones((rows.shape[0], 1))])
        fixed = [(0, 0)] * self.inputs + [(None, None)] * (self.nodes - self.inputs) + [(0, None)]
        objective = np.zeros(self.nodes + 1)
        objective[-1] = 1
        return float(optimize.linprog(objective, A_ub=rows, b_ub=right, bounds=fixed, method="highs").fun)


def joint_and_edges(matrices: list[Floats], query: int) -> tuple[af.JointFlow, Edges, Floats]:
    joint, edges = af.least_norm_flow(matrices, query), Edges(matrices, query)
    return joint, edges, edges.of(joint)


@kinds
@pytest.mark.parametrize("seed", range(4))
def test_the_flow_keeps_its_widths_and_is_the_largest(kind: str, seed: int) -> None:
    matrices = graph_of(kind, np.random.default_rng(seed), 4, 6)
    joint, edges, flow = joint_and_edges(matrices, 0)
    largest = float(edges.maximum() @ edges.leaving)
    assert joint.value == pytest.approx(largest, rel=1e-9, abs=1e-12)
    if largest:
        assert (flow >= 0).all() and (flow <= edges.capacities * (1 + 1e-12)).all()
        assert np.abs(edges.balance @ flow).max() <= 1e-10 * largest
        assert joint.shares.sum() == pytest.approx(1, rel=1e-12) and joint.gap < 1e-9
        np.testing.assert_allclose(joint.edges[0].sum(0), joint.shares * largest, rtol=1e-9, atol=1e-12 * largest)
        assert (flow**2).sum() / 2 == pytest.approx(joint.objective, rel=1e-9)
        assert joint.gap >= (joint.objective - joint.bound) / joint.objective - 1e-15
    else:
        assert not flow.any() and not joint.shares.any() and joint.gap == 0


@kinds
@pytest.mark.parametrize("seed", range(4))
def test_potentials_prove_the_least_norm(kind: str, seed: int) -> None:
    """Linear programming solves the Karush-Kuhn-Tucker conditions, so no code is shared with the solver."""
    matrices = graph_of(kind, np.random.default_rng(10 + seed), 3, 5)
    joint, edges, flow = joint_and_edges(matrices, 0)
    scale = joint.value or 1.0
    assert edges.potentials_fit(flow, 1e-7 * scale) <= 1e-6 * scale


def test_the_conditions_fail_for_other_maximum_flows() -> None:
    matrices = graph_of("attention", np.random.default_rng(0), 3, 5)
    _, edges, flow = joint_and_edges(matrices, 0)
    other = edges.maximum(cost=np.random.default_rng(1).random(len(flow)), value=1.0)
    assert edges.potentials_fit(other, 1e-7) > 0.01


@kinds
def test_the_published_formulation_finds_the_same(kind: str) -> None:
    matrices = graph_of(kind, np.random.default_rng(20), 3, 4)
    value = float(af.least_norm_flow(matrices, 0).value)
    slow = published(matrices, 0, value)
    np.testing.assert_allclose(slow.shares, af.joint_flow(matrices, 0, -1)[0, 0], atol=2e-5)


@kinds
def test_no_maximum_flow_goes_below_the_bound(kind: str) -> None:
    rng = np.random.default_rng(30)
    matrices = graph_of(kind, rng, 3, 5)
    joint, edges, flow = joint_and_edges(matrices, 0)
    corners = [edges.maximum(cost=rng.normal(size=len(flow)), value=joint.value * (1 - 1e-12)) for _ in range(12)]
    for weights in rng.dirichlet(np.full(12, 0.3), 40):
        mixed = sum(weight * corner for weight, corner in zip(weights, corners, strict=True))
        assert (mixed**2).sum() / 2 >= joint.bound * (1 - 1e-9)
        nearer = 0.9 * flow + 0.1 * mixed  # also a maximum flow
        assert (nearer**2).sum() / 2 >= joint.bound * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 7), st.sampled_from(KINDS[:-1]))
def test_permuting_the_tokens_permutes_the_shares(seed: int, depth: int, n: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    matrices = np.stack(graph_of(kind, rng, depth, n))
    order = rng.permutation(n)
    moved = matrices[:, order][:, :, order]
    expected = af.joint_flow(matrices, layers=-1)[0][order][:, order]
    np.testing.assert_allclose(af.joint_flow(moved, layers=-1)[0], expected, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 7), st.sampled_from(KINDS))
def test_rows_are_shares_and_proven(seed: int, depth: int, n: int, kind: str) -> None:
    matrices = graph_of(kind, np.random.default_rng(seed), depth, n)
    shares, gaps = joint_flow_and_gaps(matrices, layers=-1)
    reached = af.flow(matrices, layers=-1).any(-1)
    np.testing.assert_allclose(shares.sum(-1), reached, atol=1e-12)
    assert (shares >= 0).all() and (gaps <= 1e-9).all() and not gaps[~reached].any()


def test_wider_pipes_and_units_do_not_matter() -> None:
    """Scaling all widths scales the flow. Edges that never fill up may be wider, and only infinite edges are free."""
    A = attention(np.random.default_rng(1), 4, 6, sharpness=2.0)
    expected = af.joint_flow(A)
    for scale in (1e-200, 3.0, 1e200):
        np.testing.assert_allclose(af.joint_flow(A * scale), expected, atol=1e-9)
    joint, wide = af.least_norm_flow(A, 2), A.copy()
    room = [a - f for a, f in zip(A, joint.edges, strict=True)]
    for layer, free in zip(wide[:-1], room, strict=False):
        layer[free > 0.01] += 5
    np.testing.assert_allclose(af.joint_flow(wide, 2, -1)[0, 0], joint.shares, atol=1e-9)


def test_at_the_first_layer_it_is_rollout() -> None:
    A = attention(np.random.default_rng(2), 3, 6)
    np.testing.assert_allclose(af.joint_flow(A, layers=0), af.rollout(A, layers=0), atol=1e-9)


def path_divergence(matrices: Floats, edges: tuple[Floats, ...], query: int) -> float:
    """Return the divergence of a flow's paths from the random walk: ``Σ_e f_e log(f_e / (inflow · A_e))``."""
    total, inflow = 0.0, np.eye(len(matrices[-1]))[query]
    for matrix, flow in zip(matrices[::-1], edges[::-1], strict=True):
        walk = inflow[:, None] * matrix
        some = flow > 0
        total += float((flow[some] * np.log(flow[some] / walk[some])).sum())
        inflow = flow.sum(0)
    return total


def test_rollout_is_the_maximum_flow_whose_paths_are_nearest_to_a_random_walk() -> None:
    """docs/maths.md says this of rollout if rows sum to one; joint flow differs."""
    A = attention(np.random.default_rng(3), 4, 6, sharpness=2.0)
    inflow, rolled = np.eye(6)[0], []
    for matrix in A[::-1]:
        rolled.insert(0, inflow[:, None] * matrix)
        inflow = rolled[0].sum(0)
    assert all((r <= a + 1e-15).all() for r, a in zip(rolled, A, strict=True))
    np.testing.assert_allclose(inflow, af.rollout(A, 0, layers=-1)[0, 0], atol=1e-12)
    joint = af.least_norm_flow(A, 0)
    assert joint.value == pytest.approx(1, abs=1e-12)
    assert path_divergence(A, tuple(rolled), 0) == pytest.approx(0, abs=1e-12)
    assert path_divergence(A, joint.edges, 0) > 0.01
    assert sum((r**2).sum() for r in rolled) / 2 > joint.objective * 1.01
    assert np.abs(joint.shares - inflow).max() > 0.01


def test_where_nothing_is_narrow_the_inputs_share_alike() -> None:
    """This is why joint flow forgets the query: with enough width below, the query's own row does not matter."""
    A = np.full((3, 5, 5), 0.9)
    A[-1] = np.random.default_rng(4).dirichlet(np.ones(5), 5)
    np.testing.assert_allclose(af.joint_flow(A, layers=-1), 0.2, atol=1e-9)


def test_layers_forget_the_query() -> None:
    A = attention(np.random.default_rng(5), 8, 7, sharpness=1.0)
    joint, rolled = af.joint_flow(A), af.rollout(A)
    apart = [[np.abs(x[l] - x[l].mean(0)).sum(-1).mean() / 2 for l in (0, 1, 7)] for x in (joint, rolled)]
    assert apart[0][0] == pytest.approx(apart[1][0], abs=1e-9) and apart[0][1] < apart[1][1]
    assert apart[0][2] < 1e-3 < apart[1][2]


def test_one_token_one_layer_and_inputs_that_nothing_reaches() -> None:
    assert af.joint_flow(np.full((3, 1, 1), 0.5)).tolist() == [[[1.0]]] * 3
    shares = af.joint_flow(np.array([[[0.5, 0.0, 1.5], [0, 0, 0], [0, 0, 2]]]))
    np.testing.assert_allclose(shares[0], [[0.25, 0, 0.75], [0, 0, 0], [0, 0, 1]], atol=1e-9)
    apart = np.stack([np.eye(4)[[1, 0, 3, 2]]] * 3)
    np.testing.assert_allclose(af.joint_flow(apart), af.rollout(apart), atol=1e-9)
    nothing = af.least_norm_flow(np.zeros((2, 3, 3)), 0)
    assert (nothing.value, nothing.gap, nothing.shares.tolist()) == (0, 0, [0, 0, 0])


def test_a_narrow_first_layer_by_hand() -> None:
    """Each state gets half of the flow, and 0 → 1 carries at most 0.1: 0.4, 0.1, 0.25, 0.25."""
    A = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.2, 0.8]]])
    joint = af.least_norm_flow(A, 0)
    np.testing.assert_allclose(joint.edges[0], [[0.4, 0.1], [0.25, 0.25]], atol=1e-9)
    assert joint.objective == pytest.approx((2 * 0.5**2 + 0.4**2 + 0.1**2 + 2 * 0.25**2) / 2, abs=1e-9)


def test_infinitely_wide_edges_limit_nothing_and_cost_next_to_nothing() -> None:
    """One input has an infinite edge and then pipes, the other only pipes: the longer path costs no more."""
    top, infinite = np.array([[0.6, 0.6]]), np.array([[np.inf, 0], [0, 0.7]])
    joint = af.least_norm_flow([np.eye(2) * 0.7, infinite, top], 0)
    assert joint.value == pytest.approx(1.2)
    np.testing.assert_allclose(joint.shares, [0.5, 0.5], atol=1e-9)
    even = af.joint_flow([np.full((2, 2), 0.4), infinite, np.array([[0.5, 0.5]])], 0, -1)
    np.testing.assert_allclose(even, 0.5, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_widths_of_very_different_sizes(seed: int) -> None:
    """Anything below 1e-15 of the total counts as zero; the rest keeps its proof."""
    rng = np.random.default_rng(seed)
    shares, gaps = joint_flow_and_gaps(10.0 ** rng.uniform(-200, 200, (5, 6, 6)), layers=-1)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-12)
    assert (gaps < 1e-9).all()


def test_selection_batches_and_tensors() -> None:
    A = attention(np.random.default_rng(6), 3, 5)
    everything = af.joint_flow(A)
    assert everything.shape == (3, 5, 5)
    np.testing.assert_allclose(af.joint_flow(A, [4, -5], [-1, 0]), everything[[2, 0]][:, [4, 0]], atol=1e-9)
    np.testing.assert_allclose(af.joint_flow(np.stack([A, A[::-1]]))[0], everything, atol=1e-9)
    tensor = af.joint_flow(torch.tensor(A), queries=1)
    assert isinstance(tensor, np.ndarray)
    np.testing.assert_allclose(tensor, everything[:, [1]], atol=1e-9)
    one = af.least_norm_flow(A[None], -1, 1)
    assert (one.query, one.layer, len(one.edges)) == (4, 1, 2)
    np.testing.assert_allclose(one.shares, everything[1, 4], atol=1e-9)


def test_many_queries_are_solved_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    A = attention(np.random.default_rng(7), 3, 5)
    together = af.joint_flow(A)
    monkeypatch.setattr(sys.modules["attnflow.joint_flow"], "AT_ONCE", 2 * A.size)
    np.testing.assert_allclose(af.joint_flow(A), together, atol=1e-9)


def test_mistakes() -> None:
    A = attention(np.random.default_rng(8), 2, 3)
    with pytest.raises(af.InputError, match="query 3 does not exist: there are 3"):
        af.joint_flow(A, queries=3)
    with pytest.raises(af.InputError, match="layer 2 does not exist: there are 2"):
        af.least_norm_flow(A, 0, 2)
    with pytest.raises(af.InputError, match="the graph has a batch of 2: give one graph of it"):
        af.least_norm_flow(np.stack([A, A]), 0)
    with pytest.raises(af.InputError, match="is infinite, so its inputs have no shares: expected an edge of finite"):
        af.joint_flow(np.full((2, 2, 2), np.inf))


def test_a_flow_that_is_not_proven_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnflow.least_norm.STEPS", 2)
    with pytest.raises(
        af.InputError, match=r"joint flow of query 0 at layer 2 is only proven to a gap of .*, not to 1e-06"
    ):
        af.joint_flow(attention(np.random.default_rng(9), 3, 4), 0, -1)


def test_a_trace_has_it_with_its_certificate() -> None:
    trace = af.load().trace("the key to the cabinets", keep_heads=True)
    result = trace.joint_flow(layer=-1)
    expected = af.joint_flow(trace.graph(), queries=0, layers=-1)
    np.testing.assert_allclose(result.values, expected, atol=1e-9)
    assert result.method == "joint_flow" and 0 <= result.provenance["certificate"]["gap"] < 1e-9
    assert result.words().method == "joint_flow" and trace.joint_flow("all").values.shape == (6, 7, 7)
    one = trace.single_head(1, 0, "joint_flow").values
    graph = np.stack([trace.graph()[0], 0.5 * trace.weights[1][0].numpy() + 0.5 * np.eye(7)])
    np.testing.assert_allclose(one, af.joint_flow(graph, 0, -1), atol=1e-6)


def test_source_and_target_of_an_encoder_decoder() -> None:
    """Carried states are infinitely wide: the source in the decoder's layers, the target in the encoder's."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0, initializer_factor=3.0
    )  # fmt: skip
    model = af.wrap(transformers.T5ForConditionalGeneration(config).eval())
    inputs = {"input_ids": torch.arange(1, 5)[None], "decoder_input_ids": torch.arange(3, 6)[None]}
    result = model.trace(inputs).joint_flow("all")
    np.testing.assert_allclose(result.values.sum(-1), 1, atol=1e-9)
    assert result.provenance["certificate"]["gap"] < 1e-9
    assert (result.values[:, 0, 5:] == 0).all() and (result.values[-1, -1] > 0).all()


def test_a_trace_says_where_the_query_is_forgotten() -> None:
    trace = af.load().trace("the key to the cabinets")
    (note,) = trace.joint_flow(layer=-1).reliability
    assert note.startswith("Other queries have nearly the same row (100 % in common): this joint flow has mixed all")
    assert not trace.joint_flow(layer=1).reliability
