"""The parallel plan equals the plan of one process: the same cuts, pieces and digests, and the same refusals."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import operator
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnflow.corpus import corpus_job, cut, measure, parallel_plan, plan
from attnflow.corpus.plan import Piece, Reader, Shard
from attnflow.errors import InputError, JobError
from attnflow.jobs.workers import crew
from attnflow.texts import text_files
from attnflow.texts.sources import Corpus, open_corpus
from helpers.processes import helpers_of, processes, until

pytestmark = pytest.mark.long

pa = pytest.importorskip("pyarrow", reason="tables of a corpus need pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="tables of a corpus need pyarrow")

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress
}  # fmt: skip
SIGNS = [
    b"key", b" ", b"\xc3\xa4", "日本".encode(), "😀".encode(), b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"\x00", b"\x85",
    b"\r", b"\n", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"x" * 28, b"y" * 31, b"z" * 80,
]  # fmt: skip
ROWS = [
    b'{"text": "a"}', b'{"text": "\xff\xc3\xa4"}', b'{"text": "b", "id": "own"}', b'{"text": "\\ud83d"}', b'{"id": 7}',
    b"", b" ", b"\r", b"nonsense", b"[1]", b'{"text": 3}', b'{"text": "%s"}' % (b"x" * 60), b'{"text": null}',
]  # fmt: skip
CELLS = [b"a", b"", b'"two\nlines"', b'"\r\n"', b'a"b', b'"a ""b"""', b"\xff", b'"', b"a\rb", b"x" * 40]
NAMES = ("txt", "jsonl", "csv", "tsv", "parquet", "arrow")

