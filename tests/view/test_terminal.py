"""The terminal view: readable at 80 columns with and without colour, and no token can control the terminal."""

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import attnflow as af
from attnflow.result import TokenAttention
from attnflow.view.terminal import render

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def result(values: Any, tokens: Any = None, **changes: Any) -> TokenAttention:
    """Return a result with one layer and one query."""
    n = len(values)
    told: dict[str, Any] = {
        "values": [[values]], "method": "rollout", "layers": [5], "queries": [0], "query_tokens": ["[CLS]"],
        "tokens": tokens or [f"t{i}" for i in range(n)], "word_ids": [None] * n, "word_texts": [], "special": [False] * n,
        "text": "", "provenance": {"model": "toy/model"},
    }  # fmt: skip
    return TokenAttention(**{**told, **changes})


def printed(shown: Any, *, colour: bool = False, width: int = 80, encoding: str = "utf-8", **environment: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        _environ=environment,
    )
    console.print(shown)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


PLAIN = """\
toy/model · rollout · query [CLS] · L6
[CLS] the key cabinets [SEP]
0  [CLS]     0.100  ████████
1  the       0.000
2  key       0.250  ████████████████████
3  cabinets  0.500  ████████████████████████████████████████
4  [SEP]     0.150  ████████████
"""
SENTENCE = result([0.1, 0, 0.25, 0.5, 0.15], ["[CLS]", "the", "key", "cabinets", "[SEP]"])


def test_reliability_stands_below_the_row_that_it_is_about() -> None:
    how = {"residual": 0.3, "reliability": ["98 % of this is on \x1b[1m, a sink"]}
    noted = replace(result([0.9, 0.1], provenance=how), values=[[[0.5, 0.5]], [[0.9, 0.1]]], layers=[4, 5])
    lines = printed(render(noted)).splitlines()
    assert lines[0] == "rollout · query [CLS] · L6"
    assert lines[-1] == "98 % of this is on \\x1b[1m, a sink" and lines[-2].startswith("1  t1")
    assert "98 %" not in printed(render(noted, layer=4))


def test_in_a_pipe_it_is_plain_text() -> None:
    assert printed(render(SENTENCE)) == printed(SENTENCE) == PLAIN


def test_show_writes_into_a_file_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    stream = io.StringIO()
    SENTENCE.show(file=stream)
    assert stream.getvalue() == PLAIN


def test_colour_adds_only_colour_and_a_legend() -> None:
    text = printed(SENTENCE, colour=True)
    lines = ANSI.sub("", text).splitlines()
    assert lines[2] == "0.000" + " " * 22 + "0.500"
    assert lines[:2] + lines[3:] == PLAIN.splitlines()
    assert "\x1b[38;2;0;0;0;48;2;255;234;70mcabinets\x1b[0m" in text
    assert "\x1b[38;2;255;255;255;48;2;0;32;77mthe\x1b[0m" in text
    assert re.findall(r"\x1b\[1m(\d)", text) == ["2", "3", "4"]


def test_no_color_is_obeyed() -> None:
    text = printed(SENTENCE, colour=True, NO_COLOR="1")
    assert "38;2" not in text and "48;2" not in text
    assert ANSI.sub("", text) == PLAIN


