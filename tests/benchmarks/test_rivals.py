"""The rivals run their own code on our tokens and units, and leave the model unchanged."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.errors import InputError
from benchmarks import rival_adapters, rival_packages, rivals
from benchmarks import train_at2 as training
from benchmarks.command import run_command
from benchmarks.rival_adapters import (
    Example,
    at2,
    at2_units,
    attnlrp,
    context_cite,
    flashtrace,
    integrated_gradients,
    shapley,
    train_at2,
)
from benchmarks.rival_packages import VERSIONS, Lasso, Pipeline, StandardScaler, package
from benchmarks.rival_tokens import KnownTexts
from benchmarks.rivals import RIVALS, UNIT_RIVALS
from helpers.small_tokenizers import byte_level

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = "The key is rusty. Nobody's books are there. The cabinet is in the café."
UNITS = ([0, 1, 2, 3], [4, 5, 6], [9, 8, 7])


def need(name: str) -> None:
    """Skip the test, with the reason, if the rival is not installed."""
    if (reason := rivals.refusal(lambda: package(name))) is not None:
        pytest.skip(reason)


def package_of(name: str) -> str:
    """Return the package of a rival, from the first words of its name."""
    first = name.split(",")[0]
    packages = {"FlashTrace": "flashtrace", "IFR": "flashtrace", "AttnLRP": "flashtrace", "ContextCite": "context-cite"}
    return packages.get(first, first.lower())


@pytest.fixture(scope="module")
def decoder() -> af.Model:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"unk_token": "<unk>", "eos_token": "</s>"})
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.5, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return af.wrap(transformers.LlamaForCausalLM(config), tokenizer)


@pytest.fixture(scope="module")
def case(decoder: af.Model) -> tuple[list[int], list[int]]:
    tokenizer: Any = decoder.tokenizer
    ids = tokenizer(TEXT)["input_ids"]
    return ids, tokenizer(TEXT + " is rusty")["input_ids"][len(ids) :]


def state(model: af.Model) -> Any:
    """Return the state that rivals must not change."""
    module: Any = model.model
    return (
        [sorted(vars(part)) for part in module.modules()],
        [[len(getattr(part, hook)) for hook in rival_packages.HOOKS] for part in module.modules()],
        [(weight.requires_grad, weight.grad) for weight in module.parameters()],
        {name: value for name, value in vars(module.config).items() if not name.startswith("_")},
        (module.config._attn_implementation, module.training, vars(model.tokenizer).keys()),
        (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()),  # type: ignore[index,union-attr]  # noqa: NPY002
        dict(sys.modules[type(module).__module__].ALL_ATTENTION_FUNCTIONS),
        type(sys.modules[type(module).__module__].ALL_ATTENTION_FUNCTIONS),
    )


@pytest.mark.parametrize("name", sorted({*RIVALS, *UNIT_RIVALS}))
def test_a_rival_scores_and_leaves_the_model_as_it_was(name: str, decoder: af.Model, case: Any) -> None:
    need(package_of(name))
    ids, answer = case
    rows = decoder.answer(ids, answer=answer).sources().values
    before = state(decoder)
    for rival, arguments in ((RIVALS.get(name), case), (UNIT_RIVALS.get(name), (*case, UNITS))):
        if rival is None:
            continue
        scores = rival(decoder, *arguments)
        assert scores.shape == (len(arguments[-1] if len(arguments) == 3 else ids),) and scores.dtype == np.float64
        assert np.isfinite(scores).all() and len(set(scores.tolist())) > 1
        assert state(decoder) == before
        np.testing.assert_array_equal(rival(decoder, *arguments), scores)
    np.testing.assert_array_equal(decoder.answer(ids, answer=answer).sources().values, rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", sorted({*RIVALS, *UNIT_RIVALS}))
def test_a_rival_says_the_same_on_a_gpu(name: str, decoder: af.Model, case: Any) -> None:
    need(package_of(name))
    on_gpu = af.wrap(copy.deepcopy(decoder.model).cuda(), decoder.tokenizer)
    for rival, arguments in ((RIVALS.get(name), case), (UNIT_RIVALS.get(name), (*case, UNITS))):
        if rival is not None:
            scores = rival(decoder, *arguments)
            np.testing.assert_allclose(rival(on_gpu, *arguments), scores, atol=2e-3 * np.abs(scores).max())


def test_a_model_comes_back_from_a_rival_that_fails(decoder: af.Model) -> None:
    before = state(decoder)
    module: Any = decoder.model
    with pytest.raises(ZeroDivisionError), rival_packages.lent(decoder, "eager") as borrowed:
        assert borrowed.config._attn_implementation == "eager" and not any(
            w.requires_grad for w in borrowed.parameters()
        )
        borrowed.train()
        borrowed.config.pad_token_id = 7
        borrowed.model.layers[0].register_forward_hook(lambda *_: None)
        borrowed.model.forward = None
        np.random.rand(), torch.rand(1)  # noqa: NPY002
        1 / 0  # noqa: B018
    assert state(decoder) == before and module.model.forward is not None


def test_flashtrace_reads_the_positions_of_the_answer_or_those_before(decoder: af.Model, case: Any) -> None:
    need("flashtrace")
    ids, answer = case
    assert len(answer) > 1
    package("flashtrace")
    tokens = KnownTexts(decoder.tokenizer, ids, answer)
    engine = sys.modules["flashtrace.attribution"].LLMIFRAttribution(decoder.model, tokens, recompute_attention=True)
    with rival_packages.quiet():
        matrix = engine.calculate_ifr_for_all_positions(tokens.text(ids), tokens.text(answer)).attribution_matrix
    expected = matrix[: len(answer), : len(ids)].mean(0)
    np.testing.assert_allclose(flashtrace("ifr-matrix")(decoder, ids, answer), expected, rtol=1e-5)
    before = flashtrace("ifr-matrix", predicting=True)(decoder, ids, answer)
    shifted = flashtrace("ifr-matrix")(decoder, ids[:-1], [ids[-1], *answer[:-1]])
    np.testing.assert_array_equal(before, [*shifted, 0.0])


def test_attnlrp_is_the_mean_over_the_answers_tokens(decoder: af.Model, case: Any) -> None:
    need("flashtrace")
    ids, answer = case
    (_, baselines, attribution) = package("flashtrace", "flashtrace.baselines", "flashtrace.attribution")
    tokens = KnownTexts(decoder.tokenizer, ids, answer)
    with rival_packages.lent(decoder) as model, rival_adapters.interfaces(attribution, model):
        rules = baselines.LLMLRPAttribution(model, tokens)
        matrix = rules.calculate_attnlrp(tokens.text(ids), tokens.text(answer)).attribution_matrix
    expected = matrix[: len(answer), : len(ids)].mean(0)
    np.testing.assert_allclose(attnlrp(decoder, ids, answer), expected, atol=1e-5)


def test_untrained_at2_is_the_mean_attention_of_the_predicting_positions(decoder: af.Model, case: Any) -> None:
    need("at2")
    ids, answer = case
    trace = decoder.trace({"input_ids": torch.tensor([ids + answer])})
    deciding = range(len(ids) - 1, len(ids) + len(answer) - 1)
    rows = trace.raw(query=list(deciding)).values.mean((0, 1))[: len(ids)]  # [layer, query, key]
    np.testing.assert_allclose(at2()(decoder, ids, answer), rows, atol=1e-6)
    sums = [rows[list(unit)].sum() for unit in UNITS]
    np.testing.assert_allclose(at2_units()(decoder, ids, answer, UNITS), sums, atol=1e-6)


def test_at2_learns_from_ablations(decoder: af.Model, case: Any, tmp_path: Path) -> None:
    need("at2")
    ids, answer = case
    weights = tmp_path / "weights.pt"
    examples = [Example(ids[k:], answer, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]) for k in range(3)]
    before = state(decoder)
    train_at2(decoder, examples, weights, masks=8, iterations=20)
    assert state(decoder) == before and [file.name for file in tmp_path.iterdir()] == ["weights.pt"]
    scores = at2(weights)(decoder, ids, answer)
    assert np.isfinite(scores).all() and not np.allclose(scores, at2()(decoder, ids, answer))
    again = tmp_path / "again.pt"
    train_at2(decoder, examples, again, masks=8, iterations=20)
    np.testing.assert_array_equal(at2(again)(decoder, ids, answer), scores)
    with pytest.raises(InputError, match=r"no examples to train AT2 on"):
        train_at2(decoder, [], weights)
    with pytest.raises(InputError, match=r"'.*none' is not a file: expected AT2 weights saved by `train_at2`"):
        at2(tmp_path / "none")(decoder, ids, answer)
    wide = transformers.LlamaConfig(**{**decoder.model.config.to_dict(), "num_hidden_layers": 3})
    with pytest.raises(InputError, match=r"are for 4 heads, but .* has 6: train AT2 on this model"):
        at2(weights)(af.wrap(transformers.LlamaForCausalLM(wide), decoder.tokenizer), ids, answer)
    other = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(InputError, match=r"AT2 does not support 'gpt2' models: expected one of 'llama', 'phi3'"):
        at2()(af.wrap(other), [1, 2], [3])


PASSAGES = [[f"The {word} is in the cabinet."] * 8 for word in ("key", "book", "café", "shelf")]


def test_training_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    monkeypatch.setattr(training, "package", calls.append)
    monkeypatch.setattr(training, "passages", lambda data: PASSAGES)
    monkeypatch.setattr(training, "train_at2", lambda *values, **options: calls.append((values, options)))
    words = ["-m", "small", "--data", "texts", "-o", str(tmp_path / "w.pt"), "--passages", "2", "--masks", "9"]
    monkeypatch.setattr("sys.argv", ["train_at2", *words])
    with pytest.raises(SystemExit) as left:
        run_command(training.main)
    assert left.value.code == 0 and "9 ablations of each of 2 passages" in capsys.readouterr().err
    name, ((model, examples, file), options) = calls
    assert (name, model, len(examples), file) == ("at2", decoder, 2, tmp_path / "w.pt")
    assert options == {"masks": 9, "batch": 4}


def log_odds(decoder: af.Model, ids: list[int], answer: list[int]) -> float:
    """Return the log-odds of the whole answer as ContextCite defines them: ``log p - log(1 - p)``."""
    with torch.no_grad():
        logits = decoder.model(input_ids=torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1].double()
    whole = float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum())
    return float(whole - np.log1p(-np.exp(whole)))


def test_context_cite_fits_the_ablations_of_our_units(decoder: af.Model, case: Any) -> None:
    need("context-cite")
    ids, answer = case
    kept = [np.random.RandomState(seed).choice([False, True], size=3, p=[0.5, 0.5]) for seed in range(8)]
    places = {i for unit in UNITS for i in unit}
    outputs = []
    for mask in kept:
        stays = {i for unit, keep in zip(UNITS, mask, strict=True) if keep for i in unit}
        outputs.append(log_odds(decoder, [t for i, t in enumerate(ids) if i not in places or i in stays], answer))
    scaler, lasso = StandardScaler(), Lasso(alpha=0.01)
    Pipeline(scaler, lasso).fit(np.array(kept, float), np.array(outputs) / len(answer))
    expected = lasso.coef_ / scaler.scale_ * len(answer)
    np.testing.assert_allclose(context_cite(8)(decoder, ids, answer, UNITS), expected, atol=2e-3)


def test_integrated_gradients_and_shapley_add_up(decoder: af.Model, case: Any) -> None:
    need("captum")
    ids, answer = case
    whole, bare = (odds(decoder, text, answer) for text in (ids, [t for i, t in enumerate(ids) if i > 9]))
    assert shapley(decoder, ids, answer, UNITS).sum() == pytest.approx(whole - bare, abs=1e-4)
    everything = [list(range(len(ids)))]  # the first token stays
    alone = odds(decoder, ids[:1], answer)
    assert shapley(decoder, ids, answer, everything) == pytest.approx(whole - alone, abs=1e-4)
    tokenizer: Any = decoder.tokenizer
    blank = odds(decoder, [tokenizer.unk_token_id] * len(ids), answer)
    assert integrated_gradients(blank=True)(decoder, ids, answer).sum() == pytest.approx(whole - blank, rel=0.05)
    zeros = integrated_gradients()(decoder, ids, answer)
    assert not np.allclose(zeros, integrated_gradients(blank=True)(decoder, ids, answer))


def odds(decoder: af.Model, ids: list[int], answer: list[int]) -> float:
    """Return the sum of the log-odds of the answer's tokens."""
    with torch.no_grad():
        rows = decoder.model(input_ids=torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1].double().softmax(-1)
    chances = rows.gather(1, torch.tensor(answer)[:, None])
    return float((chances.log() - torch.log1p(-chances)).sum())


