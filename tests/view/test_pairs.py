"""Two pages side by side in one file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import attnflow as af
from attnflow.view.page import Page, of_weights
from attnflow.view.pair import Pair
from helpers.page_cases import attention


def pair(first: str, second: str) -> Pair:
    one, other = (of_weights(attention(2, 1, len(text.split())), text.split(), text=text) for text in (first, second))
    return one.beside(other)


def test_pages_beside_each_other_hold_both_documents_and_their_alignment(tmp_path: Path) -> None:
    both = pair("it was not good", "it was good")
    assert both.aligned() == both.aligned("subwords") == [(0, 0), (1, 1), (2, None), (3, 2)]
    both.save(tmp_path / "pair.html")
    file = (tmp_path / "pair.html").read_text(encoding="utf-8")
    document = json.loads(re.search(r'id="attnflow-document">(.*?)</script>', file).group(1))
    assert document["pages"] == json.loads(json.dumps([both.first.document, both.second.document]))
    assert document["alignments"] == {unit: [[0, 0], [1, 1], [2, -1], [3, 2]] for unit in ("words", "subwords")}
    assert "<title>it was not good · it was good · attnflow</title>" in file
    assert both._repr_html_().startswith("<iframe")
    assert repr(both) == "Pair(Page(2 layers, 4 tokens, 'it was not good'), Page(2 layers, 3 tokens, 'it was good'))"


def test_mistakes_are_said(tmp_path: Path) -> None:
    both = pair("a b", "a c")
    with pytest.raises(af.InputError, match=r"unit 'sentences': expected one of 'words', 'subwords'"):
        both.aligned("sentences")
    with pytest.raises(af.InputError, match=r"has the extension '.pdf': expected .html, for a page"):
        both.save(tmp_path / "pair.pdf")
    picture = Page({**both.first.document, "patches": (2, 1)})
    with pytest.raises(af.InputError, match=r"a page of an image cannot be compared: expected two pages of texts"):
        picture.beside(both.first)


def test_a_model_with_words_stands_beside_one_whose_tokens_are_words() -> None:
    words = of_weights(attention(1, 1, 2), ["the", "cabinets"], text="the cabinets")
    pieces = of_weights(attention(1, 1, 3), ["the", "cabi", "##nets"], text="the cabinets")
    unit = {**pieces.document["units"]["subwords"], "tokens": ["the", "cabinets"], "special": [False] * 2}
    pieces = Page({**pieces.document, "units": {**pieces.document["units"], "words": unit}})
    assert words.beside(pieces).aligned() == [(0, 0), (1, 1)]
    assert words.beside(pieces).aligned("subwords") == [(0, 0), (1, 1), (None, 2)]
