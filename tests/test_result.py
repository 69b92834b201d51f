"""TokenAttention: its values, merging words, exact file round trips, and user mistakes."""

import csv
import io
import json
import math
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from attnflow.result import Score, TokenAttention
from attnflow.result_files import LABELS, VERSION
from attnflow.view.colour import colours

FORMATS = ("json", "npz", "csv", "parquet")
READ = ("json", "npz")
TOKENS = ("[CLS]", "the", "key", "cab", "##inet", "the", "[SEP]")
WORD_IDS = (None, 0, 1, 2, 2, 3, None)
WORDS = ("the", "key", "cabinet", "the")


def result(seed: int = 0, **changes: Any) -> TokenAttention:
    """Return a result of two layers with all positions of a short sentence as queries, unless changed."""
    told: dict[str, Any] = {
        "values": np.random.default_rng(seed).dirichlet(np.ones(7), size=(2, 7)), "method": "raw", "layers": [4, 5],
        "queries": range(7), "query_tokens": TOKENS, "tokens": TOKENS, "word_ids": WORD_IDS, "word_texts": WORDS,
        "special": [1, 0, 0, 0, 0, 0, 1], "text": "the key cabinet the", "provenance": {"model": "toy", "heads": "mean"},
    }  # fmt: skip
    return TokenAttention(**{**told, **changes})


def one(*values: float, **changes: Any) -> TokenAttention:
    """Return a result of one layer and one query."""
    n = len(values)
    told: dict[str, Any] = {
        "values": [[values]], "method": "flow", "layers": [5], "queries": [0], "query_tokens": ["[CLS]"],
        "tokens": [f"t{i}" for i in range(n)], "word_ids": [None] * n, "word_texts": [], "special": [False] * n,
        "text": "",
    }  # fmt: skip
    return TokenAttention(**{**told, **changes})


def image(rows: int = 2, columns: int = 3, **changes: Any) -> TokenAttention:
    """Return a result for a class token and patches."""
    n = rows * columns
    return one(9, *range(n), special=[True] + [False] * n, patches=(rows, columns), **changes)


HOSTILE = ("[bold]x[/bold]", "a\nb", "\r\n", "\0", "\x1b[31m", "\ud800", "é\udc80", '"', ",", "</script>", "=1+1", "", " ",
           "日本語", "\u202e", "\ufeff", "😀", "'; drop", "\\ud800", "\t")  # fmt: skip
N = len(HOSTILE)
hostile = one(
    *np.random.default_rng(1).random(N), query_tokens=["\ud800\n"], tokens=HOSTILE, word_ids=range(N), word_texts=HOSTILE,
    text="".join(HOSTILE), method="\0[red]", provenance={"model": "\udfff", "nested": {"a": [1, None, 0.1]}},
)  # fmt: skip
HELD = {
    "float64": result(),
    "float32": result(values=np.random.default_rng(2).random((2, 7, 7), dtype=np.float32)),
    "hostile tokens": hostile,
    "parts": result(parts=["source"] * 3 + ["target"] * 4),
    "an image": image(),
    "numbers that are hard to print": one(0.1 + 0.2, 5e-324, -0.0, 1.7976931348623157e308, math.pi, 1 / 3, -1e-7),
    "layers and queries in any order": result(layers=[5, 0], queries=[3, 1, 0, 6, 5, 4, 2]),
    "a part of the queries": result(
        values=np.eye(7)[None, [6, 2]], layers=[11], queries=[6, 2], query_tokens=["x", "y"]
    ),
}


def same(a: TokenAttention, b: TokenAttention) -> bool:
    labels = all(
        getattr(a, name) == getattr(b, name) and type(getattr(a, name)) is type(getattr(b, name)) for name in LABELS
    )
    return labels and a.values.dtype == b.values.dtype and a.values.tobytes() == b.values.tobytes()


def path_of(folder: Path, extension: str) -> Path:
    if extension == "parquet":
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow, an optional dependency")
    return folder / f"saved.{extension}"


