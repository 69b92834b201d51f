"""Passages with an answer that the model wrote: their texts, their exact truth, and measures of scores against it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import attnflow as af
from benchmarks import ablation
from benchmarks.ablation import (
    Passage,
    agreement,
    cached,
    measured,
    passages,
    prompt_of,
    sentence_measures,
)
from helpers.architectures import LLAMA, hf
from helpers.small_tokenizers import byte_level

pytest.importorskip("transformers", reason="transformers is not installed")

LINE = "Sentence number {} is about the weather of a certain day ."


def texts(tmp_path: Path, count: int = 240) -> list[list[str]]:
    file = tmp_path / "text.txt"
    file.write_text("\n".join(LINE.format(i) if i % 31 else "Title" for i in range(count)))
    return passages(file)


@pytest.fixture(scope="module")
def decoder() -> af.Model:
    model = hf("LlamaForCausalLM", **{**LLAMA, "vocab_size": 400, "max_position_embeddings": 1024})()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    return af.wrap(model, byte_level(), name="small")


@pytest.fixture(scope="module")
def passage(decoder: af.Model, tmp_path_factory: pytest.TempPathFactory) -> Passage:
    result = measured(decoder, 2, texts(tmp_path_factory.mktemp("texts")))
    assert result is not None
    return result


def test_halves_share_no_passage(tmp_path: Path) -> None:
    runs = texts(tmp_path)
    prompts = [prompt_of(seed, runs) for seed in range(len(runs))]
    assert len({prompt for prompt, _ in prompts}) == len(runs)
    for (prompt, ranges), run in zip(prompts, runs, strict=True):
        assert [prompt[a:b].strip() for a, b in ranges] == run and ranges[0][0] == 0
    for half in (0, 1):
        assert {prompt.endswith("Answer:") for prompt, _ in prompts[half::2]} == {True, False}
    with pytest.raises(
        af.InputError, match=r"the seed 99 needs 100 passages of at least 8 sentences, and the file has"
    ):
        prompt_of(99, runs)


def log_p(decoder: af.Model, prompt: list[int], answer: list[int]) -> float:
    """Compute it from the definition, in one pass."""
    with torch.no_grad():
        logits = decoder.model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return float(logits.double().log_softmax(-1)[range(len(answer)), answer].sum())


def kept_tokens(passage: Passage, units: list[int]) -> list[int]:
    """Return the prompt with only these sentences, and its question."""
    gone = {i for k, unit in enumerate(passage.units) if k not in units for i in unit}
    return [token for i, token in enumerate(passage.ids) if i not in gone]


def test_the_truth_is_exact(decoder: af.Model, passage: Passage) -> None:
    everything = list(range(len(passage.units)))
    assert passage.whole == pytest.approx(log_p(decoder, passage.ids, passage.answer), abs=1e-3)
    for k in everything:
        without_it = log_p(decoder, kept_tokens(passage, [i for i in everything if i != k]), passage.answer)
        assert passage.falls[k] == pytest.approx(passage.whole - without_it, abs=1e-3)
    for subset, value in zip(passage.subsets, passage.kept, strict=True):
        assert len(subset) == len(everything) // 2
        assert value == pytest.approx(log_p(decoder, kept_tokens(passage, subset), passage.answer), abs=1e-3)
    assert len({tuple(subset) for subset in passage.subsets}) == 32
    bare = [token for i, token in enumerate(passage.ids) if i not in passage.free]
    assert passage.bare == pytest.approx(log_p(decoder, bare, passage.answer), abs=1e-3)
    assert decoder.tokenizer.decode(bare).endswith("Answer:") and len(passage.answer) == 20
    one_by_one = decoder.answer(passage.ids, answer=passage.answer).leave_out("sentence")
    texts_of = [decoder.tokenizer.decode([passage.ids[i] for i in unit]).strip() for unit in passage.units]
    falls = dict(zip(one_by_one.tokens, one_by_one.values[0, 0], strict=True))
    shared = [k for k, text in enumerate(texts_of) if text in falls]
    assert len(shared) >= len(texts_of) - 1
    assert [passage.falls[k] for k in shared] == pytest.approx([falls[texts_of[k]] for k in shared], abs=1e-3)


def test_a_passage_is_cached(decoder: af.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = texts(tmp_path)
    first = cached(decoder, 1, runs, tmp_path / "cache")
    assert first is not None and first == cached(decoder, 1, runs, None)
    monkeypatch.setattr(ablation, "measured", lambda *_: None)
    assert cached(decoder, 1, runs, tmp_path / "cache") == first
    assert cached(decoder, 3, runs, tmp_path / "cache") is None is cached(decoder, 3, runs, tmp_path / "cache")
    monkeypatch.setattr(ablation, "TOKENS", 19)
    assert cached(decoder, 1, runs, tmp_path / "cache") is None


def made(falls: list[float], subsets: list[list[int]], kept: list[float]) -> Passage:
    """Return a passage with a start token, then sentences of two tokens each."""
    size = len(falls)
    units = [[2 * k + 1, 2 * k + 2] for k in range(size)]
    return Passage(1, "", list(range(2 * size + 1)), [1, 2], units, [0], -2.0, falls, subsets, kept, -8.0)


def test_measures_of_sentences() -> None:
    falls = [3.0, 0.5, 2.0, -1.0]
    subsets = [[0, 2], [0, 1], [2, 3], [1, 3]]
    exact = made(falls, subsets, [sum(falls[i] for i in subset) for subset in subsets])
    truth = np.array(falls)
    result = sentence_measures(exact, truth)
    assert result["Spearman"] == result["LDS"] == result["top-1"] == 1
    assert all(result[f"{name}, 4 verified"] == 1 for name in ("Spearman", "LDS", "top-1"))
    wrong = agreement(exact, -truth)
    assert wrong == {"Spearman": pytest.approx(-1), "LDS": pytest.approx(-1), "top-1": 0.0}
    level = agreement(exact, np.ones(4))
    assert level == {"Spearman": 0.0, "LDS": 0.0, "top-1": 0.25}
    assert math.isnan(agreement(made([1.0] * 4, subsets, [1, 2, 3, 4]), truth)["Spearman"])