def test_refusals(decoder: af.Model, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashtrace", None)
    sentence = (
        "flashtrace==0.1.1 cannot be imported, because flashtrace is not installed: add a folder to PYTHONPATH made "
        "by `pip install --no-deps --target FOLDER flashtrace==0.1.1` (docs/evaluation.md)"
    )
    with pytest.raises(InputError) as refused:
        RIVALS["IFR"](decoder, *case)
    assert str(refused.value) == sentence == rivals.installed()["flashtrace"]
    monkeypatch.setitem(VERSIONS, "no-rival", "3.1")
    monkeypatch.setitem(rival_packages.IMPORTS, "no-rival", ())
    with pytest.raises(InputError, match=r"no-rival==3.1 cannot be imported, because no_rival is not installed"):
        package("no-rival")
    monkeypatch.setitem(sys.modules, "no_rival", SimpleNamespace(__path__=[], __spec__=None))
    with pytest.raises(InputError, match=r"because no_rival.part is not installed: .* --target FOLDER no_rival.part`"):
        package("no-rival", "no_rival.part")


@pytest.mark.parametrize(("rows", "columns"), [(4, 10), (32, 10), (8, 8), (64, 3)])
def test_the_stand_in_of_the_lasso_is_optimal(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(rows)
    X = random.integers(0, 2, (rows, columns)).astype(float)
    X[:, 0] = 1  # a unit that every ablation keeps
    y = X @ random.normal(size=columns) + 0.3 * random.normal(size=rows)
    scaler, lasso, early = StandardScaler(), Lasso(alpha=0.01), Lasso(alpha=0.01)
    Pipeline(StandardScaler(), early).fit(X, y)
    monkeypatch.setattr(Lasso, "TOLERANCE", 1e-14)
    monkeypatch.setattr(Lasso, "ROUNDS", 100_000)
    Pipeline(scaler, lasso).fit(X, y)
    assert scaler.scale_[0] == 1 and lasso.coef_[0] == 0
    Z = scaler.transform(X)
    np.testing.assert_allclose(Z[:, 1:].std(0), (X[:, 1:].std(0) > 0).astype(float), atol=1e-12)
    slope = Z.T @ (y - lasso.intercept_ - Z @ lasso.coef_) / rows
    live = lasso.coef_ != 0
    np.testing.assert_allclose(slope[live], 0.01 * np.sign(lasso.coef_[live]), atol=1e-6)  # at the minimum
    assert live.any() and (np.abs(slope[~live]) <= 0.01 + 1e-6).all()
    cost = [((y - f.intercept_ - Z @ f.coef_) ** 2).mean() / 2 + 0.01 * np.abs(f.coef_).sum() for f in (early, lasso)]
    assert 0 <= cost[0] - cost[1] <= 1e-4 * y.var()


def test_rivals_as_a_command(
    decoder: af.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def first(model: af.Model, ids: list[int], answer: list[int], *units: Any) -> Any:
        return -np.arange(float(len(units[0] if units else ids)))

    def refuse(*_: Any) -> Any:
        raise InputError("it is not there")

    monkeypatch.setattr(af, "load", lambda *_, **__: decoder, raising=False)
    monkeypatch.setattr(rivals, "installed", lambda: {"at2": None, "inseq": "is missing"})
    monkeypatch.setattr(rivals, "RIVALS", {"one": first, "two": refuse})
    monkeypatch.setattr(rivals, "UNIT_RIVALS", {"three": first})
    monkeypatch.setattr("sys.argv", ["rivals", "-m", "small"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        run_command(rivals.main)
    output = capsys.readouterr().out
    assert left.value.code == 0 and "at2 0.0.1: installed" in output and "inseq 0.7.1: is missing" in output
    assert "it is not there" in output and "'The river was low that summer.' | 'The market opens" in output
    runs = rivals.runs(decoder, Path("weights.pt"))
    assert [run.name for run in runs] == ["one", "two", "AT2, trained", "three", "AT2, trained"]
