"""The content of the page and its file, read back in Python; tests/pages opens it in a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel

import attnflow as af
from attnflow.capture.passes import Step
from attnflow.view import document, packing, page
from attnflow.view.explain import explain
from helpers.architectures import hf
from helpers.small_models import sinking
from helpers.small_tokenizers import byte_level, wordpiece

TEXT = "the key to the cabinets"


@pytest.fixture(scope="module")
def model() -> Any:
    return af.load()


@pytest.fixture(scope="module")
def trace(model: Any) -> Any:
    return model.trace(TEXT, keep_heads=True)


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A small model that splits words into several pieces."""
    tokenizer = wordpiece()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48
    )
    return af.wrap(BertForMaskedLM(config), tokenizer, name="small")


@pytest.fixture(scope="module")
def decoder() -> Any:
    tokenizer = wordpiece()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=3, n_head=4, n_positions=64)
    return af.wrap(GPT2LMHeadModel(config), tokenizer, name="small decoder")


def unpacked(array: dict[str, Any]) -> np.ndarray[Any, Any]:
    data = np.frombuffer(zlib.decompress(base64.b64decode(array["data"])), np.uint8)
    if array["type"] == "u1":
        return data.reshape(array["shape"])
    size = int(array["type"][1])
    return data.reshape(size, -1).T.copy().view(f"<{array['type']}").reshape(array["shape"])


def unrounded(weights: dict[str, Any], shapes: list[tuple[int, int]]) -> list[np.ndarray[Any, Any]]:
    codes = np.frombuffer(zlib.decompress(base64.b64decode(weights["data"])), np.uint8).astype(float)
    values = np.where(codes > 0, np.exp((codes - 255) / weights["steps"]), 0)
    scales, found = unpacked(weights["scales"]).astype(float), []
    for rows, columns in shapes:
        block, values = values[: rows * columns].reshape(rows, columns), values[rows * columns :]
        found.append(block * scales[:rows, None])
        scales = scales[rows:]
    return found


