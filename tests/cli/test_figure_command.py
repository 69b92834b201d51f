"""`attnflow figure`: the paper's figures of texts, arrays and saved results, in the width and font of a paper."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow as af
from helpers.small_models import model_folder
from helpers.small_tokenizers import wordpiece

pytest.importorskip("matplotlib", reason="needs matplotlib")
transformers = pytest.importorskip("transformers", reason="needs transformers")

Command = Callable[..., Any]
TEXT = "the key to the cabinets"
WORDS = ["[CLS]", "the", "key", "to", "the", "cabinets", "[EOS]"]


def words_in(path: Path) -> list[str]:
    return re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))


def inches(path: Path) -> float:
    return float(re.search(r'width="([\d.]+)pt"', path.read_text(encoding="utf-8"))[1]) / 72  # type: ignore[index]


def curves(path: Path) -> int:
    """Return the number of drawn edges."""
    return path.read_text(encoding="utf-8").count("stroke-linecap: round")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    weights = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 2, 4))
    np.save(folder / "weights.npy", weights)
    np.savez(folder / "both.npz", weights=weights, tokens=np.array(["a", "b", "c", "d"]))
    np.savez(folder / "two.npz", one=weights, other=weights)
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (folder / "tokens.txt").write_text("one\ntwo\nthree\nfour\n")
    af.token_attention(weights, list("abcd"), "flow", query="all", special=[True, False, False, False]).save(
        folder / "flow.json"
    )
    return folder


@pytest.mark.parametrize("kind", ["graph", "layers", "compare"])
def test_a_text(attnflow: Command, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "fig.svg"
    layers = [] if kind == "compare" else ["--layers", "1-4"]
    called = attnflow("figure", kind, TEXT, *layers, "--width", "3.3", "--font-size", "8", "-o", str(path))
    assert called.out == "" and called.err == f"wrote {path}\n"
    words = words_in(path)
    assert set(WORDS) <= set(words) and inches(path) == pytest.approx(3.3, abs=1e-3)
    assert "font-size: 8px" in path.read_text(encoding="utf-8")
    if kind == "compare":
        assert any(word.startswith("query [CLS], L6") for word in words)
    else:
        assert {"raw attention", "attention rollout", "attention flow", "L4"} <= set(words) and "L5" not in words


@pytest.mark.filterwarnings("default:the font")
def test_the_cover_picture(attnflow: Command, tmp_path: Path) -> None:
    attnflow(
        "figure", "graph", TEXT, "--layers", "1-4", "--width", "3.3", "--font", "serif", "-o", str(tmp_path / "f.pdf")
    )
    content = (tmp_path / "f.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"DejaVuSerif" in content and b"MediaBox [ 0 0 237.6 " in content
    missing = attnflow("figure", "graph", "--font", "No Such Font", "-o", str(tmp_path / "g.pdf"))
    assert "the font 'No Such Font' is not installed: the figure uses 'DejaVu Sans'" in missing.err
    assert (tmp_path / "g.pdf").exists()


def test_without_special_tokens_and_in_words(attnflow: Command, tmp_path: Path) -> None:
    path = tmp_path / "fig.svg"
    for kind in ("graph", "layers", "compare"):
        attnflow("figure", kind, TEXT, "--no-special", "--query", "key", "-o", str(path))
        assert not {"[CLS]", "[EOS]"} & set(words_in(path)) and "cabinets" in words_in(path)
    attnflow("figure", "graph", "the keys to the cabinet", "--words", "-o", str(path))
    assert "cabinet" in words_in(path)


def test_several_texts_have_a_map_each(attnflow: Command, tmp_path: Path) -> None:
    path = tmp_path / "fig.svg"
    attnflow("figure", "layers", TEXT, "the keys", "--methods", "rollout,flow", "-o", str(path))
    words = words_in(path)
    assert {TEXT, "the keys"} <= set(words) and words.count("L1") == 2 and "raw attention" not in words


def test_fewer_edges(attnflow: Command, tmp_path: Path) -> None:
    count = {}
    for name, options in {"all": [], "one": ["--strongest", "1"]}.items():
        attnflow("figure", "graph", TEXT, "--methods", "raw", *options, "-o", str(tmp_path / f"{name}.svg"))
        count[name] = curves(tmp_path / f"{name}.svg")
    assert count["one"] == 6 * 7 < count["all"]


@pytest.mark.parametrize("kind", ["graph", "layers", "compare"])
@pytest.mark.parametrize(
    ("name", "options", "labels"),
    [
        ("weights.npy", [], ["0", "3"]),
        ("weights.npy", ["--tokens", "the old brass key"], ["the", "brass"]),
        ("weights.npy", ["--tokens", "tokens.txt"], ["one", "four"]),
        ("both.npz", [], ["a", "d"]),
        ("flow.json", ["--no-special"], ["b", "d"]),
    ],
)
def test_arrays_and_results(
    attnflow: Command, arrays: Path, tmp_path: Path, kind: str, name: str, options: list[str], labels: list[str]
) -> None:
    path = tmp_path / "fig.svg"
    options = [str(arrays / "tokens.txt") if option == "tokens.txt" else option for option in options]
    attnflow("figure", kind, str(arrays / name), *options, "--query", labels[-1], "--width", "3.3", "-o", str(path))
    words = words_in(path)
    assert set(labels) <= set(words) and inches(path) == pytest.approx(3.3, abs=1e-3)
    if name == "flow.json":
        assert "a" not in words
    if kind == "compare":
        assert "blank-out: there is no model." in " ".join(words)  # what the figure leaves out


def test_arrays_need_no_model(arrays: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; from attnflow.cli import main; main()"
    for kind in ("graph", "layers", "compare"):
        done = subprocess.run(
            [sys.executable, "-c", code, "figure", kind, str(arrays / "both.npz"), "-o", str(tmp_path / "x.png")],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_a_model_without_a_head_says_what_the_figure_leaves_out(attnflow: Command, tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    folder = model_folder(tmp_path / "m", transformers.BertModel(config), wordpiece())
    path = tmp_path / "fig.svg"
    attnflow("figure", "compare", TEXT, "-m", str(folder), "--device", "cpu", "-o", str(path))
    foot = " ".join(words_in(path))
    assert re.search(r"No [\w -]*gradient and no blank-out: .+\.", foot), foot


MISTAKES = [
    (["graph", TEXT, "--methods", "gradient"], "--methods 'gradient': expected some of raw, rollout, flow; attnflow figure "),
    (["layers", TEXT, "--strongest", "2"], "--strongest belongs to attnflow figure graph: leave it out for layers"),
    (["graph", TEXT, "the keys"], "2 texts: attnflow figure graph draws one; quote a text that has spaces"),
    (["graph", TEXT, "--layers", "4-2"], "layers '4-2': expected a range such as 1-4, a list such as 1,3, last or all"),
    (["graph", TEXT, "--layers", "1-9"], "layer '9': expected L1 to L6, a range such as 1-4, last or all"),
    (["compare", TEXT, "--layers", "1-2"], "--layers '1-2': attnflow figure compare draws one layer, such as --layers 3"),
    (["compare", TEXT, "--methods", "raw"], "attnflow figure compare draws all methods of a text: leave --methods out, or use"),
    (["layers", " ".join(["key"] * 60), "--width", "3.3"], "width=3.3: a map of 62 tokens needs at least "),
    (["graph", TEXT, "--tokens", "a b"], "--tokens names the positions of arrays: leave it out for a text"),
    (["graph", "missing.npy"], "'missing.npy' does not exist: expected a file of weights or results, or a text"),
    (["graph", "weights.npy", "--tokens", "a b"], "2 tokens for weights of 4 positions"),
    (["graph", "weights.npy", "-m", "x"], "--model cannot be combined with files: leave it out, or give a text"),
    (["graph", "weights.npy", "a text"], "texts and files together: give only texts, or only files"),
    (["graph", "two.npz"], "has the arrays one, other: expected one array, or one that is called weights"),
    (["graph", "objects.npy"], "expected numbers that numpy.save or numpy.savez wrote, no pickled objects"),
    (["graph", "flow.json", "--tokens", "a"], "saved results have their own, so leave it out"),
    (["graph", "flow.json", "--layers", "7"], "layer '7': expected L1 to L3"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_mistakes(
    attnflow: Command, arrays: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(arrays)
    output = [] if "-o" in words else ["-o", "fig.pdf"]
    said = attnflow("figure", *words, *output, status=2).err
    assert sentence in said and said.count("\n") == 1
    assert not (arrays / "fig.pdf").exists()