lines_of_text = st.builds(
    operator.add, st.sampled_from([b"", b"", b"\xef\xbb\xbf"]), st.lists(st.sampled_from(SIGNS), max_size=40).map(b"".join)
)  # fmt: skip
lines_of_json = st.builds(
    bytes.join, st.sampled_from([b"\n", b"\r\n"]), st.lists(st.sampled_from(ROWS), min_size=1, max_size=20)
)
rows_of_cells = st.lists(st.lists(st.sampled_from(CELLS), min_size=1, max_size=3), max_size=12)
texts_of_table = st.lists(st.sampled_from(["a", None, "", "日本", "x" * 50]), max_size=20)
costs = st.sampled_from(
    [lambda size: size, lambda size: 0, lambda size: 7, lambda size: size * size, lambda size: size << 60]
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a file: the end of its name, and its content."""
    kind = draw(st.sampled_from(NAMES))
    if kind in ("parquet", "arrow"):
        texts = draw(texts_of_table)
        table = pa.table(
            {"text": pa.array(texts, pa.string()), "id": [f"{n}" if n % 3 else None for n in range(len(texts))]}
        )
        sink = io.BytesIO()
        if kind == "parquet":
            pq.write_table(table, sink, row_group_size=3)
        else:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, 4)
        return kind, sink.getvalue()
    packed = draw(st.sampled_from([*PACK, *[""] * 6]))
    if kind == "txt":
        data = draw(lines_of_text)
    elif kind == "jsonl":
        data = draw(lines_of_json)
    else:
        comma = b"," if kind == "csv" else b"\t"
        rows = [[b"id", b"text"], *draw(rows_of_cells)]
        data = b"\n".join(comma.join(cells) for cells in rows)
    return kind + packed, PACK[packed](data)


def outcome(shards: Callable[[], Iterator[Shard]]) -> tuple[list[Shard], str]:
    """Return the shards, and the error that ended them."""
    made: list[Shard] = []
    try:
        made.extend(shards())
    except InputError as e:
        return made, str(e)
    return made, ""


def alone(corpus: Corpus, *arguments: Any) -> Iterator[Shard]:
    """Run all steps of the parallel plan in this process."""
    reader = Reader(corpus)
    try:
        with crew(reader, lambda: reader, 1) as do:
            yield from parallel_plan.plan_by(do, corpus, *arguments)
    finally:
        reader.close()


@settings(max_examples=150, deadline=None)
@given(
    inputs=st.lists(files(), min_size=1, max_size=4),
    most_texts=st.integers(1, 6),
    most_cost=st.integers(0, 60) | st.sampled_from([1 << 40, 1 << 61, 1 << 70]),
    cost=costs,
    samples=st.none() | st.integers(0, 30),
    sizes=st.fixed_dictionaries({
        "range": st.integers(1, 70), "block": st.integers(1, 40), "longest": st.integers(20, 40), "texts": st.integers(1, 9),
        "rest": st.integers(1, 4), "shard": st.integers(1, 120) | st.just(1 << 26),
    }),
    whole=st.booleans(),
)  # fmt: skip
@example(
    [("txt", b"a\n" * 9 + b"\r\n" + b"b\r")], 4, 1 << 40, lambda size: size, None,
    {"range": 1, "block": 1, "longest": 20, "texts": 1, "rest": 1, "shard": 60}, False,
)  # fmt: skip
def test_the_plan_of_the_reference(
    inputs: Sequence[tuple[str, bytes]], most_texts: int, most_cost: int, cost: Callable[[int], int], samples: int | None,
    sizes: dict[str, int], whole: bool,
) -> None:  # fmt: skip
    check(inputs, most_texts, most_cost, cost, samples, sizes, whole)


@pytest.mark.parametrize("name", ["txt", "jsonl", "txt.gz"])
def test_many_lines_in_ranges(name: str) -> None:
    """Shards fill up at any of their three limits, in ranges and blocks that end anywhere."""
    rng = random.Random(name)
    for _ in range(300):
        kind, _, packed = name.partition(".")
        data = b"".join(rng.choices(SIGNS, k=60)) if kind == "txt" else b"\n".join(rng.choices(ROWS, k=30))
        sizes = {
            "range": rng.randint(1, 200), "block": rng.randint(1, 100), "longest": rng.randint(20, 60),
            "texts": rng.randint(1, 50), "rest": rng.randint(1, 9), "shard": rng.randint(1, 150),
        }  # fmt: skip
        most_cost = rng.choice([rng.randint(0, 60), 1 << 40])
        samples = rng.choice([None, None, rng.randint(0, 40)])
        inputs = [(name, PACK["." + packed if packed else ""](data))]
        check(inputs, rng.randint(1, 20), most_cost, lambda size: size, samples, sizes)


def check(
    inputs: Sequence[tuple[str, bytes]], most_texts: int, most_cost: int, cost: Callable[[int], int], samples: int | None,
    sizes: dict[str, int], whole: bool = False,
) -> None:  # fmt: skip
    """Check that both plans of files are the same.

    sizes: how much is read, measured and cut together.
    """
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for number, (end, data) in enumerate(inputs):
            (Path(folder) / f"{number}-ä.{end}").write_bytes(data)
        for module, name, key in (
            (parallel_plan, "RANGE_BYTES", "range"),
            (parallel_plan, "REST_TEXTS", "rest"),
            (measure, "MOST_TEXTS", "texts"),
            (text_files, "BLOCK", "block"),
            (text_files, "LONGEST", "longest"),
            (plan, "SHARD_BYTES", "shard"),
        ):
            patch.setattr(module, name, sizes[key])
        whole_files = whole and any(end.startswith("txt") for end, _ in inputs)
        corpus = open_corpus(folder, whole_files=whole_files)
        arguments = (corpus, most_texts, min(most_cost, cut.LARGEST), cost, samples)
        assert outcome(lambda: alone(*arguments)) == outcome(lambda: plan.plan(*arguments))


def test_long_texts_and_large_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than the cost table covers, and sums of more than 64 bits."""
    rng = random.Random(0)
    monkeypatch.setattr(parallel_plan, "RANGE_BYTES", 300_000)
    lengths = [rng.choice([0, 3, 70_000, 200_000]) for _ in range(60)]
    (tmp_path / "a.txt").write_text("".join("x" * length + "\n" for length in lengths))
    corpus = open_corpus(tmp_path)
    for cost in (lambda size: size, lambda size: size << 44, lambda size: 1 << 61):
        for most_cost in (250_000, 1 << 61, cut.LARGEST):
            assert list(alone(corpus, 7, most_cost, cost)) == list(plan.plan(corpus, 7, most_cost, cost))


def mixed(folder: Path) -> Corpus:
    """Return a large file that is cut, others that are not, and small ones that are read together."""
    rng = random.Random(1)
    words = ["the", "key", "schlüssel", "日本", "cabinets", "\udcff"]
    lines = [" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(20_000)]
    text = "".join(line + rng.choice(["\n", "\r\n"]) for line in lines).encode("utf-8", "surrogateescape")
    (folder / "a.txt").write_bytes(text)
    (folder / "b.jsonl").write_bytes(b"".join(rng.choice(ROWS) + b"\n" for _ in range(20_000)))
    (folder / "c.csv").write_bytes(b"text,n\n" + b'"two\nlines",1\n' * 5000)
    (folder / "d.txt.gz").write_bytes(gzip.compress(text[:100_000]))
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(3000)]}), folder / "e.parquet")
    for number in range(20):
        (folder / f"f{number:02}.txt").write_text("small\n" * number)
    return open_corpus(folder)


