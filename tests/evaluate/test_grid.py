"""The grid resumes after any interruption; the sanity check shuffles weights and restores them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.errors import InputError, JobError

torch = pytest.importorskip("torch", reason="the grid needs torch")
transformers = pytest.importorskip("transformers", reason="the grid needs transformers")
pytest.importorskip("pyarrow", reason="the grid needs pyarrow")

from attnflow.evaluate import deletion, grid, randomize  # noqa: E402
from attnflow.evaluate.methods import Method  # noqa: E402
from attnflow.evaluate.randomize import LEVELS, layers_of, randomized  # noqa: E402
from attnflow.evaluate.statistics import spearman  # noqa: E402
from attnflow.importance.question import questions  # noqa: E402
from attnflow.jobs.identity import weights_hash  # noqa: E402
from helpers.grids import TEXTS, bytes_of, files  # noqa: E402
from helpers.small_models import bert, gpt2, saved  # noqa: E402

METHODS = (
    Method("raw", "paper", "mean", None, "raw"),
    Method("none", "edges", "value-norm", None, "rollout"),
    Method("random", "baseline"),
    Method("gradient", "importance"),
    Method("blank-out", "importance"),
)


def scored(
    model: Any, text: Any, methods: Any, *, truncate: bool = False, seed: int = 0, answer: int | None = None
) -> Any:
    """Replace `score_text` for the methods above: one never has a score, and importances keep their sign."""
    (question,) = questions(model, [text], [answer], truncate)
    at = deletion.content(question)
    n = len(at)
    rows = {
        "raw": lambda: model.trace(text, truncate=truncate).raw(query=0).values[-1, 0, at],
        "none": lambda: np.full(n, np.nan),
        "random": lambda: np.random.default_rng(seed).random(n),
        "gradient": lambda: model.gradient(text, question.chosen, reduce="times-input", truncate=truncate).row()[at],
        "blank-out": lambda: model.blank_out(text, question.chosen, signed=True, truncate=truncate).row()[at],
    }
    return SimpleNamespace(
        content=tuple(at.tolist()),
        tokens=tuple(question.encoded.tokens[i] for i in at),
        scores=np.stack([rows[method.name]() for method in methods]),
        seconds=np.full(len(methods), 0.25),
        pass_seconds=0.5,
        answer={
            "kind": question.kind,
            "name": question.name,
            "probability": question.chance,
            "number": question.chosen,
        },
    )


def guessed(
    model: Any, text: Any, methods: Any, *, truncate: bool = False, seed: int = 0, answer: int | None = None
) -> Any:
    """Draw random scores, which depend on the text, the seed, the answer and the model's output; this is quick."""
    (question,) = questions(model, [text], [answer], truncate)
    at = deletion.content(question)
    rng = np.random.default_rng([seed, question.chosen, int(1e9 * abs(question.chance))])
    scores = rng.normal(size=(len(methods), len(at)))
    scores[[method.name == "none" for method in methods]] = np.nan
    return SimpleNamespace(
        content=tuple(at.tolist()),
        tokens=tuple(question.encoded.tokens[i] for i in at),
        scores=scores,
        seconds=np.full(len(methods), 0.25),
        pass_seconds=0.5,
        answer={"kind": question.kind, "number": question.chosen},
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved(bert("BertForSequenceClassification"), tmp_path_factory.mktemp("model"))


def put(monkeypatch: pytest.MonkeyPatch, score: Any) -> list[Any]:
    """Score with this function, in parts of two texts, and return the texts and answers that it was given."""
    asked: list[Any] = []

    def told(model: Any, text: Any, *more: Any, **options: Any) -> Any:
        asked.append((text, options.get("answer")))
        return score(model, text, *more, **options)

    monkeypatch.setattr(grid, "SHARD", 2)
    monkeypatch.setattr(grid, "methods_of", lambda model, **options: METHODS)
    monkeypatch.setattr(grid, "score_text", told)
    monkeypatch.setattr(randomize, "score_text", told)
    return asked


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return put(monkeypatch, guessed)


def run(source: Any, folder: Path, texts: Any = TEXTS, **options: Any) -> Any:
    quick = {"workers": 1, "steps": 3, "sanity": 3, "edges": ["mean"], "deletions": ["mask"]}
    return grid.run(source, texts, folder, **{**quick, **options})


def test_it_is_the_plain_loop(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = put(monkeypatch, scored)
    monkeypatch.setattr(grid, "lacking", lambda model: {"alti": "why not"})
    lines: list[str] = []
    kept: list[int] = []

    def say(line: str) -> None:
        lines.append(line)
        kept.append(len(list(tmp_path.glob(f"{line.split(':')[0]}/*.parquet"))))

    found = run(source, tmp_path, edges=None, deletions=None, seed=3, say=say)
    model = af.load(**source)
    assert [method["name"] for method in found.methods] == ["raw", "none", "random", "gradient", "blank-out"]
    assert found.methods[0] == {
        "name": "raw",
        "kind": "paper",
        "edges": "mean",
        "normalize": None,
        "propagation": "raw",
        "receptive_field": None,
    }
    names = list(deletion.METRICS)
    assert list(found.metrics) == [
        "gradient",
        "blank-out",
        *(f"{name} ({by})" for by in ("mask", "unk", "remove") for name in names),
    ]
    assert found.metrics["blank-out"] == "higher" and found.metrics["sufficiency (unk)"] == "lower"
    agreement = []
    for k, text in enumerate(TEXTS):
        scores = scored(model, text, METHODS, seed=3 + k).scores
        asked = questions(model, [text], [None], False)
        (curves,) = deletion.curves(model, asked, [deletion.orders(scores, 3 + k)], "unk", 3)
        assert np.array_equal(found.curves["unk"][k], curves, equal_nan=True)
        for name, values in deletion.metrics(curves, asked[0].chance).items():
            at = list(found.metrics).index(f"{name} (unk)")
            assert np.allclose(found.values[k, :, at], values, equal_nan=True, atol=1e-12)
        scores[3:] = np.abs(scores[3:])
        table = np.array([[spearman(a, b) for b in scores] for a in scores])
        agreement.append(table)
        expected = table[:, 3:].copy()
        expected[3, 0] = expected[4, 1] = np.nan
        assert np.allclose(found.values[k, :, :2], expected, equal_nan=True)
    assert np.allclose(found.agreement, np.mean(agreement, 0), equal_nan=True)
    assert np.isnan(found.values[:, 1]).all() and np.isnan(found.curves["mask"][:, 1]).all()  # a method without scores
    assert np.isfinite(found.values[:, [0, 2], 2:]).all()
    assert found.seconds.tolist() == [[0.25] * 5] * 5 and found.pass_seconds.tolist() == [0.5] * 5
    assert list(found.sanity) == list(LEVELS)
    real = scored(model, TEXTS[2], METHODS[:1]).scores[0]
    with randomized(model, "upper half", 3):
        other = scored(model, TEXTS[2], METHODS[:1]).scores[0]
    assert found.sanity["upper half"][2, 0] == pytest.approx(spearman(real, other))
    chosen = [question.chosen for question in questions(model, TEXTS, [None] * 5, False)]
    order = [k for part in ((0, 1), (2,)) for _ in LEVELS for k in part]
    assert fakes == [
        *((text, None) for text in TEXTS),
        *((TEXTS[k], chosen[k]) for k in order),
    ]  # the answer of the real model
    assert np.isnan(found.sanity["all"][:, [1, 3, 4]]).all()  # one without scores, and importances
    assert np.isnan(found.sanity["all"][3:]).all() and np.allclose(found.sanity["all"][:3, 2], 1)
    assert not np.allclose(found.sanity["all"][:3, 0], 1)
    told = {
        name: found.provenance[name]
        for name in (
            "class",
            "dtype",
            "texts",
            "samples",
            "excluded",
            "sanity",
            "seed",
            "steps",
            "devices",
            "answers",
            "without edges",
        )
    }
    assert told == {
        "class": "BertForSequenceClassification", "dtype": "float32", "texts": 5, "samples": 5, "excluded": {}, "sanity": 3,
        "seed": 3, "steps": 3, "devices": {"scores": ["cpu"], "curves": ["cpu"], "sanity": ["cpu"]}, "answers": {"class": 5},
        "without edges": {"alti": "why not"},
    }  # fmt: skip
    shown = [line.split(" texts")[0] for line in lines]
    assert shown == [
        *(f"{stage}: {k} of 5" for stage in ("scores", "curves") for k in (2, 4, 5)),
        *(f"sanity: {k} of 3" for k in (2, 3)),
    ]
    assert kept == [1, 2, 3, 1, 2, 3, 1, 2]  # progress is reported only after the part is saved
    assert "texts/s, about " in lines[0] and lines[0].endswith(" left") and lines[2].endswith("texts/s")


@pytest.mark.parametrize(
    ("after", "parts", "how"),
    [
        (3, (1, 0, 0), KeyboardInterrupt),
        (5, (3, 0, 0), KeyboardInterrupt),
        (8, (3, 3, 0), MemoryError),
        (12, (3, 3, 1), KeyboardInterrupt),
    ],
)
def test_it_goes_on_where_it_was_stopped(
    source: Any, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, parts: Any, how: Any
) -> None:
    whole = run(source, tmp_path / "whole")
    asked = list(fakes)
    fakes.clear()
    with monkeypatch.context() as m:
        for place in (grid, randomize):
            own = place.score_text

            def score(*given: Any, own: Any = own, **options: Any) -> Any:
                if len(fakes) == after:
                    raise how
                return own(*given, **options)

            m.setattr(place, "score_text", score)
        if after == 5:
            m.setattr(grid.deletion, "curves", lambda *given, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(how):
            run(source, tmp_path / "cut")
    assert tuple(len(list((tmp_path / "cut").glob(f"{stage}/*"))) for stage in grid.STAGES) == parts
    fakes.clear()
    half = tmp_path / "cut" / "scores" / ".attnflow-0123456789ab.tmp"  # as a killed process leaves it
    half.write_bytes(b"PAR1")
    lines: list[str] = []
    found = run(source, tmp_path / "cut", say=lines.append)
    assert not half.exists()
    assert bytes_of(found) == bytes_of(whole)
    assert found.provenance == whole.provenance
    assert fakes == asked[-len(fakes) :] and len(fakes) < len(asked)  # nothing runs twice
    assert any("texts are already done" in line for line in lines) == (parts not in ((3, 0, 0), (3, 3, 0)))
    assert files(tmp_path / "cut").keys() == files(tmp_path / "whole").keys()
    fakes.clear()
    assert bytes_of(run(source, tmp_path / "cut")) == bytes_of(whole) and fakes == []


def test_a_full_disk(source: Any, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    own, written = parquet.write_table, []

    def write(table: Any, path: Path, **options: Any) -> None:
        written.append(path)
        if len(written) == 3:
            path.write_bytes(b"PAR1")
            raise OSError(28, "No space left on device")
        own(table, path, **options)

    with monkeypatch.context() as m:
        m.setattr(parquet, "write_table", write)
        with pytest.raises(JobError) as e:
            run(source, tmp_path / "a")
    assert str(e.value) == (
        f"cannot write {str(tmp_path / 'a' / 'scores' / '00002.parquet')!r}: No space left on device; finished "
        "shards stay valid: make room, and run the same again"
    )
    assert sorted(files(tmp_path / "a")) == ["_manifest.jsonl", "scores/00000.parquet", "scores/00001.parquet"]
    assert bytes_of(run(source, tmp_path / "a")) == bytes_of(run(source, tmp_path / "b"))


def test_a_damaged_part_is_done_again(source: Any, fakes: Any, tmp_path: Path) -> None:
    whole = run(source, tmp_path)
    run(source, tmp_path / "other", seed=1)
    before = files(tmp_path / "scores")

    def flipped(data: bytes) -> bytes:
        """Flip a bit of the byte in the middle."""
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    damages: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("scores/00001.parquet", lambda data: data[:100]),
        ("scores/00001.parquet", lambda data: b""),
        ("scores/00001.parquet", lambda data: b"x" * len(data)),
        ("scores/00001.parquet", flipped),
        ("scores/00001.parquet", lambda data: before["00002.parquet"]),  # other texts
        (
            "curves/00000.parquet",
            lambda data: (tmp_path / "other" / "curves" / "00000.parquet").read_bytes(),
        ),  # another run
        ("sanity/00001.parquet", lambda data: data[:-1]),
    ]
    for name, damage in damages:
        path = tmp_path / name
        path.write_bytes(damage(path.read_bytes()))
        lines: list[str] = []
        assert bytes_of(run(source, tmp_path, say=lines.append)) == bytes_of(whole)
        stage, part = name.split("/")
        assert lines[0] == f"{stage}: {part} is damaged or from another run, and is computed again"
        count = {"sanity": 3}.get(stage, 5)
        done = 1 if stage == "sanity" else 2
        assert lines[1] == f"{stage}: {count - done} of {count} texts are already done"
        assert len(lines) == 3
        lines.clear()
        run(source, tmp_path, say=lines.append)
        assert lines == []


def test_stages_may_be_done_on_several_machines(source: Any, fakes: Any, tmp_path: Path) -> None:
    whole = run(source, tmp_path / "whole")
    with pytest.raises(InputError) as e:
        run(source, tmp_path / "a", stages=["curves"])
    assert str(e.value) == (
        f"{str(tmp_path / 'a')!r} does not contain the scores of all 5 texts, which curves and sanity need: run the "
        "stage 'scores' first"
    )
    first = run(source, tmp_path / "a", stages=["scores"])
    assert first.curves == {} and first.sanity == {} and list(first.metrics) == ["gradient", "blank-out"]
    assert first.values.tobytes() == whole.values[:, :, :2].tobytes()
    moved = Path(source["model"]).rename(tmp_path / "moved")  # the same model in another place
    try:
        (tmp_path / "a").rename(tmp_path / "b")
        second = run({**source, "model": str(moved)}, tmp_path / "b", stages=["curves"])
    finally:
        moved.rename(source["model"])
    assert second.sanity == {} and second.values.tobytes() == whole.values.tobytes()
    assert second.provenance["sanity"] == 0
    assert bytes_of(run(source, tmp_path / "b", stages=["sanity"])) == bytes_of(whole)


def test_another_run_in_the_same_folder_is_refused(
    source: Any, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source, tmp_path, TEXTS[:3], sanity=1)
    run(source, tmp_path, TEXTS[:3], sanity=2, device="cpu")  # these options do not change the results so far
    before = files(tmp_path)

    def refused(differ: str, given: Any = source, texts: Any = TEXTS[:3], **options: Any) -> None:
        with pytest.raises(InputError) as e:
            run(given, tmp_path, texts, **options)
        assert str(e.value) == (
            f"the folder {str(tmp_path)!r} contains a job with different settings ({differ}): give the same "
            "settings, or another folder"
        )
        assert files(tmp_path) == before

    refused("steps 3, now 4; seed 0, now 2", steps=4, seed=2)
    refused("different texts; different tokens", texts=TEXTS[:4])
    refused("deletions mask, now unk; truncate False, now True", deletions=["unk"], truncate=True)
    refused(
        "class BertForSequenceClassification, now GPT2ForTokenClassification; different weights; different tokens; "
        "different configuration",
        {},
    )
    refused("dtype float32, now float64; different weights; different configuration", {**source, "dtype": "float64"})
    config = Path(source["model"]) / "config.json"
    kept = config.read_text()
    try:  # the same weights with another activation
        config.write_text(json.dumps({**json.loads(kept), "hidden_act": "relu"}))
        refused("different configuration")
    finally:
        config.write_text(kept)
    run(source, tmp_path, TEXTS[:3], sanity=2, deletions=["mask", "mask"])  # duplicate names count once
    with monkeypatch.context() as m:
        m.setattr(grid, "methods_of", lambda model, **options: METHODS[1:])
        refused("different methods", stages=["scores"])
    with monkeypatch.context() as m:
        version = af.__version__
        m.setattr(grid, "__version__", "0.0.9")
        refused(f"attnflow {version}, now 0.0.9")
    (tmp_path / "_manifest.jsonl").write_text("[")
    with pytest.raises(InputError) as e:
        run(source, tmp_path)
    assert (
        str(e.value) == f"{str(tmp_path / '_manifest.jsonl')!r} is not the manifest of a grid job: give another folder"
    )


def test_the_hash_of_weights(source: Any) -> None:
    model = af.load(**source)
    before = weights_hash(model)
    assert before == weights_hash(af.load(**source))
    for level in LEVELS:
        with randomized(model, level, 0):
            assert weights_hash(model) != before
    with torch.no_grad():
        next(model.model.parameters())[3, 2] += 1e-6
    assert weights_hash(model) != before


def test_texts_that_are_left_out(source: Any, fakes: Any, tmp_path: Path) -> None:
    texts = ["", "the key", " ", "key", "\u200b\u200d", "the key " * 20, ("the key", "the book"), "[MASK] key"]
    found = run(source, tmp_path, texts, stages=["scores"])
    assert found.provenance["excluded"] == {
        "empty": 2,
        "longer than the 32 tokens that the model takes": 1,
        "fewer than two tokens": 2,
        "no token but special ones": 1,
    }
    assert (found.provenance["texts"], found.provenance["samples"], len(found.values)) == (8, 2, 2)
    assert [text for text, _ in fakes] == ["the key", ("the key", "the book")]
    cut = run(source, tmp_path / "cut", texts, stages=["scores"], truncate=True)
    assert cut.provenance["samples"] == 3


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (lambda: bert("BertForSequenceClassification"), ""),
        (lambda: bert("BertForMaskedLM"), " [MASK]"),
        (gpt2, ""),
        (lambda: gpt2("GPT2ForSequenceClassification"), ""),
        (lambda: gpt2("GPT2ForTokenClassification", prediction_position=-1), ""),
        (af.load, ""),
    ],
)
def test_two_tokens_can_be_deleted_from_what_is_used(make: Any, end: str) -> None:
    model = make()
    texts = [text + end for text in ("t", "th", "the", "key", "the key", "zq", "the key to", "π")]
    asked = questions(model, texts, [None] * len(texts), False)
    causal = [model.verify(question.encoded).causal for question in asked]
    free = [deletion.content(question, own) for question, own in zip(asked, causal, strict=True)]
    expected = [text for text, own in zip(texts, free, strict=True) if len(own) > 1]
    used, ids, excluded = deletion.rankable(model, texts, False)
    assert used == expected and 0 < len(used) < len(texts)
    assert sum(excluded.values()) == len(texts) - len(used)
    assert ids == [model.tokenizer(text)["input_ids"] for text in used]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"texts": ["", "key"]},
            "there is no text to evaluate (1 empty; 1 fewer than two tokens): expected at least one with two tokens",
        ),
        ({"texts": []}, "there is no text to evaluate (none was given): expected at least one with two tokens"),
        ({"texts": "the key"}, "texts is a str: expected a list of texts"),
        ({"stages": ["score"]}, "stages 'score': expected some of 'scores', 'curves', 'sanity'"),
        ({"deletions": ["pad"]}, "deletions 'pad': expected some of 'mask', 'unk', 'remove'"),
        ({"deletions": []}, "deletions is empty: expected some of 'mask', 'unk', 'remove'"),
        ({"steps": 2}, "steps=2: expected a whole number of at least 3"),
        ({"workers": 0}, "workers=0: expected a whole number of at least 1"),
        ({"sanity": -1}, "sanity=-1: expected a whole number of at least 0"),
        ({"seed": 0.5}, "seed=0.5: expected a whole number of at least 0"),
    ],
)
def test_mistakes(source: Any, fakes: Any, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(InputError) as e:
        run(source, tmp_path, **options)
    assert str(e.value) == message
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_mask_token(fakes: Any, tmp_path: Path) -> None:
    model = gpt2()
    source = saved(model, tmp_path / "model")
    has = [by for by in ("mask", "unk") if getattr(model.tokenizer, f"{by}_token_id") is not None]
    assert "mask" not in has
    found = run(source, tmp_path / "grid", TEXTS[:2], sanity=0, deletions=None)
    assert list(found.curves) == [*has, "remove"] and found.sanity == {}
    with pytest.raises(InputError) as e:
        run(source, tmp_path / "other", deletions=["mask"])
    assert str(e.value).startswith("by='mask': the tokenizer of this model has no mask token; expected one of ")


def test_a_text_without_a_mask_asks_nothing(tmp_path: Path) -> None:
    model = bert("BertForMaskedLM")
    used, _, excluded = deletion.rankable(model, ["the key [MASK] to", "the key to"], False)
    assert used == ["the key [MASK] to"] and excluded == {"no [MASK] in it": 1}
    with pytest.raises(InputError) as e:
        run(saved(model, tmp_path / "model"), tmp_path / "grid", ["the key to"])
    assert str(e.value) == ("there is no text to evaluate (1 no [MASK] in it): expected at least one with two tokens")


def but_one(own: Any) -> Any:
    """Score every text but the second."""

    def score(model: Any, text: Any, *more: Any, **options: Any) -> Any:
        if text == TEXTS[1]:
            raise InputError("no number")
        return own(model, text, *more, **options)

    return score


def test_a_text_that_cannot_be_scored_is_named(
    source: Any, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "score_text", but_one(grid.score_text))
    with pytest.raises(InputError) as e:
        run(source, tmp_path)
    assert str(e.value) == f"the text {TEXTS[1]!r:.40}: no number"


def test_a_shuffled_model_that_cannot_be_scored(
    source: Any, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomize, "score_text", but_one(randomize.score_text))
    found = run(source, tmp_path)
    assert found.provenance["without sanity"] == {"no number": 3}
    assert np.isnan(found.sanity["head"][1]).all() and np.isfinite(found.sanity["head"][[0, 2]][:, [0, 2]]).all()


def attention(model: Any) -> Any:
    return model.trace(TEXTS[0]).raw(query="all").values


def state(model: Any) -> dict[str, Any]:
    return {name: x.clone() for name, x in model.model.state_dict().items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: bert("BertForSequenceClassification"),
        gpt2,
        lambda: bert("BertForMaskedLM"),
        lambda: gpt2("GPT2ForTokenClassification", prediction_position=-1),
    ],
)
def test_weights_are_shuffled_and_put_back(make: Any) -> None:
    model = make()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.model.parameters():  # in a fresh model, norms and biases are all ones and zeros
            p.add_(0.1 * torch.randn(p.shape))
    text = TEXTS[0] + (" [MASK]" if "Masked" in type(model.model).__name__ else "")
    before, seen = state(model), attention(model)
    chance = questions(model, [text], [None], False)[0].chance
    changed: dict[str, set[str]] = {}
    shuffled: dict[str, Any] = {}
    for level in LEVELS:
        with pytest.raises(ZeroDivisionError), randomized(model, level, 0):
            now = state(model)
            changed[level] = {name for name in now if not torch.equal(now[name], before[name])}
            assert all(torch.equal(now[name].flatten().sort()[0], x.flatten().sort()[0]) for name, x in before.items())
            assert questions(model, [text], [None], False)[0].chance != chance
            assert np.array_equal(attention(model), seen) == (level == "head")
            for name in changed[level] & shuffled.keys():
                assert torch.equal(now[name], shuffled[name])  # as at the previous level
            shuffled |= {name: now[name] for name in changed[level]}
            raise ZeroDivisionError
        assert all(torch.equal(x, before[name]) for name, x in state(model).items())
    half = len(layers_of(model)) // 2
    prefix = next(name for name, module in model.model.named_modules() if module is layers_of(model))
    lower = tuple(f"{prefix}.{k}." for k in range(half))
    assert changed["head"] < changed["upper half"] < changed["all"]
    assert not any("emb" in name or "wte" in name or name.startswith(f"{prefix}.") for name in changed["head"])
    assert not any(name.startswith(lower) for name in changed["upper half"])
    assert {
        k for k in range(half, 2 * half) if any(name.startswith(f"{prefix}.{k}.") for name in changed["upper half"])
    } == set(range(half, 2 * half))
    assert any(name.startswith(lower) for name in changed["all"]) and any(
        "emb" in n or "wte" in n for n in changed["all"]
    )


