"""Words, sentences and paragraphs as a reader sees them, and properties of any text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.texts.units import Range, assign, paragraphs, sentences, words

SENTENCES = {
    "titles and initials": ["Mr. and Mrs. Dr. J. R. R. Tolkien met Prof. K. Lee. ", "They spoke."],
    "e.g. and i.e.": ["Use a tool, e.g. a saw, i.e. something sharp. ", "Or, e.g., Ada's."],
    "decimals and money": ["Pi is 3.14 and costs $2.50. ", "Version 2.0.1 is out."],
    "addresses": ["Visit www.example.com/a.b?c=d now. ", "It works."],
    "a country": ["The U.S. Army is in the U.S. ", "The rest is at home."],
    "etc. in the middle": ["Pens, ink etc. Smith bought. ", "He paid."],
    "etc. at the end": ["He bought pens etc. ", "Then he left."],
    "numbers of things": ["See No. 5 and Fig. 3 on p. 7. ", "No. ", "Never."],
    "months": ["On Jan. 5 it rained. ", "In Feb. 2020 it snowed."],
    "a year at the end": ["It was built in 1887. ", "In 1912 it burned."],
    "closing quotes": ['"Stop." ', "“Why?” ", "(It was late.) ", "She went."],
    "a question inside a sentence": ['"Why?" he asked. ', "“No!” she said."],
    "opening brackets": ["He left. ", "(Nobody saw.) ", "[Really.] ", "“So?”"],
    "footnotes": ["It is known.[1] ", "Others differ.[2][3] ", "Nobody cares."],
    "ellipses": ["Well... maybe. ", "And then... ", "Nothing… ", "But . . . yes."],
    "many marks": ["What?! ", "No!!! ", "Yes."],
    "headings and items": [
        "# Title\n",
        "Some words\n",
        "- one\n",
        "- two. ",
        "Three\n",
        "* four\n",
        "1. Five\n",
        "2) Six",
    ],
    "lines of a form": ["Name: Agnes Holm\n", "Role: director\n", "milk\n", "eggs"],
    "lines that were full": [
        "The institute was founded in the last year of the\nGreat War, and its first director was a chemist from\nthe north. ",
        "She left.",
    ],
    "lines of a program": [
        "def measure(attention, queries=None, layers=None):\n",
        "    if queries is None:\n",
        "        raise ValueError\n",
        "    return attention",
    ],
    "streets and feet": ["It is 5 ft. ", "The shop in Main St. ", "It sells tab. 3 and ch. 4 of the book."],
    "a line broken at a comma": ["The director,\nwho came from the north of the country, left. ", "So did I."],
    "an item over two lines": [
        "- an item that is so long that it goes on to the\n  next line, where it ends\n",
        "- another one",
    ],
    "a blank line": ["No stop here\n\n", "but a new one\r\n\r\n", "And a third\n"],
    "Chinese": ["他来了。", "真的吗？", "是的！", "“好。”", "他说。"],
    "Japanese": ["「そうだ。」と言った。", "とても良い！？", "はい。"],
    "Arabic": ["هل هذا صحيح؟ ", "نعم. ", "شكرا"],
    "Hebrew": ["שלום עולם. ", "מה שלומך? ", "טוב!"],
    "Hindi": ["यह एक है। ", "वह दो है।", "बस॥"],
    "Urdu": ["یہ ہے۔ ", "وہ ہے۔"],
    "emoji": ["So good 🙂! ", "🙂 Yes. ", "👨‍👩‍👧 too."],
    "white space first": ["\n  He left. ", "She stayed."],
    "nothing": [],
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences(name: str) -> None:
    expected = SENTENCES[name]
    text = "".join(expected)
    assert [text[a:b] for a, b in sentences(text)] == expected


def test_paragraphs() -> None:
    expected = ["\nOne line\nand another\n \t\n\n", "Two.\r\n\r\n", "Three\n"]
    text = "".join(expected)
    assert [text[a:b] for a, b in paragraphs(text)] == expected
    assert paragraphs("") == paragraphs(" \n\n ") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't, well-known!!", ["Don't", ",", "well-known", "!!"]),
        ("3.14 (a_b)", ["3", ".", "14", "(", "a_b", ")"]),
        ("日本 and สวัสดี", ["日", "本", "and", "ส", "วั", "ส", "ดี"]),
        ("e\u0301te\u0301 naïve", ["e\u0301te\u0301", "naïve"]),
        ("हिन्दी שָׁלוֹם", ["हिन्दी", "שָׁלוֹם"]),
        ("👨‍👩‍👧 👍🏽👍🏽 ❤️!", ["👨‍👩‍👧", "👍🏽👍🏽", "❤️", "!"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert [text[a:b] for a, b in words(text)] == expected


TEXTS = st.one_of(
    st.text(max_size=80),
    st.text("ab AB.!?\"') \n\t1-#。🙂\u0301\u200d日ש", max_size=80),
    st.lists(
        st.sampled_from(
            ["Mr. ", "U.S. ", "e.g. ", "The ", "end. ", "\n", "\n\n", "- ", "1. ", "“So?” ", "… ", "3.5 ", "x"]
        ),
        max_size=20,
    ).map("".join),
)


@pytest.mark.long
@settings(max_examples=300, deadline=None, derandomize=True)
@given(TEXTS)
def test_ranges_hold_every_character(text: str) -> None:
    for split in (sentences, paragraphs):
        ranges = split(text)
        if text.strip():
            assert ranges[0][0] == 0 and ranges[-1][1] == len(text)
            assert all(before[1] == after[0] for before, after in pairwise(ranges))
            assert all(text[a:b].strip() for a, b in ranges)
        else:
            assert ranges == []
    ends = {end for _, end in sentences(text)}
    assert {end for _, end in paragraphs(text)} <= ends
    ranges = words(text)
    assert all(a < b for a, b in ranges) and all(before[1] <= after[0] for before, after in pairwise(ranges))
    inside = {i for a, b in ranges for i in range(a, b)}
    assert {i for i, c in enumerate(text) if not c.isspace()} <= inside
    assert not any(text[i].isspace() for i in inside)


def slow_assign(offsets: list[Range], ranges: list[Range]) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in ranges]
    for token, (start, stop) in enumerate(offsets):
        overlaps = [len(set(range(start, stop)) & set(range(a, b))) for a, b in ranges]
        if any(overlaps):
            groups[overlaps.index(max(overlaps))].append(token)
    return groups


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6))), st.lists(st.integers(0, 30), unique=True))
def test_tokens_go_to_the_range_they_overlap_most(tokens: list[tuple[int, int]], cuts: list[int]) -> None:
    offsets = [(start, start + size) for start, size in tokens]
    for ranges in (list(pairwise(sorted(cuts))), list(pairwise(sorted(cuts)))[::2]):  # touching, and with gaps
        groups = assign(offsets, ranges)
        assert groups == slow_assign(offsets, ranges)
        members = [token for group in groups for token in group]
        assert len(members) == len(set(members))