def test_letters_can_be_read_on_every_shade() -> None:
    def luminance(rgb: tuple[int, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    text = printed(result(np.linspace(0, 1, 50).tolist()), colour=True)
    pairs = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m", text)
    assert len(pairs) >= 50
    for pair in pairs:
        front, back = luminance(tuple(map(int, pair[:3]))), luminance(tuple(map(int, pair[3:])))
        assert (max(front, back) + 0.05) / (min(front, back) + 0.05) >= 4.5


HOSTILE = ["[bold]x[/bold]", "[/]", "[link=file:///]y", ":smile:", "\x1b[31mred", "\x07\b\r\n\t", "\ud800", "\u202eabc",
           "", "  ", "\x9b1m", "</script>", "日本語", "x" * 200]  # fmt: skip


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_token_acts_on_the_terminal(encoding: str, colour: bool) -> None:
    names = {"query_tokens": ["[red]\x1b[0m"], "method": "[i]", "provenance": {"model": "[b]\0"}}
    hostile = result(range(len(HOSTILE)), HOSTILE, parts=["[u]"] * len(HOSTILE), **names)
    text = ANSI.sub("", printed(hostile, colour=colour, encoding=encoding))
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    for shown in ("[b]\\x00", "[i]", "query [red]\\x1b[0m", "[bold]x[/bold]", "[/]", "[link=file:///]y", ":smile:", "[u]",
                  "\\x1b[31mred", "\\x07\\x08\\r\\n\\t", "\\ud800", "\\u202eabc", "''", "'  '", "\\x9b1m", "</script>",
                  "日本語" if encoding == "utf-8" else "\\u65e5\\u672c\\u8a9e"):  # fmt: skip
        assert shown in text
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_bars_of_other_encodings_are_ascii() -> None:
    text = printed(SENTENCE, encoding="ascii")
    assert text.splitlines()[0] == "toy/model | rollout | query [CLS] | L6"
    assert text.splitlines()[-1] == "4  [SEP]     0.150  ############"


@pytest.mark.parametrize("width", [1, 12, 40, 79, 200])
def test_it_keeps_to_its_width(width: int) -> None:
    long = result([0.5, 0.5], ["日本語" * 20, "y" * 90], parts=["source", "target"])
    for text in (printed(render(long, width=width), width=300), printed(long, width=width)):
        assert max(cell_len(line) for line in text.splitlines()) <= width


def test_a_token_that_speaks_against_the_answer_is_marked() -> None:
    """It has a sign, another bar, a line below the table, and an underline in colour; shades start at 0."""
    about = {"answer": {"kind": "class", "name": "good"}, "edges": "answer", "values": "signed shares"}
    signed = replace(result([-0.5, 0.75, 0.25]), method="answer_inputs", provenance=about)
    lines = printed(signed).splitlines()
    assert lines[0].endswith("answer_inputs (signed shares) · explains 'good'")
    assert lines[2:] == [
        "0  t0  -0.500  " + "░" * 27,
        "1  t1   0.750  " + "█" * 40,
        "2  t2   0.250  " + "█" * 13 + "▍",
        "values below 0 (░) count against 'good'",
    ]
    score = replace(signed, provenance={**about, "answer": {"kind": "score", "name": "stars"}})
    assert printed(score).splitlines()[-1] == "values below 0 (░) lower 'stars'"
    coloured = printed(signed, colour=True)
    assert "\x1b[4;31mt0" in coloured and "\x1b[4;31mt1" not in coloured and "0.000 " in coloured
    one_sided = replace(signed, values=np.array([[[0.0, 0.75, 0.25]]]))
    assert "count against" not in printed(one_sided) and "4;31m" not in printed(one_sided, colour=True)
    state = replace(signed, method="rollout")  # less than uniform attention does not count against the answer
    assert "count against" not in printed(state)
    row = np.linspace(-0.1, 1, 80)
    row[3] = -9.0
    long = replace(result(row.tolist()), method="answer_inputs", provenance=about)
    assert " 3  t3   -9.000" in printed(long) and "these are the 20 largest" in printed(long)


def test_what_comes_from_no_token_is_said_where_it_is_much() -> None:
    about = {"answer": {"kind": "class", "name": "good"}, "edges": "answer", "values": "shares"}
    sums = {"log_odds": 2.0, "constants": -1.5, "gap": 0.0}
    much = replace(result([0.75, 0.25]), method="answer_inputs", provenance={**about, "evidence": sums})
    lines = printed(much).splitlines()
    assert lines[0].endswith("answer_inputs · explains 'good'")  # shares need no name
    assert lines[-1] == "-1.50 of the log-odds +2.00 comes from biases, not from tokens"
    score = {**about, "answer": {"kind": "score", "name": "stars"}, "evidence": sums}
    assert "-1.50 of the score +2.00 comes from biases" in printed(replace(much, provenance=score))
    little = {**about, "evidence": {**sums, "constants": 0.9}}
    assert "comes from biases" not in printed(replace(much, provenance=little))


def test_what_was_not_computed_is_a_dash() -> None:
    about = {
        "answer": {"kind": "class", "name": "good"},
        "computed": {"count": 2, "of": 3, "seconds": 1, "first": None},
    }
    part = replace(result([0.5, 0.25, 0.125]), provenance=about)
    part = replace(part, values=np.array([[[0.5, np.nan, 0.25]]]))
    lines = printed(part).splitlines()
    assert lines[2:5] == ["0  t0  0.500  " + "█" * 40, "1  t1      -", "2  t2  0.250  " + "█" * 20]
    assert "nan" not in printed(part, colour=True)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ([0, 0], ["0.000", "0.000"]),
        ([1, 1 / 3], ["1.000", "0.333"]),
        ([0.0123, 0.00004], ["0.0123", "0.0000"]),
        ([0.99951, 0.1], ["1.000", "0.100"]),
        ([3e-9, 1e-9], ["3.00e-09", "1.00e-09"]),
        ([2e7, 0], ["2.00e+07", "0.00e+00"]),
    ],
)
def test_numbers_have_three_digits_of_the_largest(values: list[float], numbers: list[str]) -> None:
    assert [line.split()[2] for line in printed(result(values)).splitlines()[2:]] == numbers


