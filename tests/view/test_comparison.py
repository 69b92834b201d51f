"""Answer edges, raw attention, rollout, flow, gradient and blank-out compared: numbers, figure, terminal, command."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="comparisons need torch")
transformers = pytest.importorskip("transformers", reason="comparisons need transformers")

import attnflow as af  # noqa: E402
from attnflow.cli.compare import compare as command  # noqa: E402
from attnflow.evaluate.statistics import rank_correlations  # noqa: E402
from attnflow.view import sheet  # noqa: E402
from attnflow.view.comparison import Comparison, compare  # noqa: E402
from attnflow.view.comparison_figure import shaded_lines  # noqa: E402
from attnflow.view.comparison_text import render  # noqa: E402
from helpers.architectures import POSITIONS, SEQ2SEQ, hf  # noqa: E402
from helpers.small_models import sinking  # noqa: E402
from helpers.small_tokenizers import byte_level, sentencepiece, wordpiece  # noqa: E402

ANSI = re.compile(r"\x1b\[[0-9;]*m")
TEXT = "the key to the cabinets"
VIEWS = ("raw", "rollout", "flow")
METHODS = ("answer_inputs", *VIEWS, "gradient", "blank-out")
OF_DECODERS = ("answer_rows", *METHODS[1:])
ODD = ["[CLS]", "$x", "a$b$", "_^{", "日本", "🙂", "a\nb", "\ud800", "internationalisation-of-things", "\\frac", "<b>&", "",
       "%", "שלום", "مرحبا", "[bold]", "\x1b[31m"]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return af.load()


def test_a_comparison_says_what_a_sink_takes_and_can_leave_it_where_it_is() -> None:
    decoder = sinking()
    text = decoder.tokenizer.decode([1]) + TEXT
    trace = decoder.trace(text)
    assert trace.tokens[0] == decoder.tokenizer.convert_ids_to_tokens(1)
    kept = compare(decoder, text, importance={"gradient": {"of": "logit"}})
    results = [trace.raw(layer=-1), trace.rollout(layer=-1), trace.flow(layer=-1)]
    rows = decoder.trace(text, edges="answer").answer_rows()
    expected = [note for result in (rows, *results) for note in result.reliability]
    assert list(kept.reliability) == list(kept.notes) == expected
    assert any("of this rollout is on" in note for note in expected) and any("can flow to" in note for note in expected)
    assert kept.to_dict()["notes"] == kept.to_dict()["provenance"]["reliability"] == expected
    moved = compare(decoder, text, importance={"gradient": {"of": "logit"}}, residual=0.3)
    for name, options in (("raw", {}), ("rollout", {"residual": 0.3}), ("flow", {"residual": 0.3})):
        expected = getattr(trace, name)(layer=-1, **options).row()
        np.testing.assert_array_equal(moved.row(name), expected)
    assert moved.provenance["residual"] == 0.3


@pytest.fixture(scope="module")
def found(model: Any) -> Comparison:
    return compare(model, TEXT)


def made(tokens: Any, methods: Any = METHODS, **changes: Any) -> Comparison:
    """Return a comparison of any tokens, with random numbers."""
    values = np.random.default_rng(0).gamma(0.6, size=(len(methods), len(tokens)))
    told: dict[str, Any] = {
        "methods": tuple(methods), "values": values, "correlations": rank_correlations(values, values), "layer": 5,
        "query": 0, "query_token": tokens[0], "place": 0, "tokens": tuple(tokens), "special": (False,) * len(tokens),
        "text": "text", "provenance": {"model": "toy/model"},
    }  # fmt: skip
    return Comparison(**{**told, **changes})


def printed(shown: Any, *, colour: bool = False, width: int = 80, encoding: str = "utf-8", **environment: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    system: Any = "truecolor" if colour else None
    Console(file=stream, width=width, force_terminal=colour, color_system=system, _environ=environment).print(shown)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_the_rows_are_those_of_the_methods(model: Any, found: Comparison) -> None:
    trace = model.trace(TEXT)
    assert found.methods == METHODS and found.tokens == trace.tokens and found.missing == {}
    assert (found.query, found.query_token, found.place, found.layer) == (0, "[CLS]", 0, 5)
    assert found.prediction == trace.prediction
    np.testing.assert_array_equal(found.row("answer_inputs"), model.trace(TEXT, edges="answer").sources().row())
    for name in VIEWS:
        np.testing.assert_array_equal(found.row(name), getattr(trace, name)(0, layer=-1).row())
    for name in ("gradient", "blank_out"):
        np.testing.assert_array_equal(found.row(name.replace("_", "-")), getattr(model, name)(TEXT).row())
    other = compare(model, TEXT, query="key", layer=1, residual=0.3)
    assert (other.query, other.layer) == (2, 1)
    np.testing.assert_array_equal(other.row("raw"), trace.raw("key", 1).row())
    np.testing.assert_array_equal(other.row("rollout"), trace.rollout("key", 1, residual=0.3).row())
    np.testing.assert_array_equal(other.row("flow"), trace.flow("key", 1, residual=0.3).row())
    for name in ("answer_inputs", "blank-out"):  # they explain the answer, whatever the query
        np.testing.assert_array_equal(other.row(name), found.row(name))
    assert not np.array_equal(other.row("rollout"), trace.rollout("key", 1).row())


def test_correlations_are_spearmans(found: Comparison) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is what they are compared with")
    for a in METHODS:
        for b in METHODS:
            expected = stats.spearmanr(np.abs(found.row(a)), np.abs(found.row(b))).statistic  # importance is unsigned
            assert found.correlation(a, b) == pytest.approx(expected, abs=1e-12), (a, b)


def test_without_special_tokens_they_are_not_ranked_either(model: Any, found: Comparison) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is what they are compared with")
    inner = compare(model, TEXT, special=False)
    assert (
        inner.tokens == ("the", "key", "to", "the", "cabinets") and inner.place is None and inner.query_token == "[CLS]"
    )
    np.testing.assert_array_equal(inner.values, found.values[:, 1:-1])
    expected = stats.spearmanr(found.row("flow")[1:-1], found.row("gradient")[1:-1]).statistic
    assert inner.correlation("flow", "gradient") == pytest.approx(expected, abs=1e-12)
    assert compare(model, TEXT, special=False, query="key").place == 1


def test_of_words_importance_is_the_sum_over_subwords() -> None:
    model = af.wrap(hf("BertForMaskedLM", **POSITIONS)(), wordpiece())
    text = "unbelievable [MASK] is the book"
    pieces, whole = compare(model, text), compare(model, text, words=True)
    n = len(pieces.tokens) - len(whole.tokens)
    assert n > 0 and whole.tokens == ("[CLS]", "unbelievable", "[MASK]", "is", "the", "book", "[SEP]")
    assert pieces.query_token == whole.query_token == "[MASK]" and whole.place == whole.query == 2
    edges = model.trace(text, edges="answer").sources()
    assert edges.query_tokens == ("[MASK]",)  # the token that answers, not the class token
    np.testing.assert_array_equal(pieces.row("answer_inputs"), edges.row())
    for name in ("answer_inputs", "gradient", "blank-out"):
        inside = pieces.row(name)[1 : n + 2]
        np.testing.assert_allclose(whole.row(name)[1], inside.sum(), rtol=1e-12)
        np.testing.assert_allclose(whole.row(name)[2:], pieces.row(name)[n + 2 :], rtol=1e-12)
    np.testing.assert_array_equal(whole.row("flow"), model.trace(text).words().flow("[MASK]", layer=-1).row())
    assert (
        whole.notes
        == (
            "gradient and blank-out of a word are sums over its subwords; attention adds up too, so long words rank high everywhere",
        )
        and pieces.notes == ()
    )
    assert "comparison (words)" in printed(whole) and whole.notes[0] in " ".join(printed(whole).split())


def test_a_decoder_is_asked_at_its_last_token() -> None:
    tokenizer = byte_level()
    model = af.wrap(hf("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=2, vocab_size=len(tokenizer))(), tokenizer)
    held = compare(model, TEXT)
    assert held.place == len(held.tokens) - 1 and held.methods == OF_DECODERS and held.against is None


LONG = "The key to the cabinets is old. Nobody has it, and nobody will. The book is to answer the cabinet. Is it the unbelievable key of the cabinetmaker, or is it a book?"


def long_decoder() -> Any:
    tokenizer = byte_level()
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
    return af.wrap(hf("GPT2LMHeadModel", vocab_size=len(tokenizer), **shape)(), tokenizer)


def test_importance_is_as_much_as_somebody_wants() -> None:
    model = long_decoder()
    full, none, fast = (compare(model, LONG, importance=level) for level in ("full", "none", None))
    assert len(full.tokens) > 64 and full.methods == OF_DECODERS and full.missing == {}
    np.testing.assert_array_equal(full.row("blank-out"), model.blank_out(LONG).row())
    assert none.methods == OF_DECODERS[:-2] and none.missing == {} and none.sentences == ()
    np.testing.assert_array_equal(none.values, full.values[:-2])
    np.testing.assert_allclose(fast.values, full.values, rtol=1e-5, atol=1e-8)  # the model is fast enough for all
    left_out = model.blank_out(LONG, unit="sentence", by="remove", signed=True)
    assert (
        full.sentences == tuple(zip(left_out.tokens, left_out.row().tolist(), strict=True)) and len(full.sentences) == 4
    )
    assert compare(model, LONG, importance=["gradient"]).methods == OF_DECODERS[:-1]
    assert compare(model, TEXT).sentences == ()


def test_what_there_was_no_time_for_is_no_value_anywhere(tmp_path: Path) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is what they are compared with")
    model = long_decoder()
    full, part = compare(model, LONG, importance="full"), compare(model, LONG, importance=1e-6)
    row, n = part.row("blank-out"), len(part.tokens)
    there = np.isfinite(row)
    highest = np.argsort(-part.row("answer_rows"), kind="stable")[:8]
    assert set(np.flatnonzero(there)) == set(highest.tolist())
    np.testing.assert_allclose(row[there], full.row("blank-out")[there], atol=1e-6)
    note = f"Blank-out covers only the 8 highest of {n} by answer_rows: the limit of 1e-06 seconds left no time for the others. "
    assert note + 'importance="full" computes all.' in part.reliability
    assert part.provenance["importance"]["blank-out"]["computed"] == {
        "count": 8, "of": n, "seconds": 1e-6, "first": "answer_rows",
    }  # fmt: skip
    expected = stats.spearmanr(part.row("flow")[there], row[there]).statistic
    assert part.correlation("flow", "blank-out") == pytest.approx(expected, abs=1e-12)
    assert part.correlation("flow", "gradient") == pytest.approx(full.correlation("flow", "gradient"), abs=1e-12)
    part.save(tmp_path / "x.json")
    read = json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read["values"]["blank-out"].count(None) == n - 8 and read["values"]["flow"].count(None) == 0
    part.save(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        cells = [row["blank-out"] for row in csv.DictReader(file)]
    assert cells.count("") == n - 8 and {float(cell) for cell in cells if cell} == set(row[there].tolist())
    shown = printed(part, width=120)
    assert "nan" not in shown and "how much the answer loses without a sentence, of 4" in shown
    assert printed(part, colour=True) and printed(part, encoding="ascii")
    words = compare(model, LONG, importance=1e-6, words=True)
    assert 0 < np.isfinite(words.row("blank-out")).sum() <= 8 and "nan" not in printed(words)
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    at = part.plot().axes[0]
    assert (
        "White: not computed."
        in [text.get_text() for text in at.texts][-2] + [text.get_text() for text in at.texts][-1]
    )


def test_of_is_what_importance_is_of(model: Any) -> None:
    both = compare(model, TEXT, of="logit")
    np.testing.assert_array_equal(both.row("gradient"), model.gradient(TEXT, of="logit").row())
    own = compare(model, TEXT, importance={"gradient": {"of": "probability"}, "blank-out": {}}, of="logit")
    np.testing.assert_array_equal(own.row("gradient"), model.gradient(TEXT, of="probability").row())
    np.testing.assert_array_equal(own.row("blank-out"), np.abs(model.blank_out(TEXT, of="logit").row()))


def test_a_model_that_answers_nothing_has_three_views() -> None:
    model = af.wrap(hf("BertModel", **POSITIONS)(), wordpiece())
    held = compare(model, "the key")
    assert held.methods == ("raw", "rollout", "flow") and held.measure is None and held.correlations.shape == (3, 3)
    assert held.notes == (
        "no answer edges and no gradient and no blank-out: Model('BertModel', BertModel) has no head, so it answers "
        "nothing: expected a classifier or a language model, for example one loaded from a folder whose configuration names its class",
    )
    assert "no gradient and no blank-out" in printed(held)
    assert held.plot().axes
    masked = compare(af.wrap(hf("BertForMaskedLM", **POSITIONS)(), wordpiece()), "the key")
    assert list(masked.missing) == ["answer edges", "gradient", "blank-out"] and masked.query == 0
    assert masked.missing["gradient"].startswith(
        "the text has no [MASK], so the masked language model has nothing to predict"
    )


def test_an_encoder_decoder_has_source_and_target() -> None:
    tokenizer = sentencepiece()
    build = hf("BartForConditionalGeneration", **{**SEQ2SEQ, "vocab_size": len(tokenizer)}, decoder_start_token_id=2)
    model = af.wrap(build(), tokenizer, name="bart")
    held = compare(model, "The key", target="the cabinets is", words=True)
    trace = model.trace("The key", target="the cabinets is")
    assert held.tokens == trace.tokens and held.parts == trace.parts and held.methods == VIEWS
    assert held.query_token == held.tokens[held.place or 0] == "is"
    assert held.sections == (("source", range(3)), ("target", range(3, 8)))
    assert held.notes == (
        (
            "no answer edges and no gradient and no blank-out: Model('bart', BartForConditionalGeneration) reads one "
            "text and writes another, and importance applies only to models that read one text"
        ),
    )
    lines = printed(held).splitlines()
    assert "source" in lines and "target" in lines
    words = [text.get_text() for text in held.plot().axes[0].texts]
    assert "source" in words and "target" in words


def test_an_image_is_shown_as_patches() -> None:
    shape = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = af.wrap(hf("ViTModel", **shape)(), transformers.ViTImageProcessor(size={"height": 32, "width": 32}))
    held = compare(model, np.random.default_rng(0).integers(0, 255, (32, 32, 3)).astype(np.uint8))
    assert held.methods == VIEWS and held.patches == (4, 4) and "has no head, so it answers nothing" in held.notes[0]
    lines = printed(held).splitlines()
    assert lines[1].split() == ["raw", "rollout", "flow"] and lines[6].startswith("lowest")  # side by side
    narrow = printed(held, width=20).splitlines()
    assert narrow.index("flow") == narrow.index("raw        rollout") + 6  # 4 lines of patches and an empty one
    assert any("these are the 5 highest by flow" in line for line in lines)
    assert any(" row " in line and ", column " in line for line in lines)
    with pytest.raises(af.InputError) as caught:
        shaded_lines(held)
    assert str(caught.value) == (
        "shaded_lines of an image of 4 × 4 patches: expected text; use plot(), which draws maps"
    )


def test_json_and_csv_read_back(model: Any, tmp_path: Path) -> None:
    held = compare(model, TEXT, query="key", layer=2)
    held.save(tmp_path / "x.json")
    read = json.loads((tmp_path / "x.json").read_text())
    assert read == held.to_dict()
    np.testing.assert_array_equal([read["values"][name] for name in read["methods"]], held.values)
    assert read["correlations"]["flow"]["blank-out"] == held.correlation("flow", "blank-out")
    assert (read["format"], read["layer"], read["query_token"]) == ("attnflow.Comparison", 2, "key")
    assert read["prediction"]["kind"] == "class" and read["provenance"]["residual"] == 0.5
    assert read["provenance"]["importance"]["gradient"]["reduce"] == "l2"
    held.save(tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["token"] for row in rows] == list(held.tokens) and {row["layer"] for row in rows} == {"3"}
    np.testing.assert_array_equal([[float(row[name]) for row in rows] for name in METHODS], held.values)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.csv", "x.json"]
    flat = made(["a", "b"], values=np.ones((6, 2)), correlations=np.full((6, 6), np.nan))
    assert flat.to_dict()["correlations"]["raw"]["flow"] is None and "none" in printed(flat)
    odd = made(ODD)
    odd.save(tmp_path / "odd.csv")
    with (tmp_path / "odd.csv").open(encoding="utf-8", newline="") as file:
        assert [row["token"] for row in csv.DictReader(file)] == [t.replace("\ud800", "\\ud800") for t in ODD]


def test_a_pdf_brings_its_fonts(tmp_path: Path, found: Comparison) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    found.save(tmp_path / "x.pdf")
    held = (tmp_path / "x.pdf").read_bytes()
    assert held.startswith(b"%PDF") and b"/FontFile2" in held and b"/Type3" not in held
    found.save(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("count", "width"), [(7, 3.25), (40, 3.25), (120, 6.9)])
def test_no_words_touch_in_a_figure(count: int, width: float) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    tokens = [("the", "key", "to", "cabinets", "a", "日本")[i % 6] for i in range(count)]
    figure = made(tokens, provenance={"unit": "word"}).plot()
    canvas = FigureCanvasAgg(figure)
    with sheet.style():  # as saved: hinted letters are wider
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.axes[0].texts]
    page = figure.bbox
    assert width - 1 < figure.get_size_inches()[0] <= width + 1e-6
    assert all(b.x0 >= page.x0 and b.y0 >= page.y0 and b.x1 <= page.x1 and b.y1 <= page.y1 for b in boxes)
    x0, y0, x1, y1 = np.array([b.extents for b in boxes]).T
    across = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    up = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    touch = np.triu((across > 0.5) & (up > 0.5), 1)  # pixels at 200 dpi
    assert not touch.any(), [figure.axes[0].texts[i].get_text() for i in np.argwhere(touch)[0]]


def test_a_figure_has_the_shades_and_the_correlations(found: Comparison) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib")
    at = found.plot().axes[0]
    boxes = at.patches[: found.values.size]
    blues, oranges = matplotlib.colormaps["Blues"], matplotlib.colormaps["Oranges"]
    for row, start in zip(found.values, range(0, found.values.size, 7), strict=True):
        share = (row - row.min()) / (row.max() - row.min()) if row.min() >= 0 else row / np.abs(row).max()
        colours = [box.get_facecolor() for box in boxes[start : start + 7]]
        expected = [(oranges if s < 0 else blues)(0.9 * abs(s)) for s in share]
        np.testing.assert_allclose(colours, expected, atol=1e-9)
        assert (share.min() < 0) == (start == 0)
        assert [box.get_linewidth() > 0 for box in boxes[start : start + 7]] == [True] + [False] * 6
    words = [text.get_text() for text in at.texts]
    for name in METHODS[:-1]:
        assert f"{found.correlation(name, 'blank-out'):.2f}".replace("-", "−") in words
    assert words[0] == "query [CLS], L6 · class 'singular' 0.96"
    assert "Orange values are below 0: they count against 'singular'." in " ".join(words)
    assert "ρ: rank correlation with blank-out." in " ".join(words)
    assert found.plot(width=2).get_size_inches()[0] < found.plot().get_size_inches()[0]


PLAIN = """\
class: 'singular' 0.959, 'plural' 0.041
verb-number · comparison · query [CLS] · L6
               [CLS] the key to the cabinets [EOS]
