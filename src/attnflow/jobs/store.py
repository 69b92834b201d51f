"""The folder of a corpus job: shards, each written atomically, and a manifest that identifies the job.

The manifest is JSON lines: the settings of the job, a record for each finished shard, and a summary when all are
finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError, JobError
from attnflow.files import BESIDE, arrow, make_folder, replace_whole

if TYPE_CHECKING:
    import pyarrow

MANIFEST = "_manifest.jsonl"
FORMAT = "attnflow.corpus"
VERSION = 1
SHARDS = "part-*.parquet"
ELSEWHERE = ("model", "revision", "gguf_file", "input")
"""Settings that say where model and input are stored; these may differ when a job is resumed."""
HASHES = ("weights", "configuration")
"""Settings whose values mean nothing to a reader."""

Record = dict[str, Any]
"""A line of the manifest. For a shard: its contents, and the size and hash of its file."""


def write_shard(path: Path, table: pyarrow.Table) -> Record:
    """Write a shard under a temporary name, sync and rename it. Return the size and hash of the file for its record."""
    _, parquet = arrow()
    record: Record = {}

    def write(beside: Path) -> None:
        parquet.write_table(table, beside, compression="zstd", write_page_checksum=True)
        record.update(bytes=beside.stat().st_size, sha256=_sha256(beside))

    _write(path, write)
    return record


class Store:
    """The folder of one job. It is locked while it is open.

    records: of the finished shards, by file name.
    changed: numbers of shards whose record does not match the plan.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], shards: Mapping[str, Record]) -> None:
        """Open or create the folder. shards: for each file name, what its record must say."""
        self.folder, self.shards = folder, shards
        self.records: dict[str, Record] = {}
        self.changed: list[str] = []
        self.finished = False
        make_folder(folder)
        first: Record = {"format": FORMAT, "version": VERSION, **json.loads(json.dumps(settings))}
        try:
            self.file = os.open(folder / MANIFEST, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            raise InputError(f"cannot write {str(folder / MANIFEST)!r}: {e.strerror or e}") from None
        try:
            lock(self.file, folder)
            lines = self._lines()
            if lines:
                _check_settings(folder, lines[0], first)
            self._check_files(lines)
            self._clear()
            if not lines:
                self._append(first)
            self._read(lines[1:])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_files(self, lines: list[Record]) -> None:
        """Refuse a folder with shards of another job, and leave it unchanged."""
        for path in sorted(self.folder.glob(SHARDS)):
            if not lines or path.name not in self.shards:
                if not lines:
                    (self.folder / MANIFEST).unlink()  # it was created above
                raise InputError(
                    f"the folder {str(self.folder)!r} contains {path.name}, which does not belong to this job: give "
                    "another folder, or remove the file"
                )

    def _read(self, lines: list[Record]) -> None:
        names = {shard["part"]: name for name, shard in self.shards.items()}
        for line in lines:
            if "finished" in line:
                self.finished = True
                continue
            number = line.get("part")
            name = names.get(number) if isinstance(number, int) else None
            if not {*(self.shards[name] if name else ()), "tokens", "errors", "bytes", "sha256"} <= line.keys():
                continue
            if name is None or not self.shards[name].items() <= line.items():
                self.changed.append(str(number))
                continue
            path = self.folder / name
            if path.exists() and path.stat().st_size == line.get("bytes") and _sha256(path) == line["sha256"]:
                self.records[name] = line
        self.finished = self.finished and len(self.records) == len(self.shards)

    def add(self, name: str, record: Record) -> None:
        """Add the record of a shard that `write_shard` has written, here or on another machine."""
        self.records[name] = record
        self._append(record)

    def _clear(self) -> None:
        """Remove temporary files of killed processes."""
        for leftover in self.folder.glob(BESIDE):
            with contextlib.suppress(OSError):
                leftover.unlink()

    def finish(self, sums: Record) -> Record:
        """Finish the manifest with these sums.

        Its records are then in order, no matter when the shards were written.
        """
        self._clear()  # a worker may have died while the job continued
        last = {"finished": True, **sums}
        if not self.finished:
            with (self.folder / MANIFEST).open("rb") as file:
                first = file.readline().decode("ascii")
            records = [self.records[name] for name in self.shards]
            content = first + "".join(map(_line, [*records, last]))
            _write(self.folder / MANIFEST, lambda beside: beside.write_text(content, encoding="ascii"))
            self.finished = True
        return last

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.file)  # releases the lock too

    def _append(self, record: Record) -> None:
        try:
            os.lseek(self.file, 0, os.SEEK_END)
            data = _line(record).encode("ascii")
            while data:
                data = data[os.write(self.file, data) :]
            os.fsync(self.file)
        except OSError as e:
            raise _disk_error(self.folder / MANIFEST, e) from None

    def _lines(self) -> list[Record]:
        """Return the lines of the manifest.

        A half-written last line is cut off; files that are not manifests are left untouched.
        """
        with os.fdopen(os.dup(self.file), "rb") as file:
            file.seek(0)
            data = file.read()
        start = _line({"format": FORMAT})[:-2].encode()  # the first line may be incomplete
        if not data.startswith(start[: len(data)]):
            raise InputError(
                f"{str(self.folder / MANIFEST)!r} is not the manifest of a corpus job: give another folder"
            )
        lines: list[Record] = []
        size = 0
        for line in data.splitlines(keepends=True):
            record = _parsed(line)
            if record is None or not line.endswith(b"\n"):
                break
            lines.append(record)
            size += len(line)
        if size < len(data):
            os.ftruncate(self.file, size)
        return lines


def read_manifest(folder: Path) -> list[Record]:
    """Return the complete lines of a folder's manifest, even while a job writes to it; empty if there is none."""
    path = folder / MANIFEST
    if path.exists() and not path.is_file():
        raise InputError(f"{str(path)!r} is not a file: give another folder")
    try:
        lines = map(_parsed, path.read_bytes().splitlines())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise InputError(f"cannot read {str(path)!r}: {e.strerror or e}") from None
    return [line for line in lines if line is not None]


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _line(record: Record) -> str:
    return json.dumps(record) + "\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        replace_whole(path, write, sync=True)
    except OSError as e:
        raise _disk_error(path, e) from None


def _disk_error(path: Path, e: OSError) -> JobError:
    return JobError(
        f"cannot write {str(path)!r}: {e.strerror or e}; finished shards stay valid: make room, and run the same again"
    )


def _check_settings(folder: Path, stored: Record, current: Record) -> None:
    """Refuse to resume a job with different settings."""
    if stored.get("version") != VERSION:
        raise InputError(f"{str(folder)!r} was written by another version of attnflow: give another folder")
    differences = []
    for name in dict.fromkeys([*current, *stored]):
        now, then = current.get(name), stored.get(name)
        if name not in ELSEWHERE and now != then:
            values = f"different {name}" if name in HASHES else f"{name} {_shown(then)}, now {_shown(now)}"
            differences.append(values)
    if differences:
        raise InputError(
            f"the folder {str(folder)!r} contains a job with different settings ({'; '.join(differences)}): give the "
            "same settings, or another folder"
        )


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def lock(file: int, folder: Path) -> None:
    """Lock an open file, on behalf of its folder, for this process."""
    try:
        import fcntl
    except ImportError:  # Windows: two jobs in one folder are not detected
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another job is writing to {str(folder)!r}: wait for it, or give another folder") from None
    except OSError:  # a file system without locks
        return