def test_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_plan, "RANGE_BYTES", 100_000)
    corpus = mixed(tmp_path)
    for samples in (None, 15_000):
        arguments = (corpus, 500, 1 << 13, lambda size: size, samples)
        expected = list(plan.plan(*arguments))
        assert list(parallel_plan.parallel_plan(*arguments, processes=2)) == expected
    assert not helpers_of(os.getpid())
    with_texts = Reader(corpus)
    assert sum(len(with_texts.texts(shard)) for shard in expected) == 15_000
    with_texts.close()


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("a.txt", b"\xff\xfea\0" + b"\n" * 300, {}),
        ("a.jsonl", b'{"body": "x"}\n' * 300, {}),
        ("a.csv", b"text\nx\n", {"text": "body"}),
        ("a.txt.gz", b"nonsense, and more of it", {}),
        ("a.parquet", b"nonsense", {}),
    ],
)
def test_a_refusal_comes_out_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, options: dict[str, Any]
) -> None:
    """It comes after the texts before it, and not at all if those are enough."""
    monkeypatch.setattr(parallel_plan, "RANGE_BYTES", 100)
    rows = {"text": "body"} if options else {}
    (tmp_path / "0.jsonl").write_bytes(b'{"%s": "x"}\n' % (rows or {"text": "text"})["text"].encode() * 100)
    (tmp_path / name).write_bytes(data)
    corpus = open_corpus(tmp_path, **options)
    arguments = (corpus, 10, 1 << 40, lambda size: size)
    expected = outcome(lambda: plan.plan(*arguments))
    assert expected[1] and outcome(lambda: parallel_plan.parallel_plan(*arguments, processes=2)) == expected
    assert list(parallel_plan.parallel_plan(*arguments, 95, processes=2)) == list(plan.plan(*arguments, 95))
    assert not helpers_of(os.getpid())


def test_an_input_without_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(InputError) as e:
        list(parallel_plan.parallel_plan(open_corpus(tmp_path), 1, 1, len, processes=2))  # type: ignore[arg-type]
    assert str(e.value) == f"{str(tmp_path)!r} has no texts: expected at least one in a.txt"


def test_a_file_that_shrinks_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"line\n" * 100)
    monkeypatch.setattr(parallel_plan, "RANGE_BYTES", 100)
    corpus = open_corpus(path)
    shards = alone(corpus, 10, 1 << 40, lambda size: size)
    next(shards)
    path.write_bytes(b"line\n" * 50)
    with pytest.raises(InputError) as e:
        list(shards)
    assert str(e.value) == (
        "the input changed while it was read: a.txt has fewer texts than at first; start again when nothing writes to it"
    )