def test_a_long_input_shows_the_highest_and_says_so() -> None:
    values = np.random.default_rng(0).dirichlet(np.ones(500))
    lines = printed(result(values)).splitlines()
    table = [line for line in lines if re.match(r" *\d+  t\d+  ", line)]
    assert [int(line.split()[0]) for line in table] == sorted(np.argsort(-values)[:20].tolist())
    assert lines[-1] == "480 of 500 inputs are not shown; these are the 20 highest"
    assert " ".join(lines).count("t399 and 100 more") == 1 and "t400 " not in " ".join(lines[:-22])
    sixty = printed(result(values[:60])).splitlines()
    assert "left out" not in sixty[-1] and sixty[-1].startswith("59  t59")


def test_the_row_is_the_one_asked_for() -> None:
    several = {
        "values": np.arange(8.0).reshape(2, 2, 2),
        "layers": (3, 7),
        "queries": (4, 6),
        "query_tokens": ("a", "b"),
    }
    r = replace(result([0, 0]), **several)
    lines = printed(render(r, "b", 3)).splitlines()
    assert lines[0] == "toy/model · rollout · query b · L4" and [line.split()[2] for line in lines[2:]] == [
        "2.000",
        "3.000",
    ]
    assert printed(r) == "TokenAttention(rollout, 2 layers × 2 queries × 2 inputs, '')\n"
    with pytest.raises(
        af.InputError, match="this result has 2 queries: give one, by position or token, of 4 'a', 6 'b'"
    ):
        r.show()


IMAGE = result([9, 0, 1, 2, 3, 4, 5], special=[True] + [False] * 6, patches=(2, 3))


def test_an_image_is_its_patches_shaded() -> None:
    lines = printed(IMAGE).splitlines()
    assert lines[1:4] == ["  ░░▒▒", "▓▓████", "0.000   ░░▒▒▓▓██ 5.000"]
    assert (
        lines[4] == "0  t0               9.000  " + "█" * 40
        and lines[-1] == "2 of 7 inputs are not shown; these are the 5 highest"
    )
    assert printed(IMAGE, encoding="ascii").splitlines()[1:3] == ["  ::==", "**%%@@"]
    coloured = printed(IMAGE, colour=True).splitlines()
    assert len(re.findall(r"48;2;\d+;\d+;\d+m  \x1b", coloured[1])) == 3 and ANSI.sub("", coloured[1]) == " " * 6
    assert "48;2;255;234;70m  " in coloured[2]


def test_patches_fit_or_say_that_they_do_not() -> None:
    wide = result([0.0, 1.0] * 30, patches=(1, 60))
    assert printed(wide, width=80).splitlines()[1] == " █" * 30
    lines = printed(wide, width=59).splitlines()
    assert lines[1:3] == ["█" * 30, "a cell is a block of 2 × 2 patches, and shows the largest"]
    tall = result([*[0.0] * 149, 1.0], patches=(50, 3))
    lines = printed(tall).splitlines()
    assert lines[1:26] == ["    "] * 24 + ["  ██"] and lines[26].startswith("a cell is a block of 2 × 2 patches")


def test_a_map_marks_values_below_zero() -> None:
    signed = result([4.0, -2.0, 0.1, -4.0, 2.0, 0.0], patches=(2, 3))
    lines = printed(signed).splitlines()
    assert lines[1:3] == ["██↓↓  ", "↓↓▒▒  "]
    assert lines[3:5] == ["0.000   ░░▒▒▓▓██ 4.000", "values below 0 (↓ on the map) go down to -4.000"]
    assert printed(signed, encoding="ascii").splitlines()[1] == "@@vv  "
    coloured = printed(signed, colour=True).splitlines()
    assert "48;2;214;52;36m" in coloured[2] and "red on the map" in coloured[4]
    assert ANSI.sub("", lines[5]).startswith("0  row 1, column 1   4.000")
