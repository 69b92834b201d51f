"""The output of a job: parts that are written whole, and the manifest that says which of them are done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnflow.cli.options import make_folder
from attnflow.corpus.plan import Part
from attnflow.corpus.schema import arrow
from attnflow.errors import InputError
from attnflow.files import BESIDE, write_whole

MANIFEST = "_manifest.jsonl"
FORMAT = "attnflow.corpus"
VERSION = 1

FIELDS = {"part", "row", "texts", "tokens", "errors", "digest", "bytes", "sha256"}

Record = dict[str, Any]
"""A line of the manifest: a part that is done."""


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06}.parquet"


def write_part(folder: Path, part: Part, table: Any) -> Record:
    """Writes a part under another name, syncs and renames it; returns its line of the manifest."""
    arrow()
    from pyarrow import parquet

    counted: dict[str, int] = {}
    for kind in table["error"].to_pylist():
        if kind is not None:
            counted[kind] = counted.get(kind, 0) + 1
    lengths = table["tokens"].combine_chunks().value_lengths().drop_null()
    path = part_path(folder, part.number)
    told: Record = {}

    def write(beside: Path) -> None:
        parquet.write_table(table, beside, compression="zstd", write_page_checksum=True)
        told.update(bytes=beside.stat().st_size, sha256=_sha256(beside))

    write_whole(path, write, sync=True)
    return {
        "part": part.number,
        "row": part.row,
        "texts": part.count,
        "tokens": int(sum(lengths.to_pylist())),
        "errors": dict(sorted(counted.items())),
        "digest": part.digest,
        **told,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Folder:
    """The folder of one job, which nobody else writes to while it is open.

    done: the lines of the parts that are there, by their numbers.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], parts: Mapping[int, Part]) -> None:
        self.path = path
        self.done: dict[int, Record] = {}
        self.finished = False
        make_folder(path)
        first = {"format": FORMAT, "version": VERSION, **settings}
        try:
            self.file = os.open(path / MANIFEST, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise InputError(f"cannot write {str(path / MANIFEST)!r}: {e.strerror or e}") from None
        try:
            _lock(self.file, path)
            lines = _whole_lines(self.file, path)
            if lines:
                _agree(path, lines[0], first)
            own = {part_path(path, number) for number in parts} if lines else set()
            for other in path.glob("part-*.parquet"):
                if other not in own:
                    if not lines:
                        (path / MANIFEST).unlink()  # which was made above
                    raise InputError(
                        f"the folder {str(path)!r} holds {other.name}, which is not of this job: give another folder, or "
                        "remove it"
                    )
            for left in path.glob(BESIDE):  # of a run that was killed while it wrote
                with contextlib.suppress(OSError):
                    left.unlink()
            if not lines:
                self._append(first)
            self._read(lines[1:], parts)
        except BaseException:
            self.close()
            raise

    def _read(self, lines: list[Record], parts: Mapping[int, Part]) -> None:
        for line in lines:
            if "finished" in line:
                self.finished = True
                continue
            if set(line) != FIELDS:
                continue
            number = line["part"]
            part = parts.get(number) if isinstance(number, int) else None
            if part is None or (part.row, part.count, part.digest) != tuple(
                line.get(k) for k in ("row", "texts", "digest")
            ):
                raise InputError(
                    f"the texts of part {number} of {str(self.path)!r} are others than when it was made: the input has "
                    "changed since; give another folder"
                )
            path = part_path(self.path, part.number)
            if path.exists() and path.stat().st_size == line.get("bytes") and _sha256(path) == line.get("sha256"):
                self.done[part.number] = line
        self.finished = self.finished and len(self.done) == len(parts)

    def add(self, record: Record) -> None:
        """A part that is done."""
        self.done[record["part"]] = record
        self._append(record)

    def finish(self) -> Record:
        """The last line of the manifest, which is then in order, whoever made the parts and when."""
        records = [self.done[number] for number in sorted(self.done)]
        errors: dict[str, int] = {}
        for record in records:
            for kind, count in record["errors"].items():
                errors[kind] = errors.get(kind, 0) + count
        last = {
            "finished": True,
            "parts": len(records),
            "texts": sum(record["texts"] for record in records),
            "tokens": sum(record["tokens"] for record in records),
            "errors": dict(sorted(errors.items())),
        }
        if not self.finished:
            lines = _whole_lines(self.file, self.path)
            content = "".join(map(_line, [lines[0], *records, last]))
            write_whole(self.path / MANIFEST, lambda beside: beside.write_text(content, encoding="ascii"), sync=True)
            self.finished = True
        return last

    def _append(self, line: Record) -> None:
        try:
            os.lseek(self.file, 0, os.SEEK_END)
            data = _line(line).encode("ascii")
            while data:
                data = data[os.write(self.file, data) :]
            os.fsync(self.file)
        except OSError as e:
            raise InputError(f"cannot write {str(self.path / MANIFEST)!r}: {e.strerror or e}") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.file)  # and with it the lock


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _whole_lines(file: int, path: Path) -> list[Record]:
    """The lines of a manifest. What a killed run left half written at its end is cut off; what is none is left alone."""
    with os.fdopen(os.dup(file), "rb") as held:
        held.seek(0)
        data = held.read()
    found: list[Record] = []
    good = 0
    for line in data.splitlines(keepends=True):
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not line.endswith(b"\n") or not isinstance(one, dict):
            break
        found.append(one)
        good += len(line)
    begins = _line({"format": FORMAT})[:-2].encode()  # of a first line, which may be half there
    if not data.startswith(begins[: len(data)]):
        raise InputError(f"{str(path / MANIFEST)!r} is no manifest of attnflow corpus: give another folder")
    if good < len(data):
        os.ftruncate(file, good)
    return found


def _agree(path: Path, held: Record, wanted: Mapping[str, Any]) -> None:
    """Refuses to go on with other settings than a job was begun with; where model and input lie may differ."""
    if held.get("version") != VERSION:
        raise InputError(f"{str(path)!r} was made by another version of attnflow: give another folder")
    differ = []
    for name in dict.fromkeys([*wanted, *held]):
        now, then = wanted.get(name), held.get(name)
        if name not in ("model", "revision", "gguf_file", "input") and now != then:
            plain = not any(isinstance(x, dict) for x in (now, then)) and name not in ("weights", "configuration")
            differ.append(f"{name} {_shown(then)}, now {_shown(now)}" if plain else f"other {name}")
    if differ:
        raise InputError(
            f"the folder {str(path)!r} holds a job of other settings ({'; '.join(differ)}): give the same, or "
            "another folder"
        )


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def state(path: Path) -> str | None:
    """Of a folder, before anything is loaded: None, "begun" or "finished"."""
    if (path / MANIFEST).exists() and not (path / MANIFEST).is_file():
        raise InputError(f"{str(path / MANIFEST)!r} is no file: give another folder")
    try:
        with (path / MANIFEST).open("rb") as file:
            last = file.readlines()[-1:]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise InputError(f"cannot read {str(path / MANIFEST)!r}: {e.strerror or e}") from None
    return "finished" if last and b'"finished": true' in last[0] else "begun" if last else None


def finished(path: Path) -> int:
    """Texts in the parts that are done."""
    with contextlib.suppress(OSError, ValueError):
        lines = map(json.loads, (path / MANIFEST).read_text().splitlines())
        return sum(line["texts"] for line in lines if "part" in line)
    return 0


def _lock(file: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two jobs in one folder are not noticed there
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another job is writing to {str(path)!r}: wait for it, or give another folder") from None
    except OSError:  # a file system without locks
        return
