"""Inputs of a corpus: every format, in shards of any size and order, gives the same texts; damage affects only its own row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import pickle
import random
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnflow.corpus.plan import Reader, Shard, plan
from attnflow.errors import InputError
from attnflow.texts import columnar as tables
from attnflow.texts import text_files as lines
from attnflow.texts.sources import Corpus, Text, open_corpus
from attnflow.texts.strict import read_rows

pa = pytest.importorskip("pyarrow", reason="tables of a corpus need pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="tables of a corpus need pyarrow")

PACK = {".gz": gzip.compress, ".xz": lzma.compress}
LINES = ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.ndjson"]
NAMES = [*LINES, *(name + end for name in LINES[:4] for end in PACK), "a.parquet"]
KNOWN = ".txt, .csv, .tsv, .jsonl, .ndjson (each also .gz, .xz), .parquet"
Row = tuple[str, "str | None", "str | None"]


def shards_of(
    corpus: Corpus, most_texts: int = 1000, most_cost: int = 1 << 40, samples: int | None = None
) -> list[Shard]:
    return list(plan(corpus, most_texts, most_cost, lambda size: size, samples))


def texts_of(path: Path | str, **options: Any) -> list[Text]:
    corpus = open_corpus(path, **options)
    shards = shards_of(corpus, 2)
    with closing(Reader(corpus)) as reader:  # in reverse, so that every shard is found on its own
        found = [reader.texts(shard) for shard in reversed(shards)]
    return [text for texts in reversed(found) for text in texts]


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACK.get(path.suffix, bytes)(data))
    return path


def escaped(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def arrow_table(rows: Sequence[Row]) -> Any:
    columns = {}
    for name, values in zip(("id", "text", "pair"), zip(*rows, strict=True), strict=True):
        data = pa.array([None if v is None else escaped(v) for v in values], pa.large_binary())
        columns[name] = data.view(pa.large_string())
    return pa.table(columns)


def write_rows(path: Path, rows: Sequence[Row], rng: random.Random) -> Path:
    """Write a table in the format that its name says, by other means than it is read with."""
    kind = next(s for s in path.suffixes if s not in PACK)
    if kind == ".parquet":
        pq.write_table(arrow_table(rows), path, row_group_size=rng.choice([1, 7, 300]))
    elif kind == ".txt":
        write(path, b"".join(escaped(text or "") + rng.choice([b"\n", b"\r\n"]) for _, text, _ in rows))
    elif kind == ".tsv":
        write(path, b"pair\tid\ttext\r\n" + b"".join(escaped(f"{p}\t{i}\t{t}\r\n") for i, t, p in rows))
    elif kind == ".csv":
        quoted = [",".join('"' + str(v).replace('"', '""') + '"' for v in (t, i, p)) for i, t, p in rows]
        blank = [rng.choice(["\n", "\n\n", "\r\n"]) for _ in quoted]
        write(
            path, b"\xef\xbb\xbftext,id,pair\n" + b"".join(map(escaped, map("".join, zip(quoted, blank, strict=True))))
        )
    else:
        lines = []
        for i, t, p in rows:
            held = {"id": i, "text": t, "pair": p}
            if t is None and rng.random() < 0.5:
                del held["text"]
            lines.append(escaped(json.dumps(held, ensure_ascii=False)) + rng.choice([b"\n", b"\n \n"]))
        write(path, b"".join(lines))
    return path


def made_up(name: str, rng: random.Random, count: int) -> list[Row]:
    """Draw the nastiest texts that the format can store."""
    signs = [
        "key",
        "cabinet",
        " ",
        "ä",
        "日本",
        "😀",
        "\udcff",
        "\udce9",
        '"',
        ",",
        "\x00",
        "\x85",
        "\u2028",
        "\x0c",
        "'",
    ]
    if ".txt" not in name and ".tsv" not in name:
        signs += ["\n", "\r\n", "\t", "\r"]
    nulls = any(kind in name for kind in ("json", "parquet"))

    def text() -> str:
        return "".join(rng.choices(signs, k=rng.choice([0, 1, 3, 20])))

    return [
        (
            f"id-{n}",
            None if nulls and n and rng.random() < 0.1 else text(),
            None if nulls and rng.random() < 0.1 else text(),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_every_format_in_parts_of_any_size_and_order(
    tmp_path: Path, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 5)
    rng = random.Random(f"{name} {seed}")
    rows = made_up(name, rng, rng.choice([1, 40, 90]))
    path = write_rows(tmp_path / name, rows, rng)
    if ".txt" in name:
        expected = [Text(f"{name}:{number}", text) for number, (_, text, _) in enumerate(rows, 1)]
        corpus = open_corpus(path)
    else:
        expected = [Text(id, text, pair or "") for id, text, pair in rows]
        corpus = open_corpus(path, pair="pair")

    most_texts, most_cost = rng.randint(1, 30), rng.randint(1, 400)
    shards = shards_of(corpus, most_texts, most_cost)
    assert shards == shards_of(corpus, most_texts, most_cost)
    corpus = pickle.loads(pickle.dumps(corpus))
    with closing(Reader(corpus)) as reader:
        assert [text for shard in shards for text in reader.texts(shard)] == expected
        for shard in rng.sample(shards, len(shards)):
            assert reader.texts(shard) == expected[shard.row : shard.row + shard.count]

    def cost(shard: Shard) -> int:
        texts = expected[shard.row : shard.row + shard.count]
        return sum(len((s or "").encode("utf-8", "surrogatepass")) for text in texts for s in (text.text, text.pair))

    for shard, after in zip(shards, [*shards[1:], None], strict=True):
        assert shard.number == shards.index(shard) and 0 < shard.count <= most_texts
        assert shard.count == 1 or cost(shard) <= most_cost
        if after is not None:
            assert after.row == shard.row + shard.count
            first = replace(after, count=1)
            assert shard.count == most_texts or cost(shard) + cost(first) > most_cost, "it could have gone on"
    assert sum(shard.count for shard in shards) == len(expected)


def test_csv_is_read_as_evaluate_reads_it(tmp_path: Path) -> None:
    data = 'id,text,"a ""b"""\r\n1,"two\nlines, and ""quotes""",x\n\n\n2, spaces ,"y\r\nz"\r3,old ends,\r4,half "quoted" cell,w'
    write(tmp_path / "a.csv", data.encode())
    rows = [row for _, row in read_rows(tmp_path / "a.csv")]
    assert [(t.id, t.text, t.pair) for t in texts_of(tmp_path / "a.csv", pair='a "b"')] == [
        (row["id"], row["text"], row['a "b"']) for row in rows
    ]
    assert len(rows) == 4