answer_inputs  ░░░░░ ▓▓▓ ▒▒▒ ██     ↓↓↓↓↓↓↓↓
raw            ▒▒▒▒▒ ░░░ ███        ▒▒▒▒▒▒▒▒ █████
rollout        ▒▒▒▒▒     ▓▓▓ ▒▒     ████████ ░░░░░
flow           █████     ▒▒▒ ██ ░░░ ████████ ▓▓▓▓▓
gradient       ░░░░░     ███ ░░     ▓▓▓▓▓▓▓▓
blank-out                ███ ██
lowest   ░░▒▒▓▓██ highest of each method
values below 0 (↓) count against 'singular'

   token     answer_inputs    raw  rollout   flow  gradient  blank-out
0  [CLS]             0.076  0.153    0.144  1.000     0.051      0.001
1  the               0.272  0.112    0.098  0.720     0.046      0.011
2  key               0.206  0.244    0.185  0.864     0.139      0.201
3  to                0.375  0.031    0.145  0.950     0.062      0.189
4  the               0.071  0.030    0.083  0.799     0.023      0.014
5  cabinets         -0.163  0.147    0.221  1.000     0.103      0.031
6  [EOS]            -0.008  0.284    0.124  0.925     0.035      0.008

rank correlation    raw  rollout   flow  gradient  blank-out
answer_inputs     -0.36     0.36  -0.09      0.57       0.57
raw                         0.36   0.27      0.29      -0.21
rollout                            0.67      0.93       0.54
flow                                         0.43      -0.11
gradient                                                0.64
Flow at L6 is at its upper bound for 5 of 5 tokens (all that leaves the query, 
or all that the first layer takes from the token), so it shows nothing of the 
layers in between. Lower layers show more.
"""


def test_in_a_pipe_shades_are_blocks(found: Comparison) -> None:
    assert printed(found) == PLAIN
    coloured = printed(found, colour=True)
    assert "\x1b[38;2;0;0;0;48;2;255;234;70mkey\x1b[0m" in coloured
    lines = ANSI.sub("", coloured).splitlines()
    assert lines[2:8] == [f"{name:<15}[CLS] the key to the cabinets [EOS]" for name in METHODS]
    assert lines[9] == "values below 0 (underlined) count against 'singular'"
    against = coloured.split("answer_inputs", 1)[1].splitlines()[0]
    assert "\x1b[4;31mcabinets\x1b[0m" in against and "[4;31mto" not in against
    assert lines[10:] == PLAIN.splitlines()[11:]
    bare = printed(found, colour=True, NO_COLOR="1")
    assert "38;2" not in bare and "48;2" not in bare and ANSI.sub("", bare) == PLAIN


def test_it_is_ascii_where_it_must_be(found: Comparison) -> None:
    lines = printed(found, encoding="ascii").splitlines()
    assert lines[1] == "verb-number | comparison | query [CLS] | L6"
    assert lines[2:6] == [
        "               [CLS] the key to the cabinets [EOS]",
        "answer_inputs  ::::: ### +++ @@ ... vvvvvvvv",
        "raw            ===== --- %%%        ======== @@@@@",
        "rollout        ===== ... ### ==     @@@@@@@@ :::::",
    ]
    assert lines[10] == "values below 0 (v) count against 'singular'"
    assert lines[11:] == PLAIN.splitlines()[11:]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [1, 20, 40, 80])
def test_it_keeps_to_its_width(width: int, colour: bool, encoding: str) -> None:
    many = (*METHODS, "integrated-gradients", "shapley")
    long = made([*ODD * 5], many, parts=("source",) * 40 + ("target",) * 45, query_token="x" * 100)
    text = ANSI.sub("", printed(long, colour=colour, width=width, encoding=encoding))
    assert max(map(cell_len, text.splitlines())) <= width
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert ANSI.sub("", printed(render(long, width=width), width=300, encoding=encoding, colour=colour)) == text


def test_the_table_is_cut() -> None:
    def numbers(text: str) -> list[int]:
        return [int(line.split()[0]) for line in text.splitlines() if re.match(r" *\d+  ", line)]

    long = made([f"t{i}" for i in range(300)])
    highest = np.argsort(-long.row("answer_inputs")).tolist()[:20]
    text = printed(long)
    assert numbers(text) == sorted(highest) and "and 100 more" in text.splitlines()
    assert "280 of 300 inputs are not shown; these are the 20 highest by answer_inputs" in text
    assert len(numbers(printed(made([f"t{i}" for i in range(60)])))) == 60


def test_unknown_words_are_told(model: Any) -> None:
    assert "unknown to the model: zyzzyva" in printed(compare(model, "the zyzzyva to the cabinets"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: compare(m, TEXT, query="all"), "query 'all': a comparison has one query; expected its position or token"),
        (lambda m: compare(m, TEXT, layer=None), "layer=None: a comparison has one layer; expected an int, such as -1 for the last"),
        (lambda m: compare(m, TEXT, importance=("beauty",)), "importance 'beauty': expected some of 'blank-out', 'gradient', 'integrated-gradients', 'shapley'"),
        (lambda m: compare(m, TEXT, importance="much"), "importance 'much': expected one of 'none', 'fast', 'full', a number of seconds, or some of 'blank-out', 'gradient', 'integrated-gradients', 'shapley'"),
        (lambda m: compare(m, TEXT, importance=0), "importance 0: expected a number of seconds above 0"),
        (lambda m: compare(m, TEXT).row("shapley"), "'shapley' is not in this comparison: expected one of answer_inputs, raw, rollout, flow, gradient, blank-out"),
        (lambda m: compare(m, TEXT).save("x.doc"), "'x.doc' has the extension '.doc': expected one of .svg, .pdf, .png, .json, .csv"),
        (lambda m: made(["a"] * 1001).plot(), "plot() of 1,001 tokens: expected at most 1,000; save longer texts as .csv or .json"),
        (lambda m: render(made(["a", "b"]), width=0), "width=0: expected a number of columns, or None for the width of the terminal"),
    ],
)  # fmt: skip
def test_mistakes(model: Any, call: Any, message: str) -> None:
    with pytest.raises(af.InputError) as caught:
        call(model)
    assert str(caught.value) == message


def run(*words: str, **more: Any) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(words), **more)


def test_the_command_prints_writes_and_reads(tmp_path: Path, model: Any) -> None:
    told = run(env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert told.exit_code == 0 and told.stdout == PLAIN and told.stderr == ""
    told = run("-", "--json", "--layer", "l2", "--query", "2", "--no-special", input=TEXT)
    data = json.loads(told.stdout)
    assert data["layer"] == 1 and data["query_token"] == "key" and len(data["tokens"]) == 5
    told = run(TEXT, "-o", str(tmp_path / "x.csv"), "--words")
    assert told.stdout == "" and told.stderr == f"wrote {tmp_path / 'x.csv'}\n" and (tmp_path / "x.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer", "L9"], "layer 'L9': expected L1 to L6, or last"),
        (
            ["--importance", "much"],
            "--importance 'much': expected none, fast, full, or a number of seconds for blank-out",
        ),
        (["--target", "the"], "target is for encoder-decoder models, and this model is not one: leave it out"),
    ],
)
def test_the_command_refuses_in_one_sentence(words: list[str], message: str) -> None:
    told = run(TEXT, *words)
    assert isinstance(told.exception, af.InputError) and str(told.exception) == message and told.stdout == ""
