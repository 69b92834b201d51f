"""Blank-out against the definition: on a cached prefix, of words and sentences, and within a time limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="blank-out needs torch")
transformers = pytest.importorskip("transformers", reason="blank-out needs transformers")

import attnflow as af  # noqa: E402
from attnflow.importance import blanked, prefix  # noqa: E402
from helpers.architectures import ARCHITECTURES, LLAMA, VOCABULARY, built, hf  # noqa: E402
from helpers.small_models import bert  # noqa: E402
from helpers.small_tokenizers import byte_level, wordpiece  # noqa: E402

LENGTH = 70
IDS = torch.randint(5, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))
BLANK = 9
LONG = "The key to the cabinets is old. Nobody has it, and nobody will. The book is to answer the cabinet. Is it a key?"


def model_of(name: str) -> Any:
    """Return a model in double precision, with weights that make its answers depend on the text."""
    if name == "GPT-2":
        model = hf("GPT2LMHeadModel", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=128)()
    elif name == "Mistral":
        model = hf("MistralForCausalLM", **{**LLAMA, "max_position_embeddings": 128}, sliding_window=9)()
    elif name == "Llama":
        model = hf("LlamaForCausalLM", **{**LLAMA, "max_position_embeddings": 128})()
    else:
        model = built(next(a for a in ARCHITECTURES if a.name == name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return af.wrap(model.double())


def score(model: Any, ids: Any, answer: list[int], of: str) -> float:
    """Follow the definition: one pass over one text."""
    with torch.no_grad():
        text = torch.cat([ids, torch.tensor([answer[:-1]], dtype=torch.long)], 1)
        logits = model.model(input_ids=text, use_cache=False).logits[0, -len(answer) :].double()
    table = logits.log_softmax(-1)
    p = torch.stack([table[k, y] for k, y in enumerate(answer)]).exp()
    if of == "probability":
        return float(p.prod())
    return (
        float(torch.log(p / (1 - p)).sum())
        if of == "log-odds"
        else float(sum(logits[k, y] for k, y in enumerate(answer)))
    )


def loop(model: Any, by: Any, answer: list[int], of: str, groups: Any = None) -> np.ndarray:
    whole, values = score(model, IDS, answer, of), []
    for group in groups or [[i] for i in range(LENGTH)]:
        ids = IDS.clone()
        ids[0, group] = BLANK
        keep = [i for i in range(LENGTH) if i not in group]
        values.append(whole - score(model, IDS[:, keep] if by == "remove" else ids, answer, of))
    return np.array(values)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many tokens each forward pass computes."""
    counts: list[int] = []
    forward = af.Model.forward

    def counted(self: Any, tensors: Any, **options: Any) -> Any:
        counts.append(tensors["input_ids"].numel())
        return forward(self, tensors, **options)

    monkeypatch.setattr(af.Model, "forward", counted)
    return counts


@pytest.mark.parametrize("of", ["probability", "log-odds"])
@pytest.mark.parametrize("by", ["remove", BLANK])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral"])
def test_on_the_cache_it_is_the_loop(name: str, by: Any, of: str, computed: list[int]) -> None:
    model = model_of(name)
    model.blank_out({"input_ids": IDS}, by=by)  # the first call also runs one text from its beginning
    del computed[:]
    found = model.blank_out({"input_ids": IDS}, by=by, of=of, signed=True)
    expected = loop(model, by, [model.vocabulary() and int(answer_of(model))], of)
    np.testing.assert_allclose(found.row(), expected, rtol=1e-7, atol=1e-10)
    assert np.abs(expected).max() > 1e-3
    assert sum(computed) < 0.75 * LENGTH * LENGTH  # without the cache it would be more than all
    assert "computed" not in found.provenance


def answer_of(model: Any) -> int:
    with torch.no_grad():
        return int(model.model(input_ids=IDS).logits[0, -1].argmax())


def test_an_answer_of_several_tokens() -> None:
    tokenizer = byte_level()
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    model = af.wrap(hf("GPT2LMHeadModel", vocab_size=len(tokenizer), **shape)().double(), tokenizer)
    text = LONG * 2
    quick = model.blank_out(text, " unbelievable", of="log-odds", signed=True)
    assert len(quick.tokens) > blanked.SHORT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blanked, "SHORT", 10_000)
        slow = model.blank_out(text, " unbelievable", of="log-odds", signed=True)
    np.testing.assert_allclose(quick.row(), slow.row(), rtol=1e-8, atol=1e-10)
    assert np.abs(slow.row()).max() > 1e-3


def test_a_cache_that_gives_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch, computed: list[int]) -> None:
    model = model_of("Llama")
    monkeypatch.setattr(prefix, "TOLERANCE", {torch.float64: -1.0})
    found = model.blank_out({"input_ids": IDS}, by="remove", signed=True)
    np.testing.assert_allclose(found.row(), loop(model, "remove", [answer_of(model)], "probability"), atol=1e-10)
    assert sum(computed) > LENGTH * (LENGTH - 1)


def test_words_are_blanked_whole() -> None:
    model = bert("BertForSequenceClassification")
    text = "the unbelievable key is old"
    found = model.blank_out(text, unit="word", by="mask", signed=True)
    trace = model.trace(text).words()
    assert found.tokens == trace.tokens and found.special == trace.special and found.provenance["unit"] == "word"
    ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
    chance = lambda x: model.model(input_ids=x).logits[0].softmax(-1)  # noqa: E731
    with torch.no_grad():
        whole = chance(ids)
        for value, group in zip(found.row(), trace.word_groups, strict=True):
            blank = ids.clone()
            blank[0, list(group)] = model.tokenizer.mask_token_id
            assert value == pytest.approx(float((whole - chance(blank))[whole.argmax()]), abs=1e-6)
    assert max(map(len, trace.word_groups)) > 1
    assert found.words() is found