def test_lines_of_text(tmp_path: Path) -> None:
    """Blank lines are texts, a final newline is not; only LF and CRLF end a line; the byte order mark is dropped."""
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\n  \ntwo\rthree\x0bfour\xe2\x80\xa8five\xef\xbb\xbf\nend")
    assert [t.text for t in texts_of(path)] == ["one", "", "  ", "two\rthree\x0bfour\u2028five\ufeff", "end"]
    assert [t.id for t in texts_of(path)] == [f"a.txt:{n}" for n in range(1, 6)]
    assert [t.text for t in texts_of(write(path, b"\n"))] == [""]


def test_broken_bytes_are_kept_and_harm_their_own_row(tmp_path: Path) -> None:
    broken = b"caf\xe9"
    write(tmp_path / "a.txt", b"good\n" + broken + b"\ngood\n")
    write(tmp_path / "b.csv", b"id,text\n\xff,good\n2," + broken + b"\n")
    write(tmp_path / "c.jsonl", b'{"text": "' + broken + b'"}\n{"text": "\\ud83d", "id": "\\ud83d"}\n')
    made = pa.array([b"good", broken], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": made, "id": made}), tmp_path / "d.parquet")
    assert [(t.id, t.text, t.problem) for t in texts_of(tmp_path)] == [
        ("a.txt:1", "good", None),
        ("a.txt:2", "caf\udce9", None),
        ("a.txt:3", "good", None),
        ("\\udcff", "good", None),  # ids are written out, so they must be valid text
        ("2", "caf\udce9", None),
        ("c.jsonl:1", "caf\udce9", None),
        ("\\ud83d", "\ud83d", None),
        ("good", "good", None),
        ("caf\\udce9", "caf\udce9", None),
    ]


def test_rows_with_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b'id,text\n1,"two\nlines"\n2\n3,a,b\n4,good\n')
    write(tmp_path / "a2.csv", b"text,id,n\na, b,5,1\nc\nd,7\n")
    write(tmp_path / "b.tsv", b'text\n"\na\tb\n')
    deep = b"[" * 100_000
    write(
        tmp_path / "c.jsonl",
        b'{"text": "a", "id": 7}\n\n{"text"\nnonsense\n[1]\n{"text": 3, "id": "x"}\n{"id": [1, "\xc3\xa4"]}\n{"text": null, "id": null}\n'
        + deep
        + b"\n"
        + b'{"text": "good", "n": %s}' % (b"9" * 5000),
    )
    digits = "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; use sys.set_int_max_str_digits() to increase the limit"
    assert texts_of(tmp_path) == [
        Text("1", "two\nlines"),
        Text("2", None, None, "a.csv, row 2 (line 4): fewer cells than the 2 columns of the first line"),
        Text("3", None, None, "a.csv, row 3 (line 5): more cells than the 2 columns of the first line"),
        Text("4", "good"),
        # " b" is not an id: the comma before it belongs to the text
        Text("a2.csv:1", None, None, "a2.csv, row 1 (line 2): more cells than the 3 columns of the first line"),
        Text("a2.csv:2", None, None, "a2.csv, row 2 (line 3): fewer cells than the 3 columns of the first line"),
        Text("7", None, None, "a2.csv, row 3 (line 4): fewer cells than the 3 columns of the first line"),
        Text("b.tsv:1", '"'),
        Text("b.tsv:2", None, None, "b.tsv, row 2 (line 3): more cells than the 1 columns of the first line"),
        Text("7", "a"),
        Text(
            "c.jsonl:2",
            None,
            None,
            "c.jsonl, row 2 (line 3): not JSON (Expecting ':' delimiter); expected one object per line",
        ),
        Text(
            "c.jsonl:3", None, None, "c.jsonl, row 3 (line 4): not JSON (Expecting value); expected one object per line"
        ),
        Text("c.jsonl:4", None, None, 'c.jsonl, row 4 (line 5): expected an object such as {"text": …}'),
        Text("x", None, None, "c.jsonl, row 5 (line 6): the column 'text' contains 3; expected text"),
        Text('[1, "ä"]', None),
        Text("c.jsonl:7", None),
        Text(
            "c.jsonl:8",
            None,
            None,
            "c.jsonl, row 8 (line 9): not JSON (nested too deeply); expected one object per line",
        ),
        Text("c.jsonl:9", None, None, f"c.jsonl, row 9 (line 10): not JSON ({digits}); expected one object per line"),
    ]
    write(tmp_path / "d" / "a.jsonl", b'{"text": "a", "with": 1}\n{"text": "a", "with": 0}\n')
    assert texts_of(tmp_path / "d", pair="with") == [
        Text(f"a.jsonl:{n}", None, None, f"a.jsonl, line {n}: the column 'with' contains {2 - n}; expected text")
        for n in (1, 2)
    ]


