"""Which files an input has: a file, a folder, or a dataset of Hugging Face; and what all readers share."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from attnflow.errors import InputError
from attnflow.files import arrow

LINES = {".txt": "txt", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
TABLES = {".parquet": "parquet", ".arrow": "arrow"}
PACKED: Mapping[str, Callable[[str], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
TEXT = ("text", "sentence", "words")
"""The usual names of a column of texts."""
KNOWN = f"{', '.join(LINES)} (each also {', '.join(PACKED)}), {', '.join(TABLES)}"

SAVED = (("dataset_dict.json",), ("dataset_info.json", "state.json"))
"""What tells a folder that save_to_disk of Hugging Face datasets wrote: of several splits, or of one."""


class Text(NamedTuple):
    """One text of the input. Bytes that are no UTF-8 stand in it as lone surrogates.

    text: None where the row has none. pair: the second text, "" where the row has none; None where no column was named.
    problem: why the row cannot be read, in a sentence. answer: what its own column says, as a pair does.
    """

    id: str
    text: str | None
    pair: str | None = None
    problem: str | None = None
    answer: str | None = None


TextAt = tuple[int, int, Text]
"""A text, behind its offset and its line."""


@dataclass(frozen=True)
class File:
    """path: absolute, since workers may run elsewhere. name: in ids and sentences. packed: .gz, .xz, .bz2 or nothing.

    split: of a file of a Hugging Face dataset. Its rows then have ids as the dataset counts them, from 0 through all of its
    files, `train[17]`; `dataset[17]` where it has no splits. before: rows of the dataset in the files before this one.
    """

    path: str
    name: str
    kind: str
    packed: str = ""
    split: str = ""
    before: int = 0


@dataclass(frozen=True)
class Corpus:
    """An input: its files in order, and which of their columns are read. Small, so that it can travel to workers."""

    path: str
    files: tuple[File, ...]
    text: str | None = None
    id: str | None = None
    pair: str | None = None
    whole_files: bool = False
    answer: str | None = None


def open_corpus(
    path: str | Path,
    *,
    text: str | None = None,
    id: str | None = None,
    pair: str | None = None,
    whole_files: bool = False,
    split: str | None = None,
    answer: str | None = None,
) -> Corpus:
    """The files of an input: a file, a folder, a dataset that Hugging Face datasets saved, or one of its hub (hf://…).

    text, id, pair: columns; by default the usual names of texts, and "id" where there is one. whole_files: a .txt file is
    one text, not one a line. split: of a dataset. answer: the column of the answers, where texts have some. No text is
    read yet.
    """
    path = os.fspath(path)
    if path.startswith("hf:"):
        files = _of_hub(path, split)
    elif any(all((Path(path) / name).is_file() for name in names) for names in SAVED):
        files = _saved(Path(path), split)
    elif split is not None:
        raise InputError(
            f"split={split!r} chooses a split of a Hugging Face dataset, and {path!r} is none: leave it out"
        )
    else:
        files = _files(Path(path))
    lines = next((file for file in files if file.kind == "txt"), None)
    if whole_files and lines is None:
        raise InputError(f"whole_files=True is about .txt files, and there are none in {path!r}: leave it out")
    for argument, name in (("text", text), ("id", id), ("pair", pair), ("answer_column", answer)):
        if name is not None and lines is not None:
            raise InputError(
                f"{argument}={name!r} names a column, and {lines.name} has none: leave it out, or give tables alone"
            )
    return Corpus(path, files, text, id, pair, whole_files, answer)


def file_of(path: Path, name: str) -> File | None:
    """None where the ending is not known."""
    *_, last, end = "", "", *(suffix.lower() for suffix in PurePath(name).suffixes)
    if end in PACKED:
        return File(str(path.absolute()), plain(name), LINES[last], end) if last in LINES else None
    kind = (LINES | TABLES).get(end)
    return None if kind is None else File(str(path.absolute()), plain(name), kind)


def _files(path: Path) -> tuple[File, ...]:
    if path.is_dir():
        below = sorted(_below(path))
        files = tuple(file for name in below if (file := file_of(path / name, name)) is not None)
        if not files:
            raise InputError(f"there is no file to read in the folder {str(path)!r}: expected some that end in {KNOWN}")
        return files
    if not path.exists():
        raise InputError(
            f"there is no file or folder {str(path)!r}: expected texts in a file that ends in {KNOWN}, or a folder of them"
        )
    file = file_of(path, path.name)
    if file is None:
        raise InputError(f"{str(path)!r}: expected a file that ends in {KNOWN}")
    return (file,)


def _below(folder: Path) -> Iterator[str]:
    """The paths of files below a folder, with "/". Linked folders count too; one that leads back to itself, once."""

    def stop(e: OSError) -> None:
        raise InputError(
            f"cannot read the folder {e.filename!r}: {e.strerror}; make it readable, or take it out of the input"
        ) from None

    seen = set()
    for at, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        here = Path(at)
        stats = here.stat()
        if (stats.st_dev, stats.st_ino) in seen:
            folders.clear()
            continue
        seen.add((stats.st_dev, stats.st_ino))
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        for name in names:
            if name[0] not in "._":
                yield (here / name).relative_to(folder).as_posix()


def _saved(folder: Path, split: str | None) -> tuple[File, ...]:
    """The Arrow files that save_to_disk of Hugging Face datasets has written."""
    top, below = folder, ""
    try:
        if (folder / "dataset_dict.json").is_file():
            names = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
            below = _split(names, split, str(folder)) + "/"
            folder = folder / below
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [str(entry["filename"]) for entry in state["_data_files"]]
    except InputError:
        raise
    except Exception as e:  # what is missing or garbled here raises anything
        raise InputError(
            f"{str(folder)!r} is no dataset that can be read ({type(e).__name__}: {first_line(e)}): save it again with "
            "save_to_disk"
        ) from None
    own = below[:-1] or state.get("_split") or ""
    if not below and split is not None:
        _split([own] if own else [], split, str(folder))
    if state.get("_indices_data_files"):
        raise InputError(
            f"{str(folder)!r} is a selection of rows, which is kept beside them: call flatten_indices() before save_to_disk"
        )
    return _numbered([File(str((top / below / name).absolute()), plain(below + name), "arrow") for name in files], own)


def _numbered(files: Sequence[File], split: str) -> tuple[File, ...]:
    """The files of a dataset, which numbers its rows through all of them."""
    befores = accumulate(map(_rows_of, files[:-1]), initial=0)
    return tuple(
        replace(file, split=plain(split or "dataset"), before=n) for file, n in zip(files, befores, strict=False)
    )


def _split(names: Sequence[str], split: str | None, path: str) -> str:
    listed = ", ".join(map(repr, names))
    if split is None:
        if len(names) == 1:
            return names[0]
        raise InputError(f"{path!r} has {len(names)} splits: choose one with split=, of {listed}")
    if split not in names:
        advice = f"expected one of {listed}" if names else "it has none, so leave it out"
        raise InputError(f"{path!r} has no split {split!r}: {advice}")
    return split


def _of_hub(path: str, split: str | None) -> tuple[File, ...]:
    match = re.fullmatch(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/([^/]+))?", path)
    if match is None:
        raise InputError(
            f"{path!r} names no dataset: expected hf://datasets/OWNER/NAME, also with @REVISION or /CONFIG behind it"
        )
    name, revision, config = match.groups()
    return hub_files(path, name, config, revision, split)


def hub_files(path: str, name: str, config: str | None, revision: str | None, split: str | None) -> tuple[File, ...]:
    """The Arrow files that load_dataset of Hugging Face datasets keeps of a dataset, downloaded if need be."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{path!r} is loaded by Hugging Face datasets: pip install datasets") from None
    try:
        dataset: Any = datasets.load_dataset(name, config, revision=revision, split=split)
    except Exception as e:  # of the hub, the network and every format it knows
        raise InputError(f"{path!r} cannot be loaded: {first_line(e)}") from None
    if isinstance(dataset, dict):
        dataset = dataset[_split([str(name) for name in dataset], None, path)]
    own = [Path(entry["filename"]) for entry in dataset.cache_files]
    files = _numbered([File(str(p.absolute()), plain(p.name), "arrow") for p in own], str(dataset.split or ""))
    rows = files[-1].before + _rows_of(files[-1]) if files else 0
    if rows != len(dataset):
        raise InputError(
            f"{path!r} with the split {split!r} has {len(dataset):,} of the {rows:,} rows in its files: expected a whole "
            "split; for its first texts use samples="
        )
    return files


