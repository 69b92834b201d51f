"""Prompts with a known source of the answer: builders, which of them a model solves, and the measures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from benchmarks import answer_cases
from benchmarks.answer_cases import HALVES, KINDS, Case, cases, half_of, labelled, sentences, solved
from benchmarks.puzzles import BUILDERS, SENTENCES, needle, tracking
from helpers.architectures import LLAMA, hf
from helpers.small_tokenizers import FAMILIES, byte_level, wordpiece

pytest.importorskip("transformers", reason="transformers is not installed")


class Copier(torch.nn.Module):
    """Continues the text as after the longest earlier match of its end; it never writes blind tokens."""

    def __init__(self, blind: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.blind = blind
        self.calls = 0

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        self.calls += 1
        logits = torch.zeros(*input_ids.shape, 400)
        for row, ids in zip(logits, input_ids.numpy(), strict=True):
            agreement = np.zeros(len(ids), int)
            for i in range(1, len(ids)):
                agreement[1:] = agreement[:-1] + 1
                agreement[ids != ids[i]] = 0
                before = i - 1 - int(np.argmax(agreement[:i][::-1]))
                row[i, ids[before + 1]] = 1
        logits[..., list(self.blind)] = -1
        return SimpleNamespace(logits=logits)


def copier(tokenizer: Any = None, blind: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(
        model=Copier(blind),
        tokenizer=tokenizer or byte_level(),
        name="copier",
        dtype=torch.float32,
        device="cpu",
        accepts=lambda name: False,
    )


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "WordPiece"])
@pytest.mark.parametrize("kind", KINDS)
def test_truth_is_the_tokens_of_the_word(kind: str, family: str) -> None:
    tokenizer = FAMILIES[family]()
    for seed in range(6):
        puzzle = BUILDERS[kind](seed, SENTENCES)
        case = labelled(kind, seed, puzzle, copier(tokenizer))
        assert tokenizer.decode([case.ids[i] for i in case.truth]).strip() == puzzle.expected
        assert tokenizer.decode(case.answer).strip() == puzzle.expected
        assert case.ids + case.answer == tokenizer(f"{puzzle.prompt} {puzzle.expected}")["input_ids"]


def test_units_are_the_sentences_in_tokens() -> None:
    model = copier()
    for kind in KINDS:
        for seed in range(4):
            puzzle = BUILDERS[kind](seed, SENTENCES)
            case = labelled(kind, seed, puzzle, model)
            texts = [model.tokenizer.decode([case.ids[i] for i in unit]).strip() for unit in case.units]
            assert texts == [puzzle.prompt[a:b].strip() for a, b in puzzle.units]
            (number,) = case.truth_units
            assert set(case.truth) <= set(case.units[number]) and case.sinks == [0]
    puzzle = tracking(3)
    case = labelled("tracking", 3, puzzle, model)
    assert case.links == [case.units[k] for k in puzzle.chain] and case.truth_units == [puzzle.chain[0]]
    marked = labelled("needle", 0, needle(0, SENTENCES), copier(FAMILIES["SentencePiece"]()))
    assert marked.sinks == [0] and 0 not in {i for unit in marked.units for i in unit}  # the start token


def test_kept_are_the_puzzles_that_the_model_solves() -> None:
    model = copier()
    for kind in ("needle", "attributes", "copy"):
        kept = cases(kind, 1, 3, model)
        assert [case.seed for case in kept.cases] == [1, 3, 5] and kept.tried == 3
    digits = tuple(model.tokenizer.convert_tokens_to_ids(list("0123456789")))
    kept = cases("needle", 0, 5, copier(blind=digits))
    assert [case.seed for case in kept.cases] == [
        seed for seed in range(0, 2 * kept.tried, 2) if needle(seed, SENTENCES).expected.isalpha()
    ]
    assert kept.tried > 6


def test_solved_is_what_generation_writes() -> None:
    """Compared with greedy generation by transformers, for single prompts of different lengths."""
    draw = random.Random(5)
    model = af.wrap(hf("LlamaForCausalLM", **LLAMA)(), byte_level())
    batch, wrong = [], []
    for length in (5, 12, 9):
        ids = [draw.randrange(5, 90) for _ in range(length)]
        with torch.no_grad():
            whole = model.model.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False, eos_token_id=None)
        answer = whole[0, length:-1].tolist()
        batch.append(Case("needle", 0, "", model.tokenizer.decode(answer).strip(), ids, answer, [1]))
        wrong.append(Case("needle", 0, "", "", ids, [*answer[:2], answer[2] + 1], [1]))
    endings = [model.tokenizer.decode(case.answer) for case in batch]
    assert len(set(endings)) == 3
    kept = list(solved(model, [*batch, *wrong]))
    after = [model.model(torch.tensor([case.ids + case.answer])).logits[0, -1].argmax() for case in batch]
    ends = [not model.tokenizer.decode([*c.answer, int(a)]).strip()[len(c.expected) :][:1].isalnum() for c, a in zip(batch, after, strict=True)]  # fmt: skip
    assert kept == [case if end else None for case, end in zip(batch, ends, strict=True)] + [None] * 3
    assert any(ends)


def test_a_half_is_cached(tmp_path: Path) -> None:
    model, folder = copier(), tmp_path / "new"
    both = [half_of("attributes", half, 3, model, SENTENCES, folder) for half in HALVES]
    assert [[case.seed % 2 for case in kept.cases] for kept in both] == [[0] * 3, [1] * 3]
    calls = model.model.calls
    assert [half_of("attributes", half, 3, model, SENTENCES, folder) for half in HALVES] == both
    assert model.model.calls == calls and half_of("attributes", "seen", 3, copier(), SENTENCES) == both[0]
    model.name = "another"
    assert half_of("attributes", "unseen", 3, model, SENTENCES, folder) == both[1] and model.model.calls > calls
    assert json.loads((folder / "attributes-unseen.json").read_text())["made of"]["model"] == "another"
    calls = model.model.calls
    half_of("attributes", "unseen", 2, model, SENTENCES, folder)
    assert model.model.calls > calls


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.InputError, match="kind='x': expected one of 'needle', 'attributes', 'tracking', 'copy'"):
        cases("x", 0, 1, copier())
    with pytest.raises(af.InputError, match=r"contains no file \*test\*.txt or .*: give a file of sentences"):
        sentences(tmp_path)
    with pytest.raises(af.InputError, match="ends a text with a special token: expected one that continues where"):
        cases("needle", 0, 1, copier(wordpiece()))
    monkeypatch.setattr(answer_cases, "PATIENCE", 2)
    blind = copier(blind=tuple(range(400)))
    with pytest.raises(af.InputError, match="solves none of 6 puzzles of the kind 'needle': leave the kind out"):
        cases("needle", 0, 3, blind)
