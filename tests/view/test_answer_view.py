"""An answer in a terminal and in data files."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="answers need torch")
pytest.importorskip("transformers", reason="answers need transformers")

from rich.cells import cell_len
from rich.console import Console

import attnflow as af
from attnflow.view import answer_terminal, answer_view
from attnflow.view.colour import colours
from helpers.answers import ANSWER, MINUTES, chatted, decoder, shared

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


@pytest.fixture(scope="module")
def answer(model: Any) -> Any:
    return chatted(model)


def printed(shown: Any, *, colour: bool = False, width: int = 100, encoding: str = "utf-8", **environment: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    system: Any = "truecolor" if colour else None
    Console(file=stream, width=width, force_terminal=colour, color_system=system, _environ=environment).print(shown)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def shown(answer: Any, **options: Any) -> str:
    stream = io.StringIO()
    answer.show(file=stream, **options)
    return stream.getvalue()


def shades(text: str) -> list[tuple[str, tuple[int, ...] | None]]:
    """Return each character that is not white space, with its background."""
    characters: list[tuple[str, tuple[int, ...] | None]] = []
    for code, part in re.findall(r"(?:\x1b\[([0-9;]*)m)?([^\x1b]*)", text):
        colour = re.search(r"48;2;(\d+);(\d+);(\d+)", code)
        shade = tuple(map(int, colour.groups())) if colour else None
        characters += [(character, shade) for character in part if not character.isspace()]
    return characters


def table(text: str) -> list[list[str]]:
    """Return the rows of the table: their numbers and words before the bar."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.lstrip().startswith("share"))
    rows = [re.match(r" *(\d+) +(\S+)(?: +(-?[\d.]+) +(verified|estimated))? ", line) for line in lines[head + 1 :]]
    return [[cell for cell in row.groups() if cell is not None] for row in rows if row]


def test_in_a_pipe_it_is_plain_text(answer: Any) -> None:
    text = shown(answer)
    assert not ANSI.search(text) and "\x1b" not in text and "‮" not in text
    assert text.startswith(
        f"{answer.sources().provenance['model']} · combined · explains the whole answer\n\n<|start|>system"
    )
    assert "The key is in the cabinet. Nobody's books are there.\n\nThe café in Zürich is naïve" in text
    assert "A rusty </script><b>key\\x1b[31m</b> \\u202egnol." in text
    assert f"\n→ {ANSWER}\n" in text


def test_the_table_has_the_strongest_units(answer: Any) -> None:
    for unit in ("token", "word", "sentence", "paragraph", "message", "document"):
        top = answer.sources(unit=unit).top(answer_terminal.LISTED)
        rows = table(shown(answer, unit=unit))
        assert [int(row[0]) for row in rows] == [score.position for score in top]
        assert [float(row[1]) for row in rows] == pytest.approx([score.value for score in top], abs=6e-4)
    assert "minutes.txt" in shown(answer, unit="document").split(" document\n")[1]
    count = len(answer.prompt.ids)
    assert f"and {count - 10} more\n" in shown(answer, unit="token")


def test_the_table_tells_what_stands_in_no_unit(answer: Any) -> None:
    """With this line, the shares of the table add up to one."""
    for unit in ("sentence", "document"):
        outside = 1 - answer.sources(unit=unit, method="answer_rows").row().sum()
        text = shown(answer, unit=unit, method="answer_rows")
        assert outside > 0.01 and f"\nin no {unit}: a share of {outside:.3f}\n" in text
    assert "in no token" not in shown(answer, unit="token")


def test_the_table_says_how_its_units_are_ranked(answer: Any) -> None:
    text = " ".join(shown(answer, unit="sentence").split())
    assert (
        "sentences ranked by what the answer reads from them, and how fast its probability falls as attention to them fades"
        in text
    )
    assert "by what the answer read" not in shown(answer, unit="word")
    text = shown(answer, unit="sentence", method="rollout")
    assert "\nsentences ranked by rollout\n" in text and " rollout " in text.split("The model wrote")[0]


def test_a_page_has_the_recommended_methods(answer: Any, tmp_path: Path) -> None:
    with pytest.raises(af.InputError, match="method='fading': a page shows the recommended method of each unit"):
        answer.save(tmp_path / "page.html", method="fading")
    answer.save(tmp_path / "sources.csv", method="fading")
    expected = answer.sources(unit="sentence", method="fading").row()
    assert column(tmp_path / "sources.csv", "value") == list(map(str, expected))