@pytest.mark.parametrize("extension", READ)
@pytest.mark.parametrize("case", HELD)
def test_a_file_gives_back_every_bit(case: str, extension: str, tmp_path: Path) -> None:
    path = path_of(tmp_path, extension)
    HELD[case].save(path)
    back = TokenAttention.load(path)
    assert same(HELD[case], back)
    assert back.source is None and back.recipe == {} and not back.values.flags.writeable
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_json_is_what_to_dict_says(tmp_path: Path) -> None:
    hostile.save(tmp_path / "a.JSON")
    written = (tmp_path / "a.JSON").read_text(encoding="ascii")
    assert json.loads(written) == hostile.to_dict()
    assert hostile.to_dict()["version"] == VERSION


def test_pandas_has_the_table_of_csv_and_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="to_pandas needs pandas, an optional dependency")
    whole = result(parts=["a"] * 7, layers=[5, 0])
    table = whole.to_pandas()
    columns = ["layer", "query", "query_token", "input", "token", "word", "special", "part", "value"]
    assert list(table.columns) == columns and len(table) == 2 * 7 * 7
    assert np.array_equal(table["value"], whole.values.ravel()) and table["value"].dtype == np.float64
    assert table.iloc[7 + 3, :8].tolist() == [6, 1, "the", 3, "cab", 2, False, "a"]
    assert table["word"].isna().sum() == 2 * 7 * 2 and table["layer"].unique().tolist() == [6, 1]
    row = table[(table["layer"] == 1) & (table["query_token"] == "key")]["value"]
    assert np.array_equal(row, whole.row("key", layer=0))
    whole.save(tmp_path / "a.csv")
    pandas.testing.assert_frame_equal(table, pandas.read_csv(tmp_path / "a.csv")[columns], check_dtype=False)
    assert hostile.to_pandas()["token"].tolist()[3:7] == ["\\x00", "\x1b[31m", "\\ud800", "é\\udc80"]


def test_to_pandas_without_pandas_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(af.InputError) as caught:
        result().to_pandas()
    assert str(caught.value) == "to_pandas() needs pandas, which is not installed: pip install pandas"