def unclosed(last: int) -> str:
    return (
        f"a quotation mark is never closed, so everything up to the end of the file, line {last}, belongs to this "
        "row; close it, or double it"
    )


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quotation_mark_that_is_never_closed(tmp_path: Path, end: str) -> None:
    """The rows it swallows are not texts; it only opens a quotation at the start of a cell."""
    for name, data, id, line in (
        ("in the text", '3,"c\n4,d\n5,e', "3", 6),
        ("in the id", '"3,c\n4,d', "in the id.csv:3", 5),
        ("nothing else", '3,"', "3", 4),
    ):
        path = write(tmp_path / f"{name}.csv", f'id,text\n1,"a"\n2,5" b"\n{data}{end}'.encode())
        assert texts_of(path) == [
            Text("1", "a"),
            Text("2", '5" b"'),
            Text(id, None, None, f"{name}.csv, row 3 (line 4): {unclosed(line)}"),
        ]
    path = write(tmp_path / "names.csv", f'id,"text\n1,a\n2,b{end}'.encode())
    with pytest.raises(InputError) as e:
        texts_of(path)
    assert str(e.value) == f"{str(path)!r}: a quotation mark in the column names is never closed; close it"


def test_what_is_too_long_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1000)
    long = b"x" * 3_000_000
    write(tmp_path / "a.txt", long + b"\n" + b"y" * 1000 + b"\r\n" + long)
    write(
        tmp_path / "b.csv",
        b'text,n\n"' + long + b'",1\n' + long[:900] + b",2\n" + (b"z" * 400 + b",") * 3 + b"\nend,3\n",
    )
    write(tmp_path / "c.csv", b'text\n"' + (b"q" * 300 + b"\n") * 5 + b'"\nend\n')
    write(tmp_path / "d.jsonl", b'{"text": "' + long + b'"}\n{"text": "end"}')
    told = "longer than 1,000 bytes"
    tracemalloc.start()
    try:
        found = texts_of(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000  # it reads 1 MiB at a time and keeps none
    finally:
        tracemalloc.stop()
    assert found == [
        Text("a.txt:1", None, None, f"a.txt, line 1: {told}"),
        Text("a.txt:2", "y" * 1000),
        Text("a.txt:3", None, None, f"a.txt, line 3: {told}"),
        Text("b.csv:1", None, None, f"b.csv, row 1 (line 2): {told}"),
        Text("b.csv:2", "x" * 900),
        Text("b.csv:3", None, None, f"b.csv, row 3 (line 4): {told}"),
        Text("b.csv:4", "end"),
        Text("c.csv:1", None, None, "c.csv, row 1 (line 2): not csv (field larger than field limit (1000))"),
        Text("c.csv:2", "q" * 300),  # after a field without end, reading resumes at the next line
        Text("c.csv:3", None, None, f"c.csv, row 3 (line 7): {unclosed(8)}"),
        Text("d.jsonl:1", None, None, f"d.jsonl, line 1: {told}"),
        Text("d.jsonl:2", "end"),
    ]
    write(tmp_path / "e" / "whole.txt", long)
    assert texts_of(tmp_path / "e", whole_files=True) == [
        Text("whole.txt", None, None, "whole.txt: longer than 1,000 bytes; split it")
    ]


def test_folders_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in (
        "b/z.txt",
        "b.txt",
        "a/2.txt.gz",
        "A.TXT",
        "_left/out.txt",
        ".git/x.txt",
        "b/_x.txt",
        "b/.x.txt",
        "x.md",
    ):
        write(tmp_path / name, name.encode() if not name.endswith(".gz") else b"packed\ntwo")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    corpus = open_corpus(str(tmp_path))
    assert [file.name for file in corpus.files] == ["A.TXT", "a/2.txt.gz", "b.txt", "b/z.txt"]
    assert [t.id for t in texts_of(tmp_path)] == ["A.TXT:1", "a/2.txt.gz:1", "a/2.txt.gz:2", "b.txt:1", "b/z.txt:1"]


def test_linked_folders_count(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "a.txt", b"one\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "here").symlink_to(tmp_path / "elsewhere")
    assert texts_of(tmp_path / "in") == [Text("here/a.txt:1", "one")]


def test_whole_files(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.txt", b"\xef\xbb\xbftwo\r\n\r\nparagraphs\r\n")
    write(tmp_path / "b.txt.xz", b"")
    write(tmp_path / "c.csv", b"text\nrow\n")
    found = texts_of(tmp_path, whole_files=True)
    assert found == [Text("a/1.txt", "two\r\n\r\nparagraphs"), Text("b.txt.xz", ""), Text("c.csv:1", "row")]


def test_only_the_first_texts(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"1\n2\n3\n")
    write(tmp_path / "b.txt", b"4\n5\n")
    (tmp_path / "c.txt").symlink_to(tmp_path / "missing")  # never reached
    shards = shards_of(open_corpus(tmp_path), 3, samples=4)
    assert [(shard.row, shard.count) for shard in shards] == [(0, 3), (3, 1)]


def test_columns_of_tables(tmp_path: Path) -> None:
    strings = pa.array(["a", None, "a"])
    pq.write_table(
        pa.table(
            {
                "words": strings.dictionary_encode(),
                "second": strings.cast(pa.string_view()),
                "number": pa.array([1, None, 3]),
                "none": pa.nulls(3),
            }
        ),
        tmp_path / "a.parquet",
    )
    path = tmp_path / "a.parquet"
    assert texts_of(path) == [Text("a.parquet:1", "a"), Text("a.parquet:2", None), Text("a.parquet:3", "a")]
    assert texts_of(path, text="second", id="number", pair="words") == [
        Text("1", "a", "a"),
        Text("a.parquet:2", None, ""),
        Text("3", "a", "a"),
    ]
    assert [t.text for t in texts_of(path, text="none")] == [None, None, None]


def test_a_column_of_jsonl_may_be_missing_at_first(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", b'nonsense\n{"n": 1}\n{"n": 2, "sentence": "x"}\n{"n": 3, "text": "y", "sentence": "z"}'
    )
    assert [t.text for t in texts_of(path)] == [None, None, "x", "z"]
    assert [t.text for t in texts_of(path, text="text")] == [None, None, None, "y"]
    assert texts_of(write(path, b"nonsense"))[0].problem is not None


GARBLED = "repair it, or remove it from the input"


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.txt", b"\xff\xfea\0", {}, "{path} is UTF-16: expected UTF-8; convert it first"),
        ("a.txt", b"", {}, "{path} has no texts: expected at least one in a.txt"),
        ("a.csv", b"text\n\n", {}, "{path} has no texts: expected at least one in a.csv"),
        ("a.csv", b"\n\n", {}, "{path} is empty: expected column names in the first line"),
        ("a.csv", b"body,n\nx,1\n", {}, "a.csv has no column 'text' or 'sentence' or 'words': name the column of the text with text=, one of 'body', 'n'"),
        ("a.csv", b"text\nx\n", {"text": "body"}, "a.csv has no column 'body': expected one of 'text'"),
        ("a.jsonl", b'{"body": "x"}\n', {}, "a.jsonl has no column 'text' or 'sentence' or 'words': name the column of the text with text=, one of 'body'"),
        ("a.jsonl", b'{"text": "x"}\n{"n": 1}', {"id": "key"}, "a.jsonl has no column 'key': expected one of 'text', 'n'"),
        ("a.txt", b"x\n", {"text": "body"}, "text='body' names a column, and a.txt has no columns: leave it out, or give only tables"),
        ("a.csv", b"text\nx\n", {"whole_files": True}, "whole_files=True applies to .txt files, and there are none in {path}: leave it out"),
        ("a.md", b"x\n", {}, f"{{path}}: expected a file that ends in {KNOWN}"),
        ("a.parquet.gz", b"x\n", {}, f"{{path}}: expected a file that ends in {KNOWN}"),
        ("a.parquet", b"nonsense", {}, f"{{path}} cannot be read as parquet: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.; {GARBLED}"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, name: str, data: bytes, options: dict[str, Any], message: str) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(InputError) as e:
        texts_of(path, **options)
    assert str(e.value) == message.format(path=repr(str(path)))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a.txt.gz", "Not a gzipped file (b'no')"),
        ("a.jsonl.xz", "Input format not supported by decoder"),
    ],
)
def test_garbled_and_truncated_archives(tmp_path: Path, name: str, told: str) -> None:
    path = tmp_path / name
    kind = name.removeprefix("a.")
    path.write_bytes(b"nonsense, and more of it")
    with pytest.raises(InputError) as e:
        texts_of(path)
    assert str(e.value) == f"{str(path)!r} cannot be read as {kind}: {told}; {GARBLED}"
    rng = random.Random(0)
    whole = write(
        path, b"text\n" + b"".join(b'{"text": "%d"}\n' % rng.getrandbits(99) for _ in range(5000))
    ).read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError) as e:
        texts_of(path)
    assert str(e.value) == (
        f"{str(path)!r} cannot be read as {kind}: Compressed file ended before the end-of-stream marker was reached; {GARBLED}"
    )