def held(file: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="attnflow-document">(.*?)</script>', file, re.DOTALL)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_the_largest_of_each_row() -> None:
    matrix = np.random.default_rng(0).dirichlet(np.ones(30), size=20)
    (back,) = unrounded(packing.rounded([matrix], most=5), [(20, 30)])
    np.testing.assert_allclose(back.sum(1), 1, rtol=1e-6)
    assert ((back > 0) == (matrix >= np.sort(matrix, 1)[:, -5:-4])).all()


def test_rounded_weights_keep_their_rows() -> None:
    random = np.random.default_rng(0)
    matrices = [random.dirichlet(np.full(50, 0.3), 50), np.tril(random.dirichlet(np.ones(20), 20))]
    matrices[1][3] = 0  # a query without attention
    for given, back in zip(matrices, unrounded(packing.rounded(matrices), [(50, 50), (20, 20)]), strict=True):
        assert np.allclose(back.sum(1), given.sum(1), rtol=1e-6)
        kept = given > given.max(1, keepdims=True) * 1e-3
        assert np.abs(back[kept] / given[kept] - 1).max() < 0.025
        assert (back[given == 0] == 0).all() and np.isfinite(back).all()


def test_the_document_holds_what_the_library_computes(model: Any, trace: Any) -> None:
    found = model.explain(TEXT).document
    json.dumps(found, allow_nan=False)
    weights = unpacked(found["weights"]).reshape(6, 7, 7)
    assert np.array_equal(weights, np.stack([s.weights.numpy() for s in trace.steps]))
    assert found["exact"] and found["leftOut"] == [] and found["missing"] == ""
    flows = found["methods"]["subwords"]["flow"]
    assert flows["queries"] == list(range(7))
    assert np.array_equal(unpacked(flows["values"]), trace.flow(query="all").values)
    heads = unpacked(found["heads"]["weights"]).reshape(6, 8, 7, 7)
    assert np.array_equal(heads, np.stack([trace.weights[l].numpy() for l in range(6)]))
    assert [one["name"] for one in found["importance"]] == ["answer_inputs", "gradient", "blank-out"]
    assert found["importance"][0]["values"] == model.trace(TEXT, edges="answer").sources().row().tolist()
    assert min(found["importance"][0]["values"]) < 0 and found["importance"][0]["settings"]["values"] == "signed shares"
    assert found["importance"][0]["answer"]["name"] == "singular"
    assert found["importance"][2]["values"] == model.blank_out(TEXT).row().tolist()
    assert found["prediction"]["top"][0] == ["singular", pytest.approx(0.9588, abs=1e-3)]
    assert found["state"] == {"unit": "subwords", "query": 0}


def test_words_have_flows_of_their_own(pieces: Any) -> None:
    text = "the cabinetmaker is unbelievable"
    found = explain(pieces, text, importance=(), state={"unit": "words"}).document
    words = pieces.trace(text).words()
    assert found["units"]["words"]["tokens"] == list(words.tokens)
    assert [list(group) for group in words.word_groups] == [list(g) for g in found["units"]["words"]["groups"]]
    assert np.allclose(unpacked(found["methods"]["words"]["flow"]["values"]), words.flow(query="all").values)
    assert found["state"]["unit"] == "words" and found["importance"] == []  # without a mask there is no answer


def test_a_masked_model_opens_at_its_mask(pieces: Any) -> None:
    found = explain(pieces, "the [MASK] to the cabinet", importance=("gradient",)).document
    assert found["units"]["subwords"]["tokens"][found["state"]["query"]] == "[MASK]"


def test_larger_texts_say_what_was_left_out(trace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "PAIRS", 100)
    monkeypatch.setattr(document, "EXACT", 100)
    monkeypatch.setattr(document, "HEADS", 1000)
    found = document.of_trace(trace, query=2)
    assert found["leftOut"] == [
        "Flow was computed only for the query 'key': all pairs would take 294 maximum flows. For other queries, use "
        "explain(text, query=…) or attnflow serve.",
        "The 294 weights are rounded to eight bits to keep the file small. Values computed from them are marked ≈. The rows "
        "of the query that the page opens with are exact.",
        "Single heads are stored only for the query that the page opens with.",
    ]
    views = found["methods"]["subwords"]
    assert [views[name]["queries"] for name in ("raw", "rollout", "flow")] == [[2]] * 3
    assert np.array_equal(unpacked(views["rollout"]["values"]), trace.rollout(query=2).values)
    assert unpacked(found["heads"]["weights"]).size == 6 * 8 * 7
    monkeypatch.setattr(document, "ROUNDED", 100)
    said = document.of_trace(trace)["leftOut"][1]
    largest = sum(np.sort(step.weights.numpy(), 1)[:, -2:].sum() for step in trace.steps) / 42
    assert said.startswith(
        f"Of the 294 weights, the page has the 2 largest of each row, rounded to eight bits: {100 * largest:.1f} % of all attention."
    )
    monkeypatch.setattr(document, "LARGEST", 100)
    monkeypatch.setattr(document, "HEADS", 10)
    monkeypatch.setattr(document, "LONGEST", 5)
    found = document.of_trace(trace)
    assert found["leftOut"] == [
        "Flow is left out: it takes minutes for 7 tokens.",
        "The 294 weights of this text would make the file too large. The graph, the flow paths and the map of a layer are "
        "left out. The rows of the query that the page opens with are exact.",
        "Single heads are left out: their weights would make the file too large.",
    ]
    assert found["weights"] is None and found["heads"] is None and found["methods"]["subwords"]["flow"] is None


def test_rows_and_paths_for_a_page_that_asks(trace: Any) -> None:
    found = document.rows(trace, "subwords", 5)
    assert found["methods"]["flow"]["queries"][5:6] == [5]
    assert np.array_equal(unpacked(found["methods"]["rollout"]["values"]), trace.rollout(query=5).values)
    proof = af.max_flow(trace.graph(), query=0, token=2, layer=2)
    told = document.paths(trace, "subwords", 0, 2, 2)
    json.dumps(told, allow_nan=False)
    assert told["value"] == proof.value and told["gap"] == proof.gap
    assert told["edges"] == len(proof.cut) and told["capacity"] == pytest.approx(proof.value)
    assert [tuple(edge[:3]) for edge in told["cut"]] == [tuple(edge)[:3] for edge in proof.cut[:8]]
    np.testing.assert_allclose([edge[3] for edge in told["cut"]], [edge.capacity for edge in proof.cut[:8]], rtol=1e-8)
    paths = proof.paths(8)
    assert [tuple(positions) for _, _, *positions in told["paths"]] == [path.positions for path in paths]
    np.testing.assert_allclose([amount for amount, *_ in told["paths"]], [path.amount for path in paths], rtol=1e-8)
    graph, (_, sent, *positions) = trace.graph(), told["paths"][0]
    assert sent == pytest.approx(float(np.prod([graph[2 - i, positions[i], positions[i + 1]] for i in range(3)])))


NUMBERS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def test_a_sentence_says_what_limits_a_flow(trace: Any) -> None:
    kinds, name = set(), [repr(token) for token in trace.tokens]
    for query, layer, token in ((4, 1, 2), (0, 2, 1), (0, 3, 5), (6, 2, 2), (4, 4, 3), (0, 6, 5)):
        cut = af.max_flow(trace.graph()[:layer], query, token).cut
        says = document.paths(trace, "subwords", query, layer - 1, token)["limit"]
        below = f" at L{cut[0].layer}" if cut[0].layer else ""
        widest = f"{name[cut[0].query]} at L{cut[0].layer + 1} → {name[cut[0].key]}{below}"
        if len(cut) == 1:
            assert says == f"This one edge is the bottleneck: {widest}."
        elif all((edge.layer, edge.query) == (layer - 1, query) for edge in cut):
            kinds.add("query")
            assert says == (
                f"The bottleneck is {name[query]} at L{layer} itself: its {NUMBERS[len(cut)]} edges are full, so all of it "
                f"could come from {name[token]}."
            )
        elif all((edge.layer, edge.key) == (0, token) for edge in cut):
            kinds.add("token")
            assert says.startswith(f"The bottleneck is {name[token]} itself: the first layer takes no more from it")
        else:
            kinds.add("between")
            count = NUMBERS[len(cut)] if len(cut) < len(NUMBERS) else len(cut)
            assert says.startswith(f"These {count} edges are the bottleneck: {widest}; ")
    assert "between" in kinds and len(kinds) > 1


def test_certificates_are_of_the_strongest_words_of_the_opening_query(model: Any, pieces: Any) -> None:
    found = model.explain(TEXT, importance=()).document
    values = np.array(found["importance"][0]["values"])
    tokens = [i for i in np.argsort(-values) if not found["units"]["subwords"]["special"][i]][: document.CERTIFIED]
    assert [(flow["token"], flow["layer"]) for flow in found["flows"]] == [(t, l) for t in tokens for l in range(6)]
    flow = model.trace(TEXT).flow().values[:, 0]
    for own in found["flows"]:
        assert own["query"] == 0 and own["value"] == pytest.approx(flow[own["layer"], own["token"]], abs=1e-9)
    both = explain(pieces, "the cabinetmaker is unbelievable", importance=()).document
    assert {flow["unit"] for flow in both["flows"]} == {"subwords", "words"}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda t: document.rows(t, "letters", 0), "unit 'letters': expected one of 'subwords', 'words'"),
        (lambda t: document.rows(t, "words", 7), "query 7: expected a position from 0 to 6"),
        (lambda t: document.paths(t, "subwords", 0, 6, 0), "layer 6: expected a number from 0 to 5"),
        (lambda t: document.paths(t, "subwords", 0, 5, -1), "token -1: expected a position from 0 to 6"),
        (lambda t: page.of_trace(t).save("x.txt"), "'x.txt' has the extension '.txt': expected .html, for a page"),
        (lambda t: page.of_weights(np.ones((2, 1, 3, 3)) / 3, ["a"]), "1 tokens for weights of 3 positions: expected one token per position"),
        (
            lambda t: page.of_weights(np.ones((1, 1, 3, 4)) / 4),
            "weights have shapes (1, 3, 4): expected [head, query, key] in every layer, with as many queries as keys, for one text",
        ),
        (lambda t: page.of_weights([np.ones((2, 1, 3, 3)) / 3] * 2), "weights have shapes (2, 1, 3, 3), (2, 1, 3, 3): expected [head, query, key] in every layer, with as many queries as keys, for one text"),
        (lambda t: document.of_trace(t, query=[]), "query=[]: expected a position, a token, or several of them"),
        (lambda t: document.of_trace(object()), 'a page of a object: expected a trace with a graph (memory="graph")'),
    ],
)  # fmt: skip
def test_the_sentence(trace: Any, call: Any, sentence: str) -> None:
    with pytest.raises(af.InputError) as caught:
        call(trace)
    assert str(caught.value) == sentence