@torch.no_grad()
def test_sentences_are_left_out_whole() -> None:
    tokenizer = byte_level()
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    model = af.wrap(hf("GPT2LMHeadModel", vocab_size=len(tokenizer), **shape)().double(), tokenizer)
    found = model.blank_out(LONG, unit="sentence", by="remove", of="log-odds", signed=True)
    assert found.tokens == (
        "The key to the cabinets is old.", "Nobody has it, and nobody will.", "The book is to answer the cabinet.", "Is it a key?",
    )  # fmt: skip
    assert found.provenance["unit"] == "sentence"
    ids = tokenizer(LONG, return_offsets_mapping=True)
    starts = [LONG.index(sentence) for sentence in found.tokens]
    of_tokens = [
        sum(b >= start for start in starts[1:]) for _, b in ids["offset_mapping"]
    ]  # a space belongs to its word
    answer = int(model.model(input_ids=torch.tensor([ids["input_ids"]])).logits[0, -1].argmax())
    for number, value in enumerate(found.row()):
        rest = [i for i, of in zip(ids["input_ids"], of_tokens, strict=True) if of != number]
        table = [
            model.model(input_ids=torch.tensor([x])).logits[0, -1].log_softmax(-1) for x in (ids["input_ids"], rest)
        ]
        odds = [float(t[answer] - torch.log1p(-t[answer].exp())) for t in table]
        assert value == pytest.approx(odds[0] - odds[1], abs=1e-8)


class Clock:
    """A clock that advances with what the model computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, a_token: float) -> None:
        self.now, forward = 0.0, af.Model.forward

        def slow(model: Any, tensors: Any, **options: Any) -> Any:
            self.now += a_token * tensors["input_ids"].numel()
            return forward(model, tensors, **options)

        monkeypatch.setattr(af.Model, "forward", slow)
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_what_there_is_no_time_for_is_no_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = model_of("Llama")
    whole = model.blank_out({"input_ids": IDS}, by="remove", signed=True)
    sources = model.trace({"input_ids": IDS}, edges="answer").sources()
    order = np.argsort(-np.abs(sources.row()), kind="stable")
    clock = Clock(monkeypatch, 0.01)
    counts = []
    for seconds in (0.001, 10, 20, 1000):
        begun, seen = clock.now, []
        part = model.blank_out(
            {"input_ids": IDS}, by="remove", signed=True, seconds=seconds, first=sources,
            progress=lambda done, total, seen=seen: seen.append((done, total)),
        )  # fmt: skip
        there = np.isfinite(part.row())
        counts.append(int(there.sum()))
        assert set(np.flatnonzero(there)) == set(order[: counts[-1]].tolist())
        np.testing.assert_allclose(part.row()[there], whole.row()[there], rtol=1e-7, atol=1e-10)
        assert clock.now - begun < max(1.3 * seconds, 12)
        assert seen[-1] == (counts[-1], counts[-1]) and all(done <= total for done, total in seen)
    assert counts[0] == blanked.FIRST < counts[1] < counts[2] < counts[3] == LENGTH
    assert "computed" not in part.provenance and part.reliability == whole.reliability


def test_a_partial_result_is_shown_and_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = model_of("Llama")
    Clock(monkeypatch, 0.01)
    part = model.blank_out({"input_ids": IDS}, by="remove", seconds=0.5)
    n = blanked.FIRST
    assert part.provenance["computed"] == {"count": n, "of": LENGTH, "seconds": 0.5, "first": None}
    note = f"Blank-out covers only the first {n} of {LENGTH}: the limit of 0.5 seconds left no time for the others."
    assert part.reliability[0] == note
    there = np.isfinite(part.row())
    assert there.sum() == n and [score.position for score in part.top(LENGTH)] == list(
        np.argsort(-part.row()[:n], kind="stable")
    )
    json.dumps(part.to_dict(), allow_nan=False)
    assert part.to_dict()["values"][0][0].count(None) == LENGTH - n
    for kind in ("json", "npz"):
        part.save(tmp_path / f"x.{kind}")
        back = af.TokenAttention.load(tmp_path / f"x.{kind}")
        np.testing.assert_array_equal(back.values, part.values)
    part.save(tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().count(",nan,") == 0
    with pytest.raises(af.InputError, match=r"values are nan at \[0, 0, 8\]: expected finite numbers"):
        af.TokenAttention(**{**vars(part), "provenance": {}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "line"}, "unit='line': expected one of 'token', 'word', 'sentence'"),
        ({"first": 3}, "first=3: expected a result for this text, such as model.gradient(text) or Trace.sources()"),
        ({"seconds": 0}, "seconds=0: expected a number above 0, or None for all tokens"),
        ({"text": ["a"], "seconds": 3}, "seconds and first need a single text: give one at a time"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(af.InputError) as caught:
        bert("BertForSequenceClassification").blank_out(**{"text": "the key", **options})
    assert str(caught.value) == message


def test_first_is_a_result_of_the_same_text() -> None:
    model = bert("BertForSequenceClassification", wordpiece())
    with pytest.raises(
        af.InputError, match="first has 4 inputs, and the text has 8 tokens: expected a result for this text"
    ):
        model.blank_out("the key is to the book", first=model.gradient("the key"), seconds=1)
    with pytest.raises(
        af.InputError,
        match="first is for another text: its token 2 is 'book', and that of this text is 'key'; expected a result for this text",
    ):
        model.blank_out("the key", first=model.gradient("the book"), seconds=1)
