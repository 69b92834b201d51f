"""The folder of a job: finished work stays, and nothing from another job is mixed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="shards are parquet files")

from attnflow.errors import InputError, JobError  # noqa: E402
from attnflow.jobs import store as stores  # noqa: E402
from attnflow.jobs.store import MANIFEST, Store, read_manifest, write_shard  # noqa: E402

SHARDS = {f"part-{k:06}.parquet": {"part": k, "texts": 1} for k in range(3)}


def opened(folder: Path, settings: dict[str, Any] | None = None, shards: Any = SHARDS) -> Store:
    return Store(folder, {"samples": 9, **(settings or {})}, shards)


def write(store: Store, *numbers: int) -> None:
    for k in numbers:
        name = f"part-{k:06}.parquet"
        file = write_shard(store.folder / name, pa.table({"n": [k]}))
        store.add(name, {**SHARDS[name], "tokens": 5, "errors": {}, **file})


def refused(folder: Path, **options: Any) -> str:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as e:
        opened(folder, **options)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(e.value)


def test_a_job_is_resumed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, 2, 0)
    (tmp_path / ".attnflow-0123456789ab.tmp").write_bytes(b"half")
    with (tmp_path / MANIFEST).open("a") as file:
        file.write('{"part": 1, "tex')
    with opened(tmp_path) as store:
        assert list(store.records) == ["part-000002.parquet", "part-000000.parquet"]
        write(store, 1)
        (tmp_path / ".attnflow-ba9876543210.tmp").write_bytes(b"half")  # left by a dead worker
        assert store.finish({"numbers": 3}) == {"finished": True, "numbers": 3}
    settings, *records, last = read_manifest(tmp_path)
    assert settings == {"format": "attnflow.corpus", "version": 1, "samples": 9}
    assert [record["part"] for record in records] == [0, 1, 2] and last["finished"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, *SHARDS]
    with opened(tmp_path) as store:
        assert store.finished


def test_a_damaged_shard_is_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, 0, 1)
    path = tmp_path / "part-000001.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with opened(tmp_path) as store:
        assert list(store.records) == ["part-000000.parquet"]
        write(store, 1)
    with opened(tmp_path) as store:
        assert len(store.records) == 2


def test_a_shard_of_other_contents_is_known(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, 0, 1)
    with opened(tmp_path, shards={**SHARDS, "part-000001.parquet": {"part": 1, "texts": 2}}) as store:
        assert store.changed == ["1"]


def test_refusals(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, 0)
        assert refused(tmp_path) == f"another job is writing to {str(tmp_path)!r}: wait for it, or give another folder"
    assert refused(tmp_path, settings={"samples": 8, "weights": "ab"}) == (
        f"the folder {str(tmp_path)!r} contains a job with different settings (samples 9, now 8; different weights): give "
        "the same settings, or another folder"
    )
    (tmp_path / "part-000007.parquet").write_bytes(b"of somebody else")
    assert refused(tmp_path) == (
        f"the folder {str(tmp_path)!r} contains part-000007.parquet, which does not belong to this job: give "
        "another folder, or remove the file"
    )
    lines = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(lines.replace('"version": 1', '"version": 2'))
    assert refused(tmp_path) == f"{str(tmp_path)!r} was written by another version of attnflow: give another folder"
    (tmp_path / MANIFEST).write_text(lines.replace("attnflow.corpus", "attnflow.grid"))
    assert refused(tmp_path) == f"{str(tmp_path / MANIFEST)!r} is not the manifest of a corpus job: give another folder"


def test_a_full_disk_is_the_fault_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as store:
        write(store, 0)
        monkeypatch.setattr(stores, "replace_whole", full)
        with pytest.raises(JobError, match=r"000001.parquet': No space left on device; finished shards stay valid"):
            write(store, 1)
    with opened(tmp_path) as store:
        assert list(store.records) == ["part-000000.parquet"]