def test_another_seed_shuffles_otherwise(source: Any) -> None:
    model = af.load(**source)
    found = []
    for seed in (0, 0, 1):
        with randomized(model, "all", seed):
            found.append(attention(model))
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def test_what_cannot_be_shuffled(source: Any) -> None:
    with pytest.raises(InputError) as e, randomized(af.load(**source), "body", 0):
        pass
    assert str(e.value) == "level='body': expected one of 'head', 'upper half', 'all'"
    with pytest.raises(InputError) as e:
        layers_of(af.wrap(torch.nn.Linear(2, 2)))
    assert str(e.value) == (
        "Linear has no stack of layers (a torch.nn.ModuleList), so there is no upper half to shuffle: leave out the "
        "sanity check"
    )


def test_the_stack_is_that_of_layers_not_of_experts() -> None:
    layer = torch.nn.Module()
    layer.experts = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(8))
    whole = torch.nn.Module()
    whole.layers = torch.nn.ModuleList([layer, torch.nn.Linear(1, 1)])
    whole.classifiers = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    assert layers_of(af.wrap(whole)) is whole.layers


def test_a_small_model_runs_in_one_thread(source: Any, fakes: Any, tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[int] = []

    def methods(model: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        return METHODS

    monkeypatch.setattr(grid, "methods_of", methods)
    torch.set_num_threads(2)
    try:
        for small in (grid.SMALL, 1):
            monkeypatch.setattr(grid, "SMALL", small)
            folder = tmp_path / str(small)
            run(source, folder, TEXTS[:2], stages=["scores"], say=lambda line: seen.append(torch.get_num_threads()))
            seen.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 1, 2, 2, 2, 2]  # while methods are found, while texts are scored, and after
