"""Every method × every option of `attnflow show` and `attnflow corpus run`: it runs and equals the library, or it is refused
with a sentence whose advice works."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.method_table import IMPORTANCE, LAYERED, TEXT_METHODS, takers, takes

torch = pytest.importorskip("torch", reason="models need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")
pytest.importorskip("captum", reason="integrated gradients and Shapley values need captum")
pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("pyarrow", reason="jobs need pyarrow")

from helpers.architectures import SEQ2SEQ, hf  # noqa: E402
from helpers.small_models import classifier  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402

Command = Callable[..., Any]
pytestmark = pytest.mark.long  # hundreds of runs of small models

TEXT = "the unbelievable key to the cabinets"
OTHER = "good"
"""The class that the model does not predict."""

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "words": {"words": True},
    "query": {"query": "key"},
    "layers": {"layers": "L1"},
    "edges": {"edges": "value-norm"},
    "gradient edges": {"edges": "attention-gradient"},
    "normalize": {"edges": "attention-gradient", "normalize": "rows"},
    "residual": {"residual": 0.3},
    "receptive_field": {"receptive_field": "ratio"},
    "answer": {"answer": OTHER},
    "answer of edges": {"edges": "gradient", "answer": OTHER},
    "of": {"of": "logit"},
    "of edges": {"edges": "gradient", "of": "probability"},
    "words and query": {"words": True, "query": "unbelievable"},
    "words and edges": {"words": True, "edges": "gradient"},
    "words and answer": {"words": True, "answer": OTHER},
}


@pytest.fixture(scope="module")
def model() -> af.Model:
    """Return a classifier whose attention is far from uniform, so that options have an effect."""
    bert = classifier()
    with torch.no_grad():
        for weights in bert.parameters():
            weights.mul_(6 if weights.ndim == 2 else 1)
    return af.wrap(bert, wordpiece())


@pytest.fixture
def show(attnflow: Command, model: af.Model, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `attnflow show TEXT` on one model in memory, which saves loading it hundreds of times."""
    monkeypatch.setattr(af, "load", lambda *_, **__: model)
    return lambda *words, **status: attnflow("show", TEXT, *words, **status)


def written(options: dict[str, Any]) -> list[str]:
    """Return options as on the command line."""
    names = {"layers": "--layer", "receptive_field": "--receptive-field"}
    return [
        word
        for name, value in options.items()
        for word in ([f"--{name}"] if value is True else [names.get(name, f"--{name}"), str(value)])
    ]


def by_library(model: af.Model, method: str, options: dict[str, Any]) -> af.TokenAttention:
    """Return what Python returns for the same method and options."""
    words = options.get("words", False)
    about = {name: options[name] for name in ("answer", "of") if name in options}
    if method in IMPORTANCE:
        if words and method == "blank_out":
            return model.blank_out(TEXT, **about, unit="word")
        result = getattr(model, method)(TEXT, **about)
        return result.words() if words else result
    edges = options.get("edges", "answer" if method not in LAYERED else None)
    trace = model.trace(TEXT, edges=edges, normalize=options.get("normalize"), **about)
    trace = trace.words() if words else trace
    if method == "answer_inputs":
        return trace.answer_inputs(signed="shares")
    if method == "answer_rows":
        return trace.answer_rows(options.get("query"))
    more = {name: options[name] for name in ("residual", "receptive_field") if name in options}
    layer = 0 if "layers" in options else -1
    return getattr(trace, method)(options.get("query"), layer, **more)


def is_taken(method: str, options: dict[str, Any]) -> bool:
    return all(takes(method, name, options.get("edges")) for name in options)


CELLS = [(method, name) for method in TEXT_METHODS for name in OPTIONS]


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttentionWarning")
@pytest.mark.parametrize(("method", "name"), CELLS, ids=[f"{method}-{name}" for method, name in CELLS])
def test_show_does_what_the_library_does_or_says_what_to_do(
    show: Command, model: af.Model, method: str, name: str, tmp_path: Path
) -> None:
    options = OPTIONS[name]
    words = ["--method", method.replace("_", "-") if method in IMPORTANCE else method, *written(options)]
    if not is_taken(method, options):
        check_advice(show(*words, "--json", status=2).err, method, options)
        return
    printed = json.loads(show(*words, "--json").out)
    expected = by_library(model, method, options)
    assert printed["method"] == expected.method
    assert np.allclose(printed["values"], expected.values, atol=1e-6)
    assert printed["tokens"] == list(expected.tokens) and printed["query_tokens"] == list(expected.query_tokens)
    plain = by_library(model, method, {})
    if name == "answer":  # of two classes, each is as important as the other
        assert printed["provenance"]["answer"]["name"] == options["answer"] != plain.provenance["answer"]["name"]
    elif options:
        assert expected.values.shape != plain.values.shape or not np.allclose(expected.values, plain.values, atol=1e-9)


def check_advice(message: str, method: str, options: dict[str, Any]) -> None:
    """Check that a refusal names methods that take the option."""
    assert message.count("\n") == 1 and "leave it out" in message
    listed = re.search(
        r"(\w+)=\S+ applies to (.*?)(, and edges by gradients)?, not to (\w+): leave it out, or choose", message
    )
    assert listed is not None, message
    option = listed[1]
    others = listed[2].split(", ")
    edges = options.get("edges") if option == "normalize" else None
    assert listed[4] == method and method not in others and others
    assert all(takes(other, option, edges) for other in others) and others == takers(option, edges)