def test_importance_that_is_not_there_says_why(pieces: Any) -> None:
    bare = af.wrap(BertModel(pieces.config), pieces.tokenizer, name="bare")
    found = explain(bare, TEXT).document
    assert found["importance"] == []
    assert found["missing"] == (
        "No answer edges and no gradient and no blank-out: Model('bare', BertModel) has no head, so it answers nothing: "
        "expected a classifier or a language model, for example one loaded from a folder whose configuration names its class."
    )
    with pytest.raises(af.InputError, match="importance 'magic': expected some of 'blank-out', 'gradient'"):
        explain(bare, TEXT, importance=("magic",))


def test_the_page_of_a_long_text_says_what_there_was_time_for() -> None:
    tokenizer = byte_level()
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    decoder = af.wrap(hf("GPT2LMHeadModel", vocab_size=len(tokenizer), **shape)(), tokenizer)
    text = "The key to the cabinets is old. Nobody has it, and nobody will. The book is to answer the cabinet. Is it the unbelievable key of the cabinetmaker, or is it a book?"
    found = explain(decoder, text, importance=1e-6).document
    json.dumps(found, allow_nan=False)
    assert [one["name"] for one in found["importance"]] == ["answer_rows", "gradient", "blank-out"]
    values, n = found["importance"][2]["values"], len(found["units"]["subwords"]["tokens"])
    assert len(values) == n and values.count(None) == n - 8
    assert found["importance"][2]["settings"]["computed"]["count"] == 8
    assert found["importance"][2]["reliability"][0].endswith(
        'left no time for the others. importance="full" computes all.'
    )
    left_out = decoder.blank_out(text, unit="sentence", by="remove", signed=True)
    assert (
        found["sentences"]["texts"] == list(left_out.tokens) and found["sentences"]["values"] == left_out.row().tolist()
    )
    for text_of, (start, end) in zip(left_out.tokens, found["sentences"]["positions"], strict=True):
        pieces = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])[start : end + 1]
        assert tokenizer.convert_tokens_to_string(pieces).strip() == text_of
    full, none = (explain(decoder, text, importance=level).document for level in ("full", "none"))
    assert full["importance"][2]["values"] == decoder.blank_out(text).row().tolist()
    assert [one["name"] for one in none["importance"]] == ["answer_rows"] and none["sentences"] is None