def test_shades_are_shares(model: Any) -> None:
    """Each character has the shade of its tokens; weak tokens, and those against the answer, have none."""
    answer = model.answer(MINUTES, answer=ANSWER)
    shares, offsets = answer.sources().row(), answer.prompt.offsets
    wanted = []
    for place, character in enumerate(MINUTES):
        share = shared(place, shares, offsets) / shares.max()
        shade = tuple(colours(np.array(min(share, 1))).round().astype(int).tolist())
        wanted.append((character, shade if share >= answer_terminal.PLAIN else None))
    text = printed(answer, colour=True, width=1000).split("→")[0].split("\n\n", 1)[1]
    assert shades(text) == [pair for pair in wanted if not pair[0].isspace()]
    assert len({shade for _, shade in wanted}) > 5


def test_the_explained_span_is_underlined(answer: Any) -> None:
    span = "rusty key"
    view = answer_view.AnswerView(answer)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="truecolor", width=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_view, "Console", lambda file: console)
        view.show(span, "sentence", 0, None)
    text = stream.getvalue()
    assert "explains rusty key" in text
    pieces = re.findall(r"\x1b\[1;4m([^\x1b]*)\x1b\[0m", text)
    assert "".join(pieces) == span.replace(" ", "")
    wanted = answer.sources(span, "sentence").top(1)[0]
    assert table(ANSI.sub("", text))[0][0] == str(wanted.position)


def test_without_colour_the_strongest_are_bold(answer: Any) -> None:
    text = printed(answer, colour=True, NO_COLOR="1")
    assert "48;2" not in text and "\x1b[1m" in text and ANSI.sub("", text) == printed(answer)


def test_verified_and_estimated(answer: Any) -> None:
    text = shown(answer, unit="sentence", verify=2)
    result = answer.sources(unit="sentence", verify=2)
    rows = table(text)
    order = [score.position for score in result.top(answer_terminal.LISTED)]
    assert [int(row[0]) for row in rows] == order
    assert [float(row[2]) for row in rows] == pytest.approx(result.row()[order].tolist(), abs=6e-4)
    assert [row[3] for row in rows] == [result.parts[i] for i in order]
    assert [row[3] for row in rows].count("verified") == 2 and "log p falls by" in text


def test_the_facts_add_up(model: Any, answer: Any) -> None:
    text = " ".join(shown(answer).split("This answer")[1].split())
    likely = f"probability {answer.probability:.3g}, {np.exp(answer.log_probabilities.mean()):.2f} per token."
    assert text.startswith(f"was given, not written by the model: {likely} Log-odds ")
    numbers = [float(x) for x in re.findall(r"(?:odds|prompt|first token|itself|constants) (-?[\d.]+)[:,.] ", text)]
    sums = answer.sources().provenance["evidence"]
    assert numbers[0] == pytest.approx(sums["log_odds"], abs=0.06) == pytest.approx(sum(numbers[1:]), abs=0.3)
    assert numbers[2] == pytest.approx(sums["first_token"], abs=0.06) and len(numbers) == 5
    rows = np.clip(answer.matrix(signed=True).values[0][:, : len(answer.prompt.ids)], 0, None)
    counted = sum(row / row.sum() for row in rows if row.sum()) / sum(bool(row.sum()) for row in rows)
    both = zip(answer.prompt.template, answer.prompt.special, strict=True)
    marks = [i for i, (a, b) in enumerate(both) if i and (a or b)]
    first, others = counted[0], counted[marks].sum()
    unshaded = f"the first token has {100 * first:.0f} %, special tokens and chat marks have {100 * others:.0f} %"
    reliability = " ".join(answer.sources(unit="sentence").reliability)
    assert reliability and text.endswith(f"Not shaded: {unshaded} of the support for the answer. {reliability}")
    assert answer.to_dict()["sources"]["reliability"] == list(answer.sources().reliability)
    own = model.answer("the key to the cabinet", max_new_tokens=3)
    assert "The model wrote this answer: probability " in shown(own)