@pytest.mark.parametrize("extension", [".npz", ".html", ".pdf"])
@pytest.mark.parametrize("method", TEXT_METHODS)
@pytest.mark.filterwarnings("ignore::attnflow.errors.AttentionWarning")
def test_every_method_writes_every_kind_of_file(
    show: Command, model: af.Model, method: str, extension: str, tmp_path: Path
) -> None:
    file = tmp_path / f"result{extension}"
    words = ["--method", method, "-o", str(file)]
    if extension == ".html" and method == "answer_rows":  # the page of a classifier has answer_inputs
        assert "has answer_inputs; leave --method out, or use the terminal" in show(*words, status=2).err
        show("-o", str(file))
    else:
        show(*words, "--no-special" if extension != ".html" else "--words")
    assert file.stat().st_size > 500
    if extension == ".npz":
        saved = af.TokenAttention.load(file)
        assert not any(saved.special) and np.allclose(
            saved.values, by_library(model, method, {}).without_special().values, atol=1e-6
        )


@pytest.mark.parametrize(
    "words",
    [
        ["--edges", "alti"],
        ["--method", "gradient", "--answer", OTHER],
    ],
)
def test_a_page_of_what_the_page_of_a_text_has_not_shows_the_values(
    show: Command, words: list[str], tmp_path: Path
) -> None:
    show(*words, "-o", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("method", TEXT_METHODS)
def test_heads_take_the_methods_that_follow_one_head(show: Command, model: af.Model, method: str) -> None:
    if method not in LAYERED:
        message = show("--heads", "L2.1", "--method", method, status=2).err
        assert message.endswith("with --heads, expected raw, rollout, flow\n")
        return
    printed = json.loads(show("--heads", "L2.1", "--method", method, "--query", "key", "--json").out)
    trace = model.trace(TEXT, keep_heads=True)
    expected = trace.head(1, 0, "key") if method == "raw" else trace.single_head(1, 0, method, "key")
    assert np.allclose(printed["values"], expected.values, atol=1e-6)


def test_heads_over_words(show: Command, model: af.Model) -> None:
    printed = json.loads(show("--heads", "L2.1", "--words", "--no-special", "--json").out)
    expected = model.trace(TEXT, keep_heads=True).words().head(1, 0).without_special()
    assert printed["tokens"] == list(expected.tokens) and "unbelievable" in printed["tokens"]
    assert np.allclose(printed["values"], expected.values, atol=1e-6)


@pytest.mark.parametrize("option", ["edges", "normalize", "residual", "receptive_field", "answer", "of"])
def test_heads_say_which_options_to_leave_out(show: Command, option: str) -> None:
    options = {"edges": "value-norm", "of": "logit", "residual": 0.3, "normalize": "rows"}
    message = show("--heads", "L1.1", *written({option: options.get(option, "ratio")}), status=2).err
    name = f"--{option.replace('_', '-')}"
    assert f"leave {name} out, or use --method rollout without --heads" in message


@pytest.mark.parametrize("method", TEXT_METHODS)
def test_a_target_is_for_the_methods_with_layers(
    attnflow: Command, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = hf("BartForConditionalGeneration", **{**SEQ2SEQ, "vocab_size": len(wordpiece())}, decoder_start_token_id=2)
    writer = af.wrap(build(), wordpiece())
    monkeypatch.setattr(af, "load", lambda *_, **__: writer)
    words = ["show", TEXT, "--method", method, "--target", "the key", "--json"]
    if method not in LAYERED:
        message = attnflow(*words, status=2).err
        assert f"target='the key' applies to {', '.join(LAYERED)}, not to {method}: leave it out, or choose" in message
        return
    printed = json.loads(attnflow(*words).out)
    expected = getattr(writer.trace(TEXT, target="the key"), method)(layer=-1)
    assert np.allclose(printed["values"], expected.values, atol=1e-6)


def test_a_residual_weight_has_no_effect_on_edges_that_include_it(show: Command) -> None:
    message = show("--edges", "alti", "--residual", "0.3", status=2).err
    assert message == (
        "attnflow: residual=0.3 has no effect with edges='alti', which already include the residual connection: leave "
        "it out, or choose other edges\n"
    )


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttentionWarning")
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "receptive_field"])
def test_a_job_does_what_the_library_does_or_says_what_to_do(name: str, model: af.Model, tmp_path: Path) -> None:
    """One job for all methods that take the option, and one refusal for each of the others."""
    import pyarrow.parquet as pq

    from attnflow.corpus import explain_corpus

    options = OPTIONS[name]
    (tmp_path / "t.txt").write_text(TEXT + "\n")
    methods = [method for method in TEXT_METHODS if is_taken(method, options)]
    explain_corpus(tmp_path / "t.txt", tmp_path / "out", model, methods=methods, progress="none", **options)
    (row,) = pq.read_table(tmp_path / "out" / "part-000000.parquet").to_pylist()
    assert row["error"] is None, row["message"]
    for method in methods:
        column = f"{method}_L{1 if 'layers' in options else 3}" if method in LAYERED else method
        expected = by_library(model, method, options)
        assert np.allclose(np.ravel(row[column]), expected.values[0].ravel(), atol=1e-5), method
    for method in (method for method in TEXT_METHODS if method not in methods):
        with pytest.raises(af.InputError, match=r"leave it out"):
            explain_corpus(tmp_path / "t.txt", tmp_path / "no", model, methods=method, progress="none", **options)
        assert not (tmp_path / "no").exists()


def test_the_documentation_has_the_table() -> None:
    import support

    page = support.EDGES.read_text()
    assert page == support.with_methods(page), "run python tests/support.py --write"
    assert "| `raw` | yes | yes | yes | yes | with edges | – |" in page