def test_garbled_tables(tmp_path: Path) -> None:
    whole = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{n}" * 50 for n in range(1000)]}), whole, compression="gzip")
    data = bytearray(whole.read_bytes())
    data[200:400] = bytes(200)
    whole.write_bytes(data)
    with pytest.raises(InputError) as e:
        texts_of(whole)
    assert str(e.value).startswith(f"{str(whole)!r} cannot be read as parquet: ")
    assert str(e.value).endswith(f"; {GARBLED}")


def test_the_type_of_a_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2], "other": ["a", "b"]}), tmp_path / "a.parquet")
    for options, message in (
        ({}, "a.parquet: the column 'text' contains int64, not text: name another column with text="),
        (
            {"text": "other", "pair": "text"},
            "a.parquet: the column 'text' contains int64, not text: name another column with pair=",
        ),
    ):
        with pytest.raises(InputError) as e:
            texts_of(tmp_path / "a.parquet", **options)  # type: ignore[arg-type]
        assert str(e.value) == message


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
@pytest.mark.parametrize(
    "end", [b"a\rb", b"a\rb\r", b"a\rb\n", b"a\r\nb\r\n", b"a\r\r\nb", b"the cat\r" * 19 + b"a\rb"]
)
def test_lines_that_end_in_a_carriage_return_alone(name: str, end: bytes, tmp_path: Path) -> None:
    found = [text.text for text in texts_of(write(tmp_path / name, b"text\n" + end))]
    assert found == ["the cat"] * end.count(b"cat") + ["a", "b"]


