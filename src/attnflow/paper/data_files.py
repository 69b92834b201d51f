"""The files of the paper's data: where they are, their columns, and the set that can be downloaded.

A data folder has the files of `FILES`, each plain, .xz or .gz, directly or in one of its subfolders.
"""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attnflow.errors import InputError
from attnflow.files import make_folder, write_whole
from attnflow.texts.strict import read_rows

FILES = {
    "agreement": ("agreement.tsv", "agr_50_mostcommon_10K.tsv"),
    "more": ("agreement-more.tsv",),
    "text": ("text.train.txt",),
    "sst2": ("test.tsv",),
}
Labelled = tuple[Sequence[str], Sequence[int]]
"""Sentences and their classes."""
ENDINGS = ("", ".xz", ".gz")
LINZEN_URLS = (
    "https://www.dropbox.com/s/5axdu3q9jkxzjy8/agr_50_mostcommon_10K.tsv.gz?dl=1",
    "http://tallinzen.net/media/rnn_agreement/agr_50_mostcommon_10K.tsv.gz",
)


def find(data: Path | None, name: str) -> Path | None:
    """Return the path of an entry of `FILES` in a data folder, or None.

    A path that is not a folder is the agreement file.
    """
    if data is None or not data.is_dir():
        return data if name == "agreement" else None
    folders = (data, *sorted(path for path in data.iterdir() if path.is_dir()))
    paths = (folder / (file + ending) for folder in folders for file in FILES[name] for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def agreement_file(data: Path | None, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the file of verb-number examples; without data, download the published set into the folder `cache`."""
    if data is None:
        file, digest = download_linzen(cache)
        say(f"{file}: SHA-256 {digest}")
        return file
    if not data.exists():
        raise InputError(f"there is no {str(data)!r}: expected a folder with the data, or a file of examples")
    path = find(data, "agreement")
    if path is None:
        raise InputError(f"the folder {str(data)!r} contains none of {', '.join(FILES['agreement'])} (or .xz, .gz)")
    return path


def folder_of(data: Path | None, name: str) -> Path:
    """Return the folder that contains an entry of `FILES`."""
    file = FILES[name][0]
    if data is None:
        raise InputError(f"give data=, a folder that contains {file} (or .xz, .gz)")
    if not data.is_dir():
        raise InputError(f"there is no folder {str(data)!r}: expected a folder that contains {file} (or .xz, .gz)")
    path = find(data, name)
    if path is None:
        raise InputError(f"the folder {str(data)!r} does not contain {file} (or .xz, .gz)")
    return path.parent


def data_file(folder: str | Path, name: str) -> Path:
    """Return the file of that name in the folder, plain, .xz or .gz."""
    for ending in ENDINGS:
        if (Path(folder) / f"{name}{ending}").is_file():
            return Path(folder) / f"{name}{ending}"
    raise InputError(
        f"the folder {str(folder)!r} does not contain {name}, {name}.xz or {name}.gz: give the folder that does"
    )


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file, or of the files of a folder in the order of their names."""
    path = Path(path)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]:
        try:
            digest.update(file.read_bytes())
        except OSError as e:
            why = "there is no such file" if isinstance(e, FileNotFoundError) else f"it cannot be read ({e})"
            raise InputError(f"{str(file)!r}: {why}; give the path of the data") from None
    return digest.hexdigest()


def rows_of(path: Path, columns: Sequence[str], quoting: int | None = None) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the rows of a tab-separated file that has these columns, each with its place for messages."""
    for where, row in read_rows(path, "tsv", quoting):
        missing = [name for name in columns if name not in row]
        if missing:
            raise InputError(
                f"{str(path)!r} has no column {', '.join(map(repr, missing))}: it has {', '.join(map(repr, row))}; "
                "expected tab-separated columns, named in the first line"
            )
        yield where, row


def read_sst2(path: Path) -> Labelled:
    """Read sentences and labels, 0 (negative) or 1 (positive), from a tab-separated file."""
    sentences, labels = [], []
    for where, row in rows_of(path, ("sentence", "label")):
        if row["label"] not in ("0", "1"):
            raise InputError(f"{where}: label is {row['label']!r}; expected 0 (negative) or 1 (positive)")
        if not row["sentence"].strip():
            raise InputError(f"{where}: the sentence is empty; expected at least one word")
        sentences.append(row["sentence"].strip())
        labels.append(int(row["label"]))
    if len(set(labels)) < 2:
        raise InputError(f"{str(path)!r} has {len(labels)} lines of only one class: expected both 0 and 1")
    return sentences, labels


def download_linzen(
    to: str | Path, *, sha256: str | None = None, urls: Sequence[str] = LINZEN_URLS
) -> tuple[Path, str]:
    """Download the published file into the folder `to`; return its path and its SHA-256.

    The SHA-256 is checked if one is given; the authors published none.
    """
    path = Path(to) / "agr_50_mostcommon_10K.tsv.gz"
    make_folder(path.parent)
    data = path.read_bytes() if path.is_file() else _download(urls)
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        raise InputError(f"the file from {urls[0]} has the SHA-256 {digest}: expected {sha256}; download it again")
    if not path.is_file():
        write_whole(path, lambda beside: beside.write_bytes(data))
    return path, digest


def _download(urls: Sequence[str]) -> bytes:
    failures = []
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data: bytes = answer.read()
        except (OSError, ValueError) as e:  # urllib's own errors are OSErrors
            failures.append(f"{url} ({getattr(e, 'reason', e)})")
            continue
        if data[:2] == b"\x1f\x8b":
            return data
        failures.append(f"{url} (it sent a page, not a gzip file)")
    raise InputError(
        f"the Linzen file cannot be downloaded from {' or '.join(failures)}: connect to the network, or download "
        "agr_50_mostcommon_10K.tsv.gz elsewhere and give its path"
    )