def _rows_of(file: File) -> int:
    pa, _ = arrow("arrow")
    with reading(file), pa.memory_map(checked(file)) as content:
        return sum(batch.num_rows for batch in pa.ipc.open_stream(content))


@contextmanager
def reading(file: File) -> Iterator[None]:
    """Turns whatever goes wrong with a file inside the block into a sentence with its name."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as e:  # gzip, lzma and pyarrow share no base class for what a garbled file raises
        if isinstance(e, OSError) and e.errno and e.strerror:
            raise InputError(
                f"cannot read {file.path!r}: {e.strerror}; make it readable, or take it out of the input"
            ) from None
        raise InputError(
            f"{file.path!r} cannot be read as {file.kind}{file.packed}: {first_line(e)}; mend it, or take it out of the "
            "input"
        ) from None


def checked(file: File) -> str:
    """Its path, if it is a file: reading a pipe would wait for ever, and could not begin in the middle."""
    if not stat.S_ISREG(Path(file.path).stat().st_mode):
        raise InputError(f"cannot read {file.path!r}: expected a file, not a pipe or a device; copy it into a file")
    return file.path


def columns(names: Sequence[str], corpus: Corpus, file: File) -> tuple[str, str | None, str | None]:
    """The columns of text, pair and id; that of the answers, which the corpus names, has to be there too."""
    column(names, corpus.answer, (), file.name, "answer_column", corpus.answer is not None)
    text = cast("str", column(names, corpus.text, TEXT, file.name, "text", True))
    pair = None if corpus.pair is None else column(names, corpus.pair, (), file.name, "pair", True)
    return text, pair, column(names, corpus.id, ("id",), file.name, "id", False)


def column(
    columns: Sequence[str], name: str | None, usual: Sequence[str], file: str, argument: str, needed: bool
) -> str | None:
    """The column that a user names, or the first that has a usual name. file: what the table is called."""
    listed = ", ".join(map(repr, columns))
    if name is not None and name not in columns:
        raise InputError(f"{file} has no column {name!r}: expected one of {listed}")
    chosen = name or next((one for one in usual if one in columns), None)
    if chosen is None and needed:
        raise InputError(
            f"{file} has no column {' or '.join(map(repr, usual))}: name the column of the {argument} with {argument}=, "
            f"one of {listed}"
        )
    return chosen


def plain(text: str) -> str:
    """Ids and sentences are written as they are: what is broken in them is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def decoded(data: bytes) -> str:
    """What is no UTF-8 stays in it, as lone surrogates, so that it is found and told later."""
    return data.decode("utf-8", "surrogateescape")


def some(files: Sequence[File]) -> str:
    names = list(dict.fromkeys(file.name for file in files))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


def first_line(e: Exception) -> str:
    return str(e).splitlines()[0] if str(e) else repr(e)
