"""Prompts with a known source of the answer: builders, which of them a model solves, and the measures."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from benchmarks import answer_cases
from benchmarks.answer_cases import (
    BUILDERS,
    KINDS,
    SENTENCES,
    Case,
    attributes,
    cases,
    halves,
    joined,
    labelled,
    measures,
    needle,
    sentences,
    solved,
)
from helpers.architectures import LLAMA, hf
from helpers.small_tokenizers import FAMILIES, byte_level, wordpiece

pytest.importorskip("transformers", reason="transformers is not installed")


class Copier(torch.nn.Module):
    """Goes on as the text did where it agreed longest with its end; what it is blind to it never writes."""

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
        model=Copier(blind), tokenizer=tokenizer or byte_level(), name="copier", dtype=torch.float32, device="cpu"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_stands_once_before_the_question(kind: str) -> None:
    for seed in range(40):
        puzzle = BUILDERS[kind](seed, SENTENCES)
        assert puzzle == BUILDERS[kind](seed, SENTENCES)
        assert puzzle.prompt[puzzle.at :].startswith(f"{puzzle.expected}. ")
        assert puzzle.prompt.count(f" {puzzle.expected}.") == 1
        facts, question = puzzle.prompt[: puzzle.prompt.index("?")].rsplit(".", 1)
        assert puzzle.at < len(facts) and puzzle.expected not in question
        opening = puzzle.prompt.rsplit("? ", 1)[1]
        assert puzzle.prompt[: puzzle.at].endswith(f"{opening} ")


def test_sizes_and_the_place_of_the_source_vary() -> None:
    needles = [needle(seed, SENTENCES) for seed in range(200)]
    assert {p.prompt.count(".") for p in needles} == set(range(4, 15))
    assert {p.expected.isdigit() for p in needles} == {True, False}
    assert min(p.at for p in needles) < 60 < max(p.at for p in needles)
    people = [attributes(seed) for seed in range(200)]
    assert {p.prompt.count(".") for p in people} == set(range(6, 15))
    assert {p.prompt.rsplit("? ", 1)[1].split(" ", 1)[1] for p in people} == {"has a", "likes", "lives in"}


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


def test_kept_are_the_puzzles_that_the_model_solves() -> None:
    model = copier()
    for kind in KINDS:
        kept = cases(kind, 1, 10, model)
        assert [case.seed for case in kept.cases] == list(range(1, 21, 2)) and kept.tried == 10
    digits = tuple(model.tokenizer.convert_tokens_to_ids(list("0123456789")))
    kept = cases("needle", 0, 10, copier(blind=digits))
    assert [case.seed for case in kept.cases] == [
        seed for seed in range(0, 2 * kept.tried, 2) if needle(seed, SENTENCES).expected.isalpha()
    ]
    assert kept.tried > 12


def test_solved_is_what_generation_writes() -> None:
    """Against transformers' own greedy generation, one prompt at a time, of different lengths."""
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


def test_a_longer_number_is_another_answer() -> None:
    model = copier()
    ids = model.tokenizer("It is 74195. It is")["input_ids"]
    answer = model.tokenizer(" 7419")["input_ids"]
    longer = model.tokenizer(" 74195")["input_ids"]
    case = Case("needle", 0, "", "7419", ids, answer, [1])
    assert list(solved(model, [case])) == [None]
    case = Case("needle", 0, "", "74195", ids, longer, [1])
    assert list(solved(model, [case])) == [case]


def test_halves_are_cached(tmp_path: Path) -> None:
    model = copier()
    both = halves("attributes", 5, model, cache=tmp_path / "new")
    assert [[case.seed % 2 for case in kept.cases] for kept in both.values()] == [[0] * 3, [1] * 2]
    calls = model.model.calls
    assert halves("attributes", 5, model, cache=tmp_path / "new") == both == halves("attributes", 5, copier())
    assert model.model.calls == calls and list(both) == ["seen", "unseen"]
    model.name = "another"
    assert halves("attributes", 5, model, cache=tmp_path / "new") == both and model.model.calls > calls
    assert json.loads((tmp_path / "new" / "attributes-1.json").read_text())["made of"]["model"] == "another"


def test_measures() -> None:
    """Against the definition: sort by chance among ties, many times."""
    draw = np.random.default_rng(2)
    for _ in range(10):
        scores = draw.integers(-2, 4, size=9).astype(float)
        truth = draw.choice(9, size=3, replace=False).tolist()
        hits = []
        for _ in range(3000):
            order = sorted(range(9), key=lambda i: (-scores[i], draw.random()))
            hits.append((len({*order[:3]} & {*truth}) / 3, order[0] in truth))
        shares, first, mass = measures(scores, truth)
        assert (shares, first) == pytest.approx(np.mean(hits, 0), abs=0.05)
        clipped = scores.clip(0)
        assert mass == pytest.approx(clipped[truth].sum() / clipped.sum())
    assert measures(np.array([0.0, -1.0, 0.0]), [0]) == (0.5, 0.5, 0.0)


def test_sentences(tmp_path: Path) -> None:
    assert sentences(None) == list(SENTENCES)
    lines = [f"The man number{'x' * i} , who is n't here , left the house ." for i in range(30)]
    other = [
        "Too short .",
        "no capital letter stands at the front of this .",
        "It has 3 numbers in it , which we leave .",
    ]
    (tmp_path / "text.test.txt.xz").write_bytes(lzma.compress("\n".join(lines + other + lines).encode()))
    plain = [f"The man number{'x' * i}, who isn't here, left the house." for i in range(30)]
    assert sentences(tmp_path) == sentences(tmp_path / "text.test.txt.xz") == plain
    assert joined("He ’s ( they say ) there !") == "He's (they say) there!"


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(af.InputError, match="kind='x': expected one of 'needle', 'attributes'"):
        cases("x", 0, 1, copier())
    with pytest.raises(af.InputError, match=r"has no file \*test\*.txt or .*: give a file of sentences"):
        sentences(tmp_path)
    (tmp_path / "a.txt").write_text("This is the only sentence of the file.\n")
    with pytest.raises(af.InputError, match="has 1 plain sentences of 6 to 16 words: expected at least 24"):
        sentences(tmp_path / "a.txt")
    with pytest.raises(af.InputError, match="wrapped without a tokenizer: give wrap"):
        cases("needle", 0, 1, af.wrap(hf("LlamaForCausalLM", **LLAMA)()))
    with pytest.raises(af.InputError, match="ends a text with a special token: expected one that goes on where"):
        cases("needle", 0, 1, copier(wordpiece()))
    monkeypatch.setattr(answer_cases, "PATIENCE", 2)
    blind = copier(blind=tuple(range(400)))
    with pytest.raises(af.InputError, match="solves 0 of 6 puzzles of the kind 'needle', and 3 were asked for"):
        cases("needle", 0, 3, blind)


def test_the_documentation_shows_what_was_measured() -> None:
    """docs/answers.md has the unseen half of docs/answers.json, and the default reaches its goals there."""
    docs = Path(__file__).parents[2] / "docs"
    content, page = json.loads((docs / "answers.json").read_text()), (docs / "answers.md").read_text()
    assert content["short"] == []
    unseen = [row for row in content["rows"] if row["half"] == "unseen"]
    for method in {row["method"] for row in unseen}:
        rows = sorted((row for row in unseen if row["method"] == method), key=lambda row: row["kind"] == "attributes")
        cells = [f"{value['mean']:.2f}" for row in rows for value in row["measures"].values()]
        cases = " + ".join(str(row["cases"]) for row in rows)
        assert f"| {method} | {cases} | {' | '.join(cells)} |" in page