def test_messages_of_a_chat_are_for_answer(decoder: Any) -> None:
    messages = [{"role": "user", "content": "the key"}]
    for call in (decoder.trace, decoder.explain, decoder.blank_out):
        with pytest.raises(af.InputError) as caught:
            call(messages)
        assert str(caught.value) == (
            "this is a chat message, with a role and a content: expected a text; Model.answer takes messages, and "
            "explains what the model answers to them"
        )


def test_progress_tells_and_can_stop(model: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    explain(model, TEXT, progress=lambda *told: seen.append(told))
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == [
        "model",
        "answer edges",
        "gradient",
        "blank-out",
        "flow",
    ]
    assert ("blank-out", 7, 7) in seen

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "blank-out" and total == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explain(model, TEXT, progress=stop)
    assert len(explain(model, TEXT).document["importance"]) == 3  # no state is left behind


def test_the_file_stands_by_itself_and_holds_no_markup_of_the_text(tmp_path: Path) -> None:
    tokens = ["</script><script>x()</script>", "<img src=x onerror=x()>", "<!--", "\u2028", "\ud800"]
    made = page.of_weights(np.full((2, 1, 5, 5), 0.2), tokens, text='a "quoted" <b>&amp; \ud800')
    made.save(tmp_path / "page.html")
    file = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert held(file)["units"]["subwords"]["tokens"] == tokens
    assert file.count("<script") == 2 and file.count("</script>") == 2
    assert "<title>a &quot;quoted&quot; &lt;b&gt;&amp;amp; ? · attnflow</title>" in file
    script = re.search(r'<script type="module">(.*?)</script>', file, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', file)
    assert script is not None and policy is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1] and "connect-src 'none'" in policy[1]
    assert set(re.findall(r"https?://[\w./]+", file)) == {"http://www.w3.org/2000/svg"}
    assert "connect-src 'self'" in page.application([{"name": "m"}])


def test_notebooks_show_pages_in_frames(model: Any, trace: Any) -> None:
    for shown in (model.explain(TEXT, importance=()), trace, trace.flow(layer=2)):
        frame = shown._repr_html_()
        assert frame.startswith('<iframe title="attnflow" sandbox="allow-scripts allow-downloads" srcdoc="')
        inside = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])  # type: ignore[index]
        assert held(inside)["text"] == TEXT
    assert held(inside)["state"] == {
        "layer": 2,
        "method": "flow",
        "special": True,
        "unit": "subwords",
        "query": 0,
    }
    assert repr(model.explain(TEXT, importance=())) == "Page(6 layers, 7 tokens, 'the key to the cabinets')"


