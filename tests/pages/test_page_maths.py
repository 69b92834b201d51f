"""The maths of the page, in a real browser, compared with the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow import receptive
from attnflow.capture.passes import Step
from attnflow.evaluate import statistics
from attnflow.flow import CutEdge
from attnflow.trace import Trace
from helpers.families import FAMILIES, attention, dyadic, widths
from helpers.validator import check_certificate

MODULE = Path(__file__).parents[2] / "web" / "src" / "maths.js"
LOAD = """async (source) => {
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    window.maths = await import(address);
    window.read = (steps) => steps.map((s) => ({ ...s, values: new (s.single ? Float32Array : Float64Array)(s.values) }));
}"""

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(browser: Any) -> Iterator[Ask]:
    """Return ask("maths.f(x)", x=…), which evaluates the expression in the browser."""
    page = browser.new_page()
    page.evaluate(LOAD, MODULE.read_text(encoding="utf-8"))

    def asked(expression: str, **given: Any) -> Any:
        return page.evaluate(f"async ({{ {', '.join(given)} }}) => ({expression})", given)

    yield asked
    page.close()


def sent(step: Any, carried: range = range(0), residual: bool = True) -> dict[str, Any]:
    """Encode a step or a matrix for `read` in the browser."""
    if isinstance(step, Step):
        return sent(step.weights, step.carried, step.residual)
    single = step.dtype == torch.float32
    rows, cols = step.shape
    values = np.asarray(step, dtype=np.float64).ravel().tolist()
    ends = [carried.start, carried.stop]
    return {"rows": rows, "cols": cols, "values": values, "carried": ends, "residual": residual, "single": single}


def all_sent(steps: Sequence[Any]) -> list[dict[str, Any]]:
    return [sent(step) for step in steps]


def matrices(steps: list[dict[str, Any]]) -> list[np.ndarray]:
    return [np.reshape(step["values"], (step["rows"], step["cols"])) for step in steps]


def weights(rng: np.random.Generator, rows: int, cols: int | None = None) -> torch.Tensor:
    w = np.exp(2 * rng.normal(size=(rows, cols or rows)))
    return torch.tensor(w / w.sum(-1, keepdims=True), dtype=torch.float32)


def a_trace(steps: Sequence[Step], ends: Sequence[int], word_ids: Sequence[int | None], **more: Any) -> Trace:
    n = len(word_ids)
    return Trace(
        tokens=tuple(f"t{i}" for i in range(n)),
        special=tuple(w is None for w in word_ids),
        word_ids=tuple(word_ids),
        word_texts=tuple(f"w{i}" for i in range(n)),
        text="",
        steps=tuple(steps),
        ends=tuple(ends),
        default_query=0,
        provenance={},
        **more,
    )


def encoder_decoder() -> Trace:
    """Two source layers, then two decoder layers of two attentions each, over 4 source and 3 target positions."""
    rng = np.random.default_rng(5)
    source, target = range(0, 4), range(4, 7)

    def over(queries: range, keys: range, carried: range) -> Step:
        w = torch.zeros(7, 7)
        w[queries.start : queries.stop, keys.start : keys.stop] = weights(rng, len(queries), len(keys))
        for i in carried:
            w[i, i] = 1
        return Step(w, carried)

    layers = [over(source, source, target) for _ in range(2)]
    for _ in range(2):
        layers += [over(target, target, source), over(target, source, source)]
    return a_trace(layers, [3, 5], [None, 0, 0, 1, None, 0, 0], parts=("source",) * 4 + ("target",) * 3, first_query=4)


def merging() -> Trace:
    """Layers of 8 positions, a step that merges pairs, and a layer of 4, as in Swin."""
    rng = np.random.default_rng(6)
    joined = torch.zeros(4, 8)
    for i in range(4):
        joined[i, 2 * i : 2 * i + 2] = 0.5
    steps = [Step(weights(rng, 8)), Step(weights(rng, 8)), Step(joined, residual=False), Step(weights(rng, 4))]
    return a_trace(steps, [0, 1, 3], [None] * 8)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_graph_is_that_of_the_trace_to_the_last_bit(ask: Ask, residual: float, dtype: torch.dtype) -> None:
    steps = [Step(s.weights.to(dtype), s.carried, s.residual) for s in [*encoder_decoder().steps, *merging().steps]]
    found = ask("maths.augmented(read(steps), residual)", steps=all_sent(steps), residual=residual)
    for step, ours, given in zip(steps, matrices(found), found, strict=True):
        assert np.array_equal(ours, step.graph(residual).double().numpy())
        assert given["carried"] == [step.carried.start, step.carried.stop]


def test_words_are_those_of_the_trace(ask: Ask) -> None:
    trace = encoder_decoder()
    words = trace.words()
    groups = [list(group) for group in words.word_groups or ()]
    found = ask("maths.merged(read(steps), groups)", steps=all_sent(trace.steps), groups=groups)
    for ours, step, given in zip(matrices(found), words.steps, found, strict=True):
        assert np.allclose(ours, step.weights.numpy(), rtol=1e-14, atol=0)
        assert given["carried"] == [step.carried.start, step.carried.stop] and given["residual"]
    graph = ask("maths.augmented(maths.merged(read(steps), groups), 0.3)", steps=all_sent(trace.steps), groups=groups)
    assert np.allclose(matrices(graph), words.graph(0.3), rtol=1e-14, atol=0)
    none = ask("maths.merged(read(steps), [[0], [2, 1]])", steps=all_sent([torch.eye(3)]))
    assert none[0]["carried"] == [0, 0] and none[0]["values"] == [1, 0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_receptive_fields(ask: Ask, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    steps = [torch.tril(weights(rng, 9)).to(dtype), weights(rng, 5, 9).to(dtype)]
    steps[1][2] = 0  # a query that sees nothing
    steps[1][:, 4] = 0  # a key that no query sees
    even = matrices(ask("maths.uniform(read(steps))", steps=all_sent(steps)))
    layer = matrices(ask("maths.layerwise(read(steps))", steps=all_sent(steps)))
    for step, ours, corrected in zip(steps, even, layer, strict=True):
        assert np.array_equal(ours, receptive.uniform(step).double().numpy())
        tolerance = 1e-6 if dtype == torch.float32 else 1e-14
        assert np.allclose(corrected, receptive.layerwise(step).double().numpy(), rtol=tolerance, atol=0)


@pytest.mark.parametrize("mode", ["ratio", "difference"])
def test_relative(ask: Ask, mode: str) -> None:
    values, field = np.array([0.5, 0.25, 0.0, 0.3]), np.array([0.25, 0.5, 0.0, 0.1])
    answers = iter([values, field])
    expected = receptive.relative(lambda _: next(answers), [np.eye(2)], mode)
    assert ask("maths.relative(mode, values, field)", mode=mode, values=values.tolist(), field=field.tolist()) == list(
        expected
    )


def test_relative_refuses_other_modes(ask: Ask) -> None:
    said = ask('(() => { try { maths.relative("layer", [], []); } catch (error) { return error.message; } })()')
    assert said == 'mode is layer: expected "ratio" or "difference"'


@pytest.mark.parametrize(
    "trace", [encoder_decoder(), merging(), encoder_decoder().words()], ids=["two", "merging", "words"]
)
def test_raw_attention(ask: Ask, trace: Trace) -> None:
    for layer in range(trace.layer_count):
        rows = trace.steps[trace.ends[layer]].weights.shape[0]
        expected = trace.raw("all", layer).values[0]
        ours = ask(
            "queries.map((query) => maths.rawRow(read(steps), ends, layer, query))",
            steps=all_sent(trace.steps),
            ends=list(trace.ends),
            layer=layer,
            queries=list(range(trace.first_query, rows)),
        )
        assert np.allclose(ours, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["uniform", "sparse", "equal", "causal", "permutations"])
@pytest.mark.parametrize("square", [True, False])
def test_rollout(ask: Ask, kind: str, square: bool) -> None:
    rng = np.random.default_rng(len(kind))
    layers = FAMILIES[kind](rng, [11] * 6 if square else [9, 4, 13, 1, 6, 8])
    for end in range(5):
        expected = af.rollout(layers, layers=end)[0]
        ours = ask(
            "[...Array(graph[end].rows).keys()].map((query) => maths.rolloutRow(read(graph), end, query))",
            graph=all_sent(layers),
            end=end,
        )
        assert np.allclose(ours, expected, rtol=1e-13, atol=0)


def test_rollout_of_all_layers(ask: Ask) -> None:
    A = attention(np.random.default_rng(1), 6, 10)
    ours = ask("maths.rolloutRows(read(graph), [1, 3, 5], 7)", graph=all_sent(list(A)))
    assert np.allclose(ours, af.rollout(A, 7, layers=[1, 3, 5])[:, 0], rtol=1e-13, atol=0)
    trace = merging()
    ours = ask("maths.rolloutRows(maths.augmented(read(steps), 0.5), [0, 1, 3], 3)", steps=all_sent(trace.steps))
    assert ours[:2] == [None, None]
    assert np.allclose(ours[2], trace.rollout(3).values[0, 0], rtol=1e-13, atol=0)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_one_head_at_a_time(ask: Ask, layer: int) -> None:
    rng = np.random.default_rng(2)
    W = np.stack([[weights(rng, 6).double().numpy() for _ in range(3)] for _ in range(4)])
    below = all_sent(list(af.attention_graph(W, residual=0.3))[:layer])
    for query in range(6):
        ours = ask(
            "maths.headRows(heads, read(below), query, 0.3)",
            heads=W[layer, :, query].tolist(),
            below=below,
            query=query,
        )
        expected = [af.single_head(W, layer, head, queries=query, residual=0.3)[0] for head in range(3)]
        assert np.allclose(ours, expected, rtol=1e-12, atol=0)


HALF = 1 + 2.0**-30  # halfway between two numbers of 30 digits

VALUES = {
    "plain": [0.3, 0.1, 0.2, 2.0],
    "ties": [0.3, 0.1, 0.3, 2.0, 0.1, 0.1],
    "nine digits": [1.0, 1 + 1e-10, 1 + 1e-8, 0.1, 0.1 * (1 - 1e-10), 7.0, 7.0000001],
    "negative": [-1.0, -1 - 1e-10, -2.0, 0.0, -0.0, 1e-300, -1e300],
    "halfway": [1.0, HALF, 1 + 2.0**-29, HALF + 2.0**-29, 1 + 2.0**-28, -HALF, -1.0],
    "up to a power": [1 - 1e-12, 1.0, 0.5, 0.5 + 1e-13, 2 - 1e-11, 2.0],
    "equal": [0.1 + 0.2, 0.3, 0.3],
    "one": [0.5],
    "infinite": [1.0, np.inf, 2.0],
    "nothing": [1.0, np.nan, 0.5, np.nan],
}


@pytest.mark.parametrize("name", VALUES)
def test_ranks(ask: Ask, name: str) -> None:
    expected = statistics.ranks(np.array(VALUES[name]))
    assert ask("maths.ranks(values)", values=VALUES[name]) == expected.tolist()
    assert ask("maths.ranks(new Float64Array(values))", values=VALUES[name]) == expected.tolist()


@pytest.mark.parametrize("name", VALUES)
def test_rank_correlation(ask: Ask, name: str) -> None:
    x = np.array(VALUES[name])
    y = np.random.default_rng(4).random(len(x))
    for a, b in [(x, y), (y, x), (x, x)]:
        ours = ask("maths.spearman(x, new Float64Array(y))", x=a.tolist(), y=b.tolist())
        assert ours == pytest.approx(statistics.spearman(a, b), rel=1e-14, abs=1e-15, nan_ok=True)


def test_rank_correlation_needs_pairs(ask: Ask) -> None:
    said = ask("(() => { try { maths.spearman([1, 2], [1]); } catch (error) { return error.message; } })()")
    assert said == "rank correlation of 2 with 1 values: expected the same number of both"


def opened(layers: Sequence[np.ndarray], carried: Sequence[range]) -> list[np.ndarray]:
    capacities = [layer.copy() for layer in layers]
    for capacity, among in zip(capacities, carried, strict=True):
        for i in among:
            capacity[i, i] = np.inf
    return capacities


def page_flow(
    ask: Ask, graph: list[dict[str, Any]], query: int, token: int, layer: int
) -> tuple[af.MaxFlow, dict[str, Any]]:
    """Return the browser's answer, and the same as the library's class, for its validator and its paths."""
    answer = ask("maths.maxFlow(read(graph), end, query, token)", graph=graph, end=layer, query=query, token=token)
    edges = [
        np.reshape(np.array(e, float), (s["rows"], s["cols"])) for e, s in zip(answer["edges"], graph, strict=False)
    ]
    cut = tuple(CutEdge(e["step"], e["query"], e["key"], float(e["capacity"])) for e in answer["cut"])
    value = float(answer["value"])  # whole numbers arrive as ints, which may be too large for numpy
    return af.MaxFlow(value, answer["gap"], cut, tuple(edges), query, token, layer), answer


def check_flow(
    ask: Ask, layers: list[np.ndarray], query: int, token: int, layer: int, carried: Sequence[range] = ()
) -> af.MaxFlow:
    carried = carried or [range(0)] * len(layers)
    graph = [sent(matrix, among) for matrix, among in zip(layers, carried, strict=True)]
    ours, answer = page_flow(ask, graph, query, token, layer)
    capacities = opened(layers, carried)
    expected = af.max_flow(capacities, query, token, layer)
    assert ours.value == pytest.approx(expected.value, rel=1e-9, abs=0)
    assert answer["capacity"] == pytest.approx(expected.value, rel=1e-9, abs=0)
    assert len(answer["reached"]) == layer + 2
    if np.isfinite(ours.value):
        check_certificate(capacities, ours)
        assert [e.capacity for e in ours.cut] == sorted((e.capacity for e in ours.cut), reverse=True)
        for e in ours.cut:
            assert not answer["reached"][e.layer + 1][e.query] and answer["reached"][e.layer][e.key]
    return ours


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@pytest.mark.parametrize("square", [True, False])
def test_the_largest_flow(ask: Ask, kind: str, square: bool) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        layers = FAMILIES[kind](rng, widths(rng, int(rng.integers(1, 7)), 8, square))
        layer = int(rng.integers(len(layers)))
        check_flow(ask, layers, int(rng.integers(layers[layer].shape[0])), int(rng.integers(layers[0].shape[1])), layer)


@pytest.mark.parametrize("kind", ["dense", "causal", "integers", "sharp"])
def test_the_largest_flow_of_larger_graphs(ask: Ask, kind: str) -> None:
    rng = np.random.default_rng(8)
    A = attention(rng, 8, 30, sharpness=6.0 if kind == "sharp" else 1.0)
    if kind == "causal":
        A = np.tril(A)
    if kind == "integers":
        A = np.floor(A * 40)
    for query, token in [(29, 0), (29, 17), (12, 12), (3, 20)]:
        check_flow(ask, list(A), query, token, 7)


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_is_the_one_that_the_library_names(ask: Ask, seed: int) -> None:
    """If sums are exact, the minimum cut nearest to the token is the same for every maximum flow."""
    A = dyadic(attention(np.random.default_rng(seed), 5, 9, sharpness=5.0, residual=0.3), bits=20)
    ours = check_flow(ask, list(A), 8, seed, 4)
    expected = af.max_flow(A, 8, seed, 4)
    assert ours.value == expected.value and ours.gap == 0
    assert set(ours.cut) == set(expected.cut)


def test_what_passes_through_limits_nothing(ask: Ask) -> None:
    trace = encoder_decoder()
    layers = list(trace.graph(0.5))
    carried = [step.carried for step in trace.steps]
    expected = trace.flow("all", 1).values[0]
    for query, token in product(range(3), range(7)):
        ours = check_flow(ask, layers, query + 4, token, 5, carried)
        assert ours.value == pytest.approx(expected[query, token], rel=1e-9, abs=0)


def test_an_endless_flow_has_no_cut(ask: Ask) -> None:
    layers = [np.full((3, 3), 0.2)] * 2
    ours = check_flow(ask, layers, 1, 1, 1, [range(1, 2), range(0, 3)])
    assert ours.value == np.inf and ours.gap == 0 and ours.cut == () and not any(e.any() for e in ours.edges)
    beside = check_flow(ask, layers, 1, 0, 1, [range(1, 2), range(0, 3)])
    assert beside.value == pytest.approx(0.6)


def test_no_way_down(ask: Ask) -> None:
    ours = check_flow(ask, [np.array([[1.0, 0.0], [0.0, 0.0]])] * 2, 0, 1, 1)
    assert ours.value == 0 and ours.cut == ()


@pytest.mark.parametrize("kind", ["uniform", "sparse", "equal", "chain"])
def test_paths(ask: Ask, kind: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        layers = FAMILIES[kind](rng, widths(rng, 4, 7, square=False))
        query, token = layers[-1].shape[0] - 1, layers[0].shape[1] - 1
        expected = af.max_flow(layers, query, token)
        flow = {"edges": [e.ravel().tolist() for e in expected.edges]}
        flow["reached"] = [[0] * size for size in (layers[0].shape[1], *(len(layer) for layer in layers))]
        for limit in (0, 3, None):
            given = "" if limit is None else f", {limit}"
            ours = ask(f"maths.flowPaths(flow, query, token{given})", flow=flow, query=query, token=token)
            assert [(tuple(p["positions"]), p["amount"]) for p in ours] == expected.paths(limit)


def test_paths_of_its_own_flow_add_up_to_it(ask: Ask) -> None:
    A = attention(np.random.default_rng(9), 6, 12)
    ours = ask(
        "maths.maxFlow(read(graph), 5, 11, 4).then((flow) => [flow.value, maths.flowPaths(flow, 11, 4)])",
        graph=all_sent(list(A)),
    )
    value, paths = ours
    amounts = [p["amount"] for p in paths]
    assert (
        len(paths) > 1 and sum(amounts) == pytest.approx(value, rel=1e-12) and amounts == sorted(amounts, reverse=True)
    )
    assert all(p["positions"][0] == 11 and p["positions"][-1] == 4 and len(p["positions"]) == 7 for p in paths)


def test_rollout_is_the_sum_over_all_paths(ask: Ask) -> None:
    layers = FAMILIES["uniform"](np.random.default_rng(0), [3, 4, 2, 5])
    ways = [[3, *between, 1] for between in product(range(2), range(4))]
    ours = ask("ways.map((way) => maths.alongPaths(read(graph), 2, way))", graph=all_sent(layers), ways=ways)
    assert len(set(ours)) == len(ways)
    assert sum(ours) == pytest.approx(af.rollout(layers, 3, layers=2)[0, 0, 1])


FAKE_CLOCK = """(async () => {
    const now = performance.now;
    let time = 0;
    performance.now = () => (time += 5);
    try { return await (%s); } finally { performance.now = now; }
})()"""


def test_the_search_pauses_and_goes_on(ask: Ask) -> None:
    graph = all_sent(list(attention(np.random.default_rng(7), 12, 24, sharpness=4.0)))
    counted = "(async () => { let n = 0; const flow = await maths.maxFlow(read(graph), 11, 23, 2, async () => { n++; }); return [n, flow]; })()"
    pauses, paused = ask(FAKE_CLOCK % counted, graph=graph)
    assert pauses > 3
    assert paused == ask("maths.maxFlow(read(graph), 11, 23, 2)", graph=graph)


def test_the_search_can_be_cancelled(ask: Ask) -> None:
    graph = all_sent(list(attention(np.random.default_rng(7), 12, 24, sharpness=4.0)))
    cancelled = 'maths.maxFlow(read(graph), 11, 23, 2, async () => { throw new Error("enough"); }).catch((error) => error.message)'
    assert ask(FAKE_CLOCK % cancelled, graph=graph) == "enough"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return af.load().trace("the author that the guards like", keep_heads=True)


def test_a_text_from_weights_to_every_view(ask: Ask, trace: Trace) -> None:
    steps, n = all_sent(trace.steps), len(trace.tokens)
    ends, last = list(trace.ends), trace.layer_count - 1
    for layer in range(last + 1):
        ours = ask("maths.rawRow(read(steps), ends, layer, 2)", steps=steps, ends=ends, layer=layer)
        assert np.array_equal(ours, trace.raw(2, layer).values[0, 0])
    rolled = ask("maths.rolloutRows(maths.augmented(read(steps), 0.3), ends, 2)", steps=steps, ends=ends)
    assert np.allclose(rolled, trace.rollout(2, residual=0.3).values[:, 0], rtol=1e-13, atol=0)
    flows = ask(
        "Promise.all([...Array(n).keys()].map((token) => maths.maxFlow(maths.augmented(read(steps), 0.3), last, 2, token)))",
        steps=steps,
        n=n,
        last=last,
    )
    values = [flow["value"] for flow in flows]
    assert np.allclose(values, trace.flow(2, last, residual=0.3).values[0, 0], rtol=1e-9, atol=0)
    for layer in (0, last):
        heads = trace.weights[layer][:, 2].tolist()
        below = "maths.augmented(read(steps).slice(0, layer), 0.5)"
        ours = ask(f"maths.headRows(heads, {below}, 2, 0.5)", steps=steps, heads=heads, layer=layer)
        expected = [trace.single_head(layer, head, query=2).values[0, 0] for head in range(len(heads))]
        assert np.allclose(ours, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", ["ratio", "difference", "layer"])
def test_a_text_relative_to_its_receptive_field(ask: Ask, trace: Trace, mode: str) -> None:
    def rolled(steps: str) -> str:
        return f"maths.rolloutRow(maths.augmented({steps}, 0.3), 5, 2)"

    layer = rolled("maths.layerwise(read(steps))")
    beside = f"maths.relative(mode, {rolled('read(steps)')}, {rolled('maths.uniform(read(steps))')})"
    ours = ask(layer if mode == "layer" else beside, steps=all_sent(trace.steps), mode=mode)
    expected = trace.rollout(2, 5, residual=0.3, receptive_field=mode).values[0, 0]
    assert np.allclose(ours, expected, rtol=1e-6, atol=1e-12)