def test_how_many_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process if others would start too late, are not allowed, or one file is most of the work."""
    monkeypatch.setattr(parallel_plan, "cores", lambda: 16)
    monkeypatch.setattr(parallel_plan, "SMALL_BYTES", 1000)
    monkeypatch.setattr(parallel_plan, "crew", lambda tool, load, workers: 1 / 0)
    (tmp_path / "a.txt").write_bytes(b"line\n" * 300)
    arguments: tuple[Any, ...] = (10, 1 << 40, lambda size: size)

    def starts(samples: int | None = None) -> bool:
        try:
            return not list(parallel_plan.parallel_plan(open_corpus(tmp_path), *arguments, samples))
        except ZeroDivisionError:
            return True

    assert starts() and starts(parallel_plan.SMALL_TEXTS + 1) and not starts(100)
    (tmp_path / "b.csv").write_bytes(b"text\n" + b"line\n" * 400)
    assert not starts()
    (tmp_path / "b.csv").write_bytes(b"text\n" + b"line\n" * 200)
    assert starts()
    monkeypatch.setattr(parallel_plan, "SMALL_BYTES", 1 << 20)
    assert not starts()


def test_texts_are_counted_as_shards_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_plan, "_processes", lambda corpus, samples: 2)
    (tmp_path / "a.txt").write_bytes(b"line\n" * 300)
    counts: list[int] = []
    options: Any = SimpleNamespace(columns=["rollout_L1"], query=None)
    corpus_job.planned(open_corpus(tmp_path), options, None, 100, None, counts.append)
    assert counts == [100, 200, 300]


def test_workers_are_light() -> None:
    """Workers that read lines import neither models nor tables."""
    load = partial(eval, "__import__('attnflow.corpus.parallel_plan') and __import__('sys').modules")
    names = ("attnflow.corpus.measure", "torch", "transformers", "pyarrow", "attnflow._core._native")
    with crew({}, load, 2) as do:
        assert list(do.in_order(operator.contains, names)) == [True, False, False, False, False]


def test_results_in_order_are_drawn_as_they_are_needed() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(20):
            drawn.append(number)
            yield number
        raise InputError("no more")

    with crew(1, partial(int, 1), 2) as do:
        results = do.in_order(operator.add, tasks())
        assert next(results) == 1 and len(drawn) == 4
        collected = []
        with pytest.raises(InputError, match="no more"):
            for result in results:
                collected.append(result)
        assert collected == list(range(2, 21))


def test_giving_up_while_results_are_passed() -> None:
    """A worker that left in the middle of a 30 MB result would keep this process waiting for the rest."""
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), crew(b"", partial(bytes, 1), 2) as do:
            next(do.in_order(operator.mul, [30_000_000] * 20))
            raise KeyboardInterrupt
        assert not helpers_of(os.getpid())


SCRIPT = """
import sys
from attnflow.corpus import parallel_plan
from attnflow.texts.sources import open_corpus

print("begun", flush=True)
parallel_plan.RANGE_BYTES = 100_000
for shard in parallel_plan.parallel_plan(open_corpus(sys.argv[1]), 100, 1 << 40, lambda size: size, processes=2):
    print(shard.digest, flush=True)
    if shard.number == int(sys.argv[2]):
        sys.stdin.read()
"""


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    """Workers must not run the script that starts them."""
    (tmp_path / "plan.py").write_text(SCRIPT)
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100_000)
    ended = subprocess.run(
        [sys.executable, tmp_path / "plan.py", tmp_path / "a.txt", "-1"], capture_output=True, text=True, timeout=300
    )
    digests = [shard.digest for shard in plan.plan(open_corpus(tmp_path / "a.txt"), 100, 1 << 40, lambda size: size)]
    assert (ended.stdout.split(), ended.stderr) == (["begun", *digests], "")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "plan.py").write_text(SCRIPT)
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100_000)
    command = [sys.executable, tmp_path / "plan.py", tmp_path / "a.txt", "0"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # a shell starts background jobs, such as these tests, with SIGINT ignored
    with subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n" and process.stdout.readline()
        workers = helpers_of(process.pid)
        assert len(workers) == 2
        process.send_signal(number)
        until(lambda: not processes().keys() & workers, "workers to end", 30)


def test_a_process_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\n" * 100)
    monkeypatch.setattr(parallel_plan, "measure", _die)
    with pytest.raises(JobError) as e:
        list(parallel_plan.parallel_plan(open_corpus(tmp_path), 10, 1 << 40, lambda size: size, processes=2))
    assert str(e.value) == (
        "one of 2 processes that read the input died, usually because memory ran out: run the same again when more "
        "memory is free"
    )


def _die(reader: Reader, portions: Sequence[int | Piece]) -> None:
    os._exit(1)