def test_of_a_long_prompt_the_strongest_parts_are_shown(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts shown and those left out cover the whole prompt."""
    for name, value in (("WHOLE", 40), ("PARTS", 2), ("AROUND", 10), ("GAP", 3)):
        monkeypatch.setattr(answer_terminal, name, value)
    text = shown(answer, unit="sentence").split("→")[0].split("\n\n", 1)[1]
    prompt, units = answer.prompt, answer.prompt.units("sentence")
    numbers = [int(n) for n in re.findall(r"… (\d+) tokens? left out …", text)]
    assert len(prompt.ids) - 2 * 10 - 3 * 3 <= sum(numbers) <= len(prompt.ids) - 10
    shares = answer.sources().row()
    for score in answer.sources(unit="sentence").top(2):
        strongest = max(units.groups[score.position], key=lambda i: shares[i])
        start, end = prompt.offsets[strongest]
        around = prompt.text[max(start - 2, units.ranges[score.position][0]) : end]
        assert repr(around.strip())[1:-1] in text or around.strip() in text


def test_narrow_and_ascii(answer: Any) -> None:
    for encoding in ("utf-8", "ascii"):
        text = printed(answer, width=40, encoding=encoding)
        assert max(map(cell_len, text.splitlines())) <= 40
    assert "> the rusty key" in text


def test_the_json_of_an_answer_is_no_result_to_load(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    answer.save(path)
    with pytest.raises(af.InputError, match="contains a whole answer, with its texts and its matrix: read it as JSON"):
        af.TokenAttention.load(path)
    answer.sources().save(path)
    np.testing.assert_array_equal(af.TokenAttention.load(path).values, answer.sources().values)


def test_json_has_everything(answer: Any, tmp_path: Path) -> None:
    answer.save(tmp_path / "answer.json", unit="sentence", verify=2)
    document = json.loads((tmp_path / "answer.json").read_text())
    assert document == json.loads(json.dumps(answer.to_dict("sentence", 2)))
    assert (document["format"], document["version"]) == ("attnflow.Answer", 1)
    prompt, own, sources = document["prompt"], document["answer"], document["sources"]
    names = [prompt["text"][part["start"] : part["end"]] for part in prompt["documents"]]
    assert names[0].startswith("The key is") and [part["name"] for part in prompt["messages"]] == ["system", "user"]
    assert [prompt["text"][a:b].strip() for a, b in prompt["offsets"]][:1] == ["<|start|>"]
    assert own["text"] == ANSWER and own["log_probabilities"] == answer.log_probabilities.tolist()
    assert own["written"] is False and own["probability"] == answer.probability
    assert sources["shares"] == answer.sources().row().tolist() and sources["verify"] == 2
    assert sources["parts"] == answer.sources(signed=True).row().tolist()
    assert [one["share"] for one in sources["units"]] == answer.sources(unit="sentence").row().tolist()
    falls = answer.sources(unit="sentence", verify=2)
    assert [one["how"] for one in sources["units"]] == list(falls.parts)
    assert [one["fall"] for one in sources["units"]] == falls.row().tolist()
    for one in sources["units"]:
        assert prompt["text"][one["start"] : one["end"]].strip() == one["text"]
        assert one["part"] == pytest.approx(sum(sources["parts"][i] for i in one["tokens"]))
    assert document["matrix"]["values"] == answer.matrix(signed=True).values[0].tolist()
    total = np.sum(document["matrix"]["values"]) + document["matrix"]["evidence"]["constants"]
    assert total == pytest.approx(document["evidence"]["log_odds"], rel=1e-6)
    assert sum(document["hops"]["shares"]) == pytest.approx(1)
    assert document["provenance"]["attnflow"] == af.__version__


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_json_of_a_span(answer: Any) -> None:
    document = answer.to_dict("word", span="rusty key")
    chosen = document["sources"]["answer_tokens"]
    assert (
        "".join(answer.text[a:b] for a, b in (document["answer"]["offsets"][i] for i in chosen)).strip() == "rusty key"
    )
    assert document["sources"]["explains"] == "rusty key"
    assert document["sources"]["shares"] == answer.sources("rusty key").row().tolist()
    assert [one["share"] for one in document["sources"]["units"]] == answer.sources("rusty key", "word").row().tolist()
    assert document["evidence"] == answer.sources("rusty key").provenance["evidence"]


def test_large_matrices_keep_their_strongest_parts(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_view, "EXACT", 100)
    monkeypatch.setattr(answer_view, "STRONGEST", 5)
    matrix = answer.to_dict()["matrix"]
    values = answer.matrix(signed=True).values[0]
    assert matrix["values"] is None and len(matrix["strongest"]) == len(values)
    for row, kept in zip(values, matrix["strongest"], strict=True):
        assert kept["values"] == row[kept["tokens"]].tolist() and len(kept["tokens"]) == 5
        assert np.abs(kept["values"]).min() >= np.abs(np.delete(row, kept["tokens"])).max()
        assert sum(kept["values"]) + sum(kept["others"]) == pytest.approx(row.sum())


def test_other_formats(answer: Any, tmp_path: Path) -> None:
    answer.save(tmp_path / "answer.csv", unit="sentence", verify=1)
    wanted = answer.sources(unit="sentence", verify=1)
    assert column(tmp_path / "answer.csv", "part") == list(wanted.parts)
    assert column(tmp_path / "answer.csv", "value") == list(map(str, wanted.row()))
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet needs pyarrow")
    answer.save(tmp_path / "answer.parquet")
    table = parquet.read_table(tmp_path / "answer.parquet")
    assert table["value"].to_pylist() == answer.sources(unit="sentence").row().tolist()