def test_a_result_without_its_trace_is_a_page_of_its_values(trace: Any, tmp_path: Path) -> None:
    trace.rollout(layer=[1, 3]).save(tmp_path / "r.json")
    read = af.TokenAttention.load(tmp_path / "r.json")
    read.save(tmp_path / "r.html")
    found = held((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert found["layers"] == [1, 3] and found["levels"] == [] and found["weights"] is None
    assert np.array_equal(unpacked(found["methods"]["subwords"]["rollout"]["values"]), read.values)
    assert found["leftOut"] == [
        "This page shows only the values of rollout from a saved result, without the attention graph and the model's "
        "prediction."
    ]


@pytest.mark.parametrize("make", [
    lambda t: t.flow().normalized(), lambda t: t.flow(normalize=True), lambda t: t.rollout(start=2),
    lambda t: t.rollout().without_special().normalized(),
])  # fmt: skip
def test_a_page_has_the_numbers_of_its_result(trace: Any, make: Any) -> None:
    """Values that the page would not recompute from the trace are shown as they are."""
    result = make(trace)
    views = page.of_result(result).document["methods"]["subwords"]
    assert np.array_equal(unpacked(views[result.method]["values"]), result.values)


def test_a_page_knows_the_sinks_of_its_tokens_and_words() -> None:
    sunk = sinking().trace({"input_ids": torch.tensor([[6, 7, 1, 8, 9]])})
    sunk = replace(sunk, word_ids=(0, 0, 1, 2, 3), word_texts=("a", "b", "c", "d"))
    units = document.of_trace(sunk)["units"]
    assert units["subwords"]["sinks"] == [[2]] * 6 and units["words"]["sinks"] == [[1]] * 6
    assert document.of_result(sunk.rollout())["units"]["subwords"]["sinks"] == []


def test_a_document_says_why_its_rows_must_not_be_read() -> None:
    model = af.load()
    trace = model.trace("the key to the cabinets")
    worth = [model.gradient("the key to the cabinets")]
    whole = document.of_trace(trace, importance=worth)
    results = [trace.raw(layer=-1), trace.rollout(layer=-1), trace.flow(layer=-1)]
    for layer in range(trace.layer_count):
        results = {
            "raw": trace.raw(layer=layer),
            "rollout": trace.rollout(layer=layer),
            "flow": trace.flow(layer=layer),
        }
        told = {name: layers[layer] for name, layers in whole["reliability"]["subwords"]["notes"].items()}
        assert told == {name: list(result.reliability) for name, result in results.items()}
    assert told["flow"] and whole["reliability"]["subwords"]["query"] == 0
    assert [one["reliability"] for one in whole["importance"]] == [list(result.reliability) for result in worth]
    other = document.of_trace(trace, query=2, residual=0.99)["reliability"]["subwords"]["notes"]["rollout"][-1]
    assert any("stays at the query 'key' itself" in note for note in other)
    own = document.of_result(trace.flow())["reliability"]["subwords"]
    assert own["query"] is None and own["notes"]["flow"] == [[]] * 5 + [list(trace.flow().reliability)]


@pytest.mark.parametrize("options", [{"start": 1}, {"receptive_field": "layer"}])
def test_what_a_page_cannot_compute_is_a_page_of_its_values(trace: Any, options: Any) -> None:
    result = trace.rollout(layer=-1, **options)
    shown = page.of_result(result).document
    assert shown["weights"] is None and shown["residual"] == 0.5
    values = unpacked(shown["methods"]["subwords"]["rollout"]["values"])
    np.testing.assert_array_equal(values, result.values)


def test_arrays_alone() -> None:
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(4), (2, 3, 4))
    found = page.of_weights(weights, list("abcd")).document
    assert page.of_weights(tuple(weights[:, None]), list("abcd")).document == found  # transformers' batch of one
    graph = af.attention_graph(weights)
    assert np.allclose(unpacked(found["methods"]["subwords"]["flow"]["values"]), af.flow(graph), atol=1e-6)
    assert found["state"]["query"] == 0 and not found["causal"]
    causal = np.tril(weights)
    assert page.of_weights(causal / causal.sum(-1, keepdims=True)).document["state"]["query"] == 3


def test_a_step_of_another_size_is_a_level_of_its_own(trace: Any) -> None:
    from dataclasses import replace

    merging = Step(torch.full((3, 7), 1 / 7), residual=False)
    top = Step(torch.full((3, 3), 1 / 3))
    merged = replace(trace, steps=(*trace.steps, merging, top), ends=(*trace.ends, 7), weights={})
    found = document.of_trace(merged)
    low = merged.rollout(layer=2, query=5)
    assert np.array_equal(
        unpacked(page.of_result(low).document["methods"]["subwords"]["rollout"]["values"]), low.values
    )
    assert found["levels"][-2:] == ["merged", "L7"] and found["layers"] == [6] and found["queries"] == ["0", "1", "2"]
    assert "words" not in found["units"]


def test_show_writes_the_page(attnflow: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    printed = attnflow("show", TEXT, "--layer", "L3", "--query", "key", "--no-special", "-o", str(path))
    assert printed.err == f"wrote {path}\n"
    found = held(path.read_text(encoding="utf-8"))
    assert found["state"] == {"layer": 2, "special": False, "unit": "subwords", "query": 2}
    assert len(found["importance"]) == 3 and found["heads"] is not None
