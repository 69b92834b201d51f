"""Writing files whole or not at all, and what the file formats of this package share."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from attnflow.errors import InputError

BESIDE = ".attnflow-*.tmp"
"""The name pattern of a file that is being written."""

PICTURES = (".svg", ".pdf", ".png")

FILE_NAMES = (
    *PICTURES, ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".json", ".jsonl", ".txt", ".md", ".html", ".npz", ".xlsx",
    ".gz", ".bz2", ".xz", ".zip", ".tar", ".db", ".duckdb",
)  # fmt: skip
"""Extensions that nobody gives a folder."""

T = TypeVar("T")


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write like `replace_whole` a file that a user has named; failures raise InputError."""
    try:
        replace_whole(path, write)
    except InputError:
        raise
    except (OSError, ValueError) as e:  # ValueError: an invalid file name
        raise InputError(f"cannot write {str(path)!r}: {getattr(e, 'strerror', None) or e}") from None


def check_folder_name(path: Path, contents: str, advice: str) -> None:
    """Refuse a new folder whose name is that of a file, which a user expects instead.

    contents: what will be in the folder. advice: how to get a file.
    """
    if path.suffix.lower() in FILE_NAMES and not path.exists():
        name = str(path.with_suffix(""))
        raise InputError(
            f"the output {str(path)!r} would be a folder of {contents}: give a folder, such as {name!r}; {advice}"
        )


def check_writable(path: Path) -> None:
    """Check before long work that a file can be written later: its folder exists and is writable."""
    target = path.resolve() if path.is_symlink() else path
    folder = target.parent
    if target.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {str(folder)!r}"
    elif not target.exists() and not os.access(folder, os.W_OK):
        reason = f"the folder {str(folder)!r} is not writable"
    else:
        return
    raise InputError(f"cannot write {str(path)!r}: {reason}; choose another path")


def replace_whole(path: Path, write: Callable[[Path], Any], sync: bool = False) -> None:
    """Let `write` write a temporary file next to `path`, then rename it: readers see the old or the new file, never half.

    sync: flush the file to disk before the rename, and the rename before returning.
    """
    # in the same folder, because a rename is atomic only within one file system; a link is followed, not replaced
    target = path.resolve() if path.is_symlink() else path
    beside = target.with_name(BESIDE.replace("*", os.urandom(6).hex()))
    try:
        if target.exists() and not (target.is_file() or target.is_dir()):
            write(target)  # a device or a pipe is written to, not replaced
            return
        write(beside)
        if sync:
            synced(beside)
        beside.replace(target)
        if sync:
            synced(target.parent)
    finally:
        with contextlib.suppress(OSError, ValueError):  # already gone, or never there
            beside.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot create the folder {str(folder)!r}: {e.strerror or e}") from None


def synced(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders, and does not need to
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def of_extension(table: Mapping[str, T], path: Path) -> T:
    """Return the entry for a file's extension."""
    try:
        return table[path.suffix.lower()]
    except KeyError:
        raise InputError(
            f"{str(path)!r} has the extension {path.suffix!r}: expected one of {', '.join(table)}"
        ) from None


def table_text(text: str) -> str:
    """Escape what other programs cannot read: UTF-8 has no lone surrogates, and many readers stop at NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def arrow(kind: str = "parquet") -> tuple[ModuleType, ModuleType]:
    """Return pyarrow and pyarrow.parquet. kind: what needs them, for the error message."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{kind} needs pyarrow: pip install 'attnflow[corpus]'") from None