def test_a_first_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1000)
    path = write(tmp_path / "a.csv", b"text\r" + b"x\r" * 1000)
    assert [text.text for text in texts_of(path)] == ["x"] * 1000  # old Mac line endings
    write(path, b'x,"' + b"y" * 2000)
    with pytest.raises(InputError) as e:
        texts_of(path)
    assert str(e.value) == (
        f"{str(path)!r}: the first line is longer than 1,000 bytes; expected column names and a line end"
    )
    write(path, b"x" * 1001 + b"\n")
    with pytest.raises(InputError) as e:
        texts_of(path)
    assert str(e.value) == (
        f"{str(path)!r}: the column names cannot be read (field larger than field limit (1000)); repair the first line"
    )


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), "hf://datasets/me/mine"):  # datasets are saved as Parquet
        with pytest.raises(InputError) as e:
            open_corpus(name)
        assert str(e.value) == (
            f"there is no file or folder {name!r}: expected a file that ends in {KNOWN}, or a folder of such files"
        )
    with pytest.raises(InputError) as e:
        open_corpus(tmp_path)
    assert str(e.value) == (
        f"the folder {str(tmp_path)!r} contains no file to read: expected files that end in {KNOWN}"
    )
    path = tmp_path / "a.txt"
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(InputError) as e:
        texts_of(tmp_path)
    assert str(e.value) == (
        f"cannot read {str(path)!r}: No such file or directory; make it readable, or remove it from the input"
    )
    path.unlink()
    os.mkfifo(path)
    for name in ("a.txt", "a.parquet"):
        path = path.rename(tmp_path / name)
        with pytest.raises(InputError) as e:
            texts_of(tmp_path)
        assert str(e.value) == (
            f"cannot read {str(path)!r}: expected a file, not a pipe or a device; copy it into a file"
        )


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.txt", b"x\n")
    write(tmp_path / "closed" / "b.txt", b"x\n")
    scandir = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(InputError) as e:
        open_corpus(tmp_path)
    assert str(e.value) == (
        f"cannot read the folder {str(tmp_path / 'closed')!r}: Permission denied; make it readable, or remove it "
        "from the input"
    )


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.txt", b"x\n")
    write(tmp_path / "b.parquet", b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert texts_of(tmp_path / "a.txt") == [Text("a.txt:1", "x")]
    with pytest.raises(InputError) as e:
        texts_of(tmp_path)
    assert str(e.value) == "parquet needs pyarrow: pip install 'attnflow[corpus]'"


def test_an_input_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\ntwo\nthree\nfour")
    corpus = open_corpus(path)
    first, second = shards_of(corpus, 2)
    message = (
        "the input changed while it was read: texts 2 to 3 in a.txt are different now; start again when nothing "
        "writes to it"
    )
    for data in (
        b"one\ntwo\nthree\nfour more",
        b"one\ntwo\nthree\n",
        b"one\ntwo\nThree\nfour",
        b"one\ntwo\n",
        b"one\ntwo\nthree\r\nfour",
    ):
        path.write_bytes(data)
        with closing(Reader(corpus)) as reader:
            assert [t.text for t in reader.texts(first)] == ["one", "two"]
            if b"\r" in data:  # another line ending, the same text
                assert [t.text for t in reader.texts(second)] == ["three", "four"]
                continue
            with pytest.raises(InputError) as e:
                reader.texts(second)
            assert str(e.value) == message


@pytest.mark.long
def test_memory_stays_flat(tmp_path: Path) -> None:
    """Files of 8 MB, in shards of 160 kB."""
    text = "the key to the cabinets " * 67
    lines = [f"{n} {text}" for n in range(5000)]
    write(tmp_path / "a.txt", "\n".join(lines).encode())
    table = io.StringIO()
    csv.writer(table).writerows([["text"], *([line] for line in lines)])
    write(tmp_path / "b.csv.gz", table.getvalue().encode())
    pq.write_table(pa.table({"text": lines}), tmp_path / "c.parquet", compression="none", use_dictionary=False)
    for name in ("a.txt", "b.csv.gz", "c.parquet"):
        corpus = open_corpus(tmp_path / name)
        before = pa.total_allocated_bytes()
        tables = 0
        tracemalloc.start()
        try:
            with closing(Reader(corpus)) as reader:
                for shard in plan(corpus, 100, 1 << 40, lambda size: size):
                    assert len(reader.texts(shard)) == 100
                    tables = max(tables, pa.total_allocated_bytes() - before)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2_500_000, name
        assert tables < 5_000_000, name  # pyarrow's memory: two readers, with a page and a batch each