def test_csv_is_a_table_for_other_programs(tmp_path: Path) -> None:
    result(parts=["a"] * 7).save(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = ["layer", "query", "query_token", "input", "token", "word", "special", "part", "value"]
    assert list(rows[0]) == columns and len(rows) == 2 * 7 * 7
    assert [rows[7 + 3][name] for name in columns[:8]] == ["5", "1", "the", "3", "cab", "2", "false", "a"]
    assert [rows[0][name] for name in columns[:8]] == ["5", "0", "[CLS]", "0", "[CLS]", "", "true", "a"]
    assert float(rows[-1]["value"]) == result().values[-1, -1, -1]


def test_csv_and_parquet_of_hostile_tokens_are_utf8(tmp_path: Path) -> None:
    hostile.save(tmp_path / "a.csv")
    text = (tmp_path / "a.csv").read_bytes().decode("utf-8")
    assert "\\ud800" in text and "\\x00" in text and "\0" not in text
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet needs pyarrow, an optional dependency")
    hostile.save(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["layer", "query", "query_token", "input", "token", "word", "special", "part", "value"]
    assert table["token"].to_pylist()[3:7] == ["\\x00", "\x1b[31m", "\\ud800", "é\\udc80"]


def test_two_halves_of_a_character_become_one_as_in_any_file() -> None:
    assert one(1, tokens=["\ud83d\ude00"]).tokens == ("😀",)


@pytest.mark.parametrize("extension", FORMATS)
def test_a_save_that_fails_leaves_the_old_file_whole(
    extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(tmp_path, extension)
    result().save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(af.InputError) as caught:
        result(seed=1).save(path)
    assert str(caught.value) == f"cannot write {str(path)!r}: No space left on device"
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("extension", READ)
def test_a_damaged_file_is_one_sentence(extension: str, tmp_path: Path) -> None:
    path = path_of(tmp_path, extension)
    result().save(path)
    whole = path.read_bytes()
    np.savez(tmp_path / "other.npz", values=np.ones(3))
    np.save(tmp_path / "array.npy", np.ones(3))
    others = [(tmp_path / name).read_bytes() for name in ("other.npz", "array.npy")]
    cut = [whole[: len(whole) * part // 8] for part in range(8)] + [whole[:-5]]
    ours = b'{"format": "attnflow.TokenAttention", "version": 2, "dtype": "float64"}'
    other = [b"", b"\xff\xfe\x00", b"[]", b"{}", b"null", b"1", b"a,b\n1,2\n", b"[" * 100_000, ours]
    for content in [*cut, *others, *other]:
        path.write_bytes(content)
        with pytest.raises(af.InputError) as caught:
            TokenAttention.load(path)
        assert (
            str(caught.value) == f"{str(path)!r} is damaged or not a result: expected a complete file written by save()"
        )


class Touch:
    """Unpickling this object creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("forged", ["values", "meta"])
def test_a_forged_size_takes_no_memory(forged: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    result().save(path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in ("values", "meta")}
    kind = "<f8" if forged == "values" else "<U1"
    header = str({"descr": kind, "fortran_order": False, "shape": (1 << 20, 1 << 10, 1 << 10)}).ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            data = content.getvalue()
            if name == forged:
                data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data[-64:]
            archive.writestr(f"{name}.npy", data)
    with pytest.raises(af.InputError) as caught:
        TokenAttention.load(path)
    size = (8 if forged == "values" else 4) << 40
    assert str(caught.value) == (
        f"{str(path)!r} is damaged or forged: it declares {size:,} bytes of {forged}, and its {path.stat().st_size:,} bytes "
        "cannot hold them"
    )


def test_no_file_runs_code(tmp_path: Path) -> None:
    meta = json.dumps({name: value for name, value in result().to_dict().items() if name != "values"})
    np.savez(tmp_path / "a.npz", values=np.array([Touch(tmp_path / "touched")]), meta=np.array(meta), allow_pickle=True)
    with pytest.raises(af.InputError, match="is damaged or not a result"):
        TokenAttention.load(tmp_path / "a.npz")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("tokens", 5), ("tokens", ["a"]), ("layers", ["x"]), ("values", [[["x"]]]), ("values", [[[math.nan] * 7] * 7] * 2),
     ("dtype", "object"), ("dtype", []), ("format", "other"), ("patches", 3), ("parts", 3),
     ("provenance", 3), ("special", [2] * 7), ("word_ids", [9] * 7), ("text", None), ("queries", [0, 0])],
)  # fmt: skip
def test_a_file_with_a_wrong_field_is_one_sentence(field: str, wrong: object, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**result().to_dict(), field: wrong}))
    with pytest.raises(af.InputError, match="is damaged or not a result: expected a complete file written by save"):
        TokenAttention.load(path)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
@pytest.mark.parametrize("extension", READ)
def test_a_file_of_another_version_is_one_sentence(
    extension: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(tmp_path, extension)
    with monkeypatch.context() as later:
        later.setattr("attnflow.result_files.VERSION", version)
        result().save(path)
    with pytest.raises(af.InputError) as caught:
        TokenAttention.load(path)
    reads = f"has format version {version}, and attnflow {af.__version__} reads version {VERSION}: save it again"
    assert str(caught.value) == f"{str(path)!r} {reads} with this attnflow"


def test_parquet_without_pyarrow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(af.InputError) as caught:
        result().save(tmp_path / "a.parquet")
    assert str(caught.value) == (".parquet needs pyarrow: pip install 'attnflow[corpus]'")
    assert not list(tmp_path.iterdir())


def test_rows_by_position_token_and_layer() -> None:
    r = result(queries=[3, 1, 0, 6, 5, 4, 2])
    for query, layer, where in [(3, 4, (0, 0)), (-1, -1, (1, 6)), ("[SEP]", 5, (1, 6)), ("key", -2, (0, 2)),
                                (np.int64(0), np.int32(5), (1, 2)), (2, -1, (1, 6))]:  # fmt: skip
        assert r.where(query, layer) == where
        assert (r.row(query, layer) == r.values[where]).all()
    assert one(1, 2).row().tolist() == [1, 2]


def test_top_is_descending_and_stable() -> None:
    r = one(0.2, 0.5, 0.2, 0.5, 0.1)
    assert r.top(3) == [Score("t1", 1, 0.5), Score("t3", 3, 0.5), Score("t0", 0, 0.2)]
    assert [score.position for score in r.top(99)] == [1, 3, 0, 2, 4]
    assert len(result().top(query="key", layer=4)) == 5
    assert [score.position for score in one(*[0.1, 0.2] * 50).top(50)] == list(range(1, 100, 2))


def test_nobody_can_write_to_it() -> None:
    given = np.ones((1, 1, 2))
    r = one(0, 0, values=given)
    given[:] = 7
    assert r.values.tolist() == [[[1, 1]]]
    with pytest.raises(ValueError, match="read-only"):
        r.row()[0] = 2
    view = given[:, :, :]
    view.flags.writeable = False
    kept = one(0, 0, values=view)
    given[:] = 8
    assert kept.values.tolist() == [[[7, 7]]]
    assert replace(r, text="x").values is r.values


def test_sequences_become_tuples_and_tensors_arrays() -> None:
    torch = pytest.importorskip("torch", reason="tensors need torch, an optional dependency")
    r = one(0, 0, values=torch.ones(1, 1, 2, requires_grad=True), tokens=np.array(["a", "b"]), special=np.array([0, 1]))
    assert isinstance(r.values, np.ndarray) and r.values.dtype == np.float32
    assert r.tokens == ("a", "b") and r.special == (False, True) and r.layers == (5,) and r.word_ids == (None, None)


def test_without_special_and_normalized() -> None:
    r = result()
    bare = r.without_special()
    assert bare.tokens == TOKENS[1:-1] and bare.queries == r.queries and bare.word_ids == WORD_IDS[1:-1]
    assert (bare.values == r.values[:, :, 1:-1]).all() and not any(bare.special)
    assert bare.provenance["steps"] == ["without_special"] and "steps" not in r.provenance
    shares = bare.normalized()
    assert np.allclose(shares.values.sum(-1), 1)
    assert shares.provenance["steps"] == ["without_special", "normalized"]
    assert one(0, 0).normalized().row().tolist() == [0, 0]
    assert one(0, 0, values=np.ones((1, 1, 2), np.float32)).normalized().values.dtype == np.float32
    assert image().without_special().on_patches().shape == (1, 1, 2, 3)
    assert result(parts=list("abcdefg")).without_special().parts == tuple("bcdef")


def test_words_of_raw_attention_without_a_trace() -> None:
    r = result()
    merged = r.words()
    groups = [[0], [1], [2], [3, 4], [5], [6]]
    assert np.allclose(merged.values, [af.merge(layer[None], groups)[0] for layer in r.values])
    assert merged.tokens == merged.query_tokens == ("[CLS]", "the", "key", "cabinet", "the", "[SEP]")
    assert merged.word_ids == (None, 0, 1, 2, 3, None) and merged.special == (True, *[False] * 4, True)
    assert merged.queries == (0, 1, 2, 3, 4, 5) and merged.words() is merged
    some = result(values=r.values[:, [4, 3, 0]], queries=[4, 3, 0], query_tokens=["##inet", "cab", "[CLS]"]).words()
    assert some.queries == (3, 0) and np.allclose(some.values, merged.values[:, [3, 0]])


def test_words_of_single_tokens_need_no_trace() -> None:
    r = one(0.3, 0.7, tokens=["[CLS]", "Key"], word_ids=[None, 0], word_texts=["Key"], method="flow")
    assert r.words().values.tolist() == r.values.tolist()


def test_words_keep_the_steps_before_them() -> None:
    pytest.importorskip("torch", reason="a trace needs torch")
    from helpers.small_models import bert

    trace = bert("BertForSequenceClassification").trace("the unbelievable key")
    tokens, words = trace.flow(query=[2, 0], layer=-1), trace.words().flow(query=[2, 0], layer=-1)
    for step in (TokenAttention.without_special, TokenAttention.normalized):
        np.testing.assert_allclose(step(tokens).words().values, step(words).values)
    both, expected = tokens.normalized().without_special().words(), words.normalized().without_special()
    np.testing.assert_allclose(both.values, expected.values)
    assert both.provenance["unit"] == "word" and both.words() is both


def test_on_patches_and_overlay() -> None:
    r = image()
    assert r.on_patches().tolist() == [[[[0, 1, 2], [3, 4, 5]]]]
    ramp = colours(np.array([0.0, 1.0])).round().astype(np.uint8)
    drawn = r.overlay(np.zeros((20, 30)), alpha=1)
    assert drawn.shape == (20, 30, 3) and drawn.dtype == np.uint8
    assert (drawn[0, 0] == ramp[0]).all() and (drawn[-1, -1] == ramp[1]).all()
    photo = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    assert (r.overlay(photo, alpha=0) == photo).all()
    assert (r.overlay(photo / 255, alpha=0) == photo).all()
    assert (r.overlay(photo[:, :, 0], alpha=0) == photo[:, :, :1]).all()
    assert (one(0, 0, patches=(1, 2)).overlay(photo, alpha=1) == ramp[0]).all()


def test_overlay_of_a_pil_image_with_a_palette() -> None:
    pil = pytest.importorskip("PIL.Image", reason="PIL images need pillow, an optional dependency")
    red = pil.new("RGB", (4, 4), (255, 0, 0))
    assert (image().overlay(red.convert("P"), alpha=0) == np.asarray(red)).all()


def test_lightness_of_the_ramp_grows_in_even_steps() -> None:
    linear = (colours(np.linspace(0, 1, 19)) / 255) ** 2.2
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    steps = np.diff(lightness)
    assert steps.min() > 0.5 * steps.mean() and steps.max() < 1.5 * steps.mean()


@pytest.mark.parametrize(
    ("r", "shown"),
    [
        (result(), "TokenAttention(raw, 2 layers × 7 queries × 7 inputs, 'the key cabinet the')"),
        (one(1, text="a" * 41), f"TokenAttention(flow, 1 layer × 1 query × 1 input, '{'a' * 39}…')"),
        (one(1, text="a\n\x1b"), "TokenAttention(flow, 1 layer × 1 query × 1 input, 'a\\n\\x1b')"),
    ],
)
def test_it_prints_as_one_line(r: TokenAttention, shown: str) -> None:
    assert repr(r) == str(r) == shown


NO_TRACE = ' result has lost the graph it was computed from (results that are read from a file, are of one head or were traced with memory="linear" have none): subwords must be merged before rollout and flow are computed, so trace with memory="graph" and call .words() before .save()'
QUERIES = "0 '[CLS]', 1 'the', 2 'key', 3 'cab', 4 '##inet', 5 'the', 6 '[SEP]'"

CASES: dict[str, tuple[Callable[[], object], str]] = {
    "two axes": (lambda: one(1, values=[[1.0]]), "values have shape (1, 1): expected [layer, query, input], each at least 1"),
    "an empty axis": (lambda: one(1, values=np.ones((1, 0, 2))), "values have shape (1, 0, 2): expected [layer, query, input], each at least 1"),
    "NaN": (lambda: one(1, math.nan), "values are nan at [0, 0, 1]: expected finite numbers"),
    "too few tokens": (lambda: one(1, 2, tokens=["a"]), "tokens has 1 entries, but values has 2 inputs: expected one for each"),
    "one text for all tokens": (lambda: one(1, 2, tokens="ab"), "tokens='ab': expected a sequence of texts"),
    "bytes for a token": (lambda: one(1, tokens=[b"a"]), "tokens[0] is a bytes: expected a str"),
    "a layer twice": (lambda: result(layers=[5, 5]), "layers=5, 5: expected ints of at least 0, each once"),
    "a word that does not exist": (lambda: one(1, word_ids=[2], word_texts=["a"]), "word_ids has 2, but there are 1 word_texts: expected None, or 0 to 0"),
    "flags that are no bools": (lambda: one(1, special=["no"]), "special has entries other than True and False: expected one bool for each input"),
    "more patches than the inputs": (lambda: one(1, 2, patches=(2, 2)), "patches=(2, 2): expected (rows, columns) of at most 2 patches, the number of inputs"),
    "provenance that is no dict": (lambda: one(1, provenance=[1]), "provenance is a list: expected a dict that JSON can hold"),
    "provenance that is no JSON": (lambda: one(1, provenance={"a": {1, 2}}), "provenance cannot be written as JSON (Object of type set is not JSON serializable): expected plain values, lists and dicts"),
    "no query named of several": (lambda: result().row(), f"this result has 7 queries: give one, by position or token, of {QUERIES}"),
    "a token that is no query": (lambda: result().row("keys"), f"query 'keys' is not in this result: expected a position or a token of {QUERIES}, or -7 to -1"),
    "a token twice": (lambda: result().row("the"), "query 'the' is at 2 positions: give one of them as an int, 1, 5"),
    "a layer that is not there": (lambda: result().row(0, 0), "layer 0 is not in this result: expected one of 4 (L5), 5 (L6), or -2 to -1"),
    "none of the highest": (lambda: one(1).top(0), "k=0: expected an int of at least 1, the number of inputs wanted"),
    "words of flow from a file": (lambda: result(method="flow").words(), f"this flow{NO_TRACE}"),
    "words of half a word": (lambda: result(values=result().values[:, [3]], queries=[3], query_tokens=["cab"]).words(), "the word 'cabinet' is at positions [3, 4], and only [3] are queries of this result: expected all, because the row of a word is the mean over its tokens"),
    "words of an image": (lambda: image().words(), "words() of an image of 2 × 3 patches: expected text; use on_patches()"),
    "only special tokens": (lambda: one(1, 2, special=[True, True]).without_special(), "all 2 inputs are special tokens: expected at least one that is not"),
    "shares of both signs": (lambda: one(1, -1, method="gradient").normalized(), "normalized() of gradient, which has negative values: expected values of at least 0, because shares of a sum with both signs mean nothing"),
    "patches of text": (lambda: result().on_patches(), "this result has no patches: expected the result of an image; for text use row() and top()"),
    "channels first": (lambda: image().overlay(np.ones((3, 8, 8))), "the image has shape (3, 8, 8): expected [height, width] or [height, width, 3], or a PIL image"),
    "an image beyond one": (lambda: image().overlay(np.full((2, 2), 7.5)), "the image contains float64 from 7.5 to 7.5: expected uint8, or floats from 0 to 1"),
    "too much of the map": (lambda: image().overlay(np.ones((2, 2)), alpha=2), "alpha=2: expected a number from 0 (image only) to 1 (map only)"),
    "an unknown extension": (lambda: one(1).save("a.txt"), "'a.txt' has the extension '.txt': expected one of .json, .npz, .csv, .parquet, .svg, .pdf, .png, .html"),
    "no extension": (lambda: TokenAttention.load("a"), "'a' has the extension '': expected one of .json, .npz"),
    "a folder that does not exist": (lambda: one(1).save("nowhere/at/all.json"), "cannot write 'nowhere/at/all.json': No such file or directory"),
    "a file that does not exist": (lambda: TokenAttention.load("nowhere.npz"), "'nowhere.npz' does not exist: expected a file written by save()"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_sentence(case: str) -> None:
    call, sentence = CASES[case]
    with pytest.raises(af.InputError) as caught:
        call()
    assert str(caught.value) == sentence


def test_a_folder_for_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(af.InputError, match=r"cannot read '.*a.json': Is a directory"):
        TokenAttention.load(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("")
    with pytest.raises(af.InputError, match=r"cannot write '.*b.json/c.csv': Not a directory"):
        one(1).save(tmp_path / "b.json" / "c.csv")


def test_nan_in_provenance_is_one_sentence() -> None:
    with pytest.raises(
        af.InputError, match=r"^provenance cannot be written as JSON \(Out of range float .*\): expected plain"
    ):
        one(1, provenance={"a": math.nan})


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "file.json")
    one(1).save(link)
    assert link.is_symlink() and (tmp_path / "real" / "file.json").is_file()
    full = tmp_path / "full.json"
    full.symlink_to("/dev/full")
    with pytest.raises(af.InputError, match="No space left on device"):
        one(1).save(full)
    assert full.is_symlink() and Path("/dev/full").is_char_device()
