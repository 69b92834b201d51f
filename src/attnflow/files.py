"""Writing files whole or not at all, and what the formats of this package share."""

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
"""The name of a file that is being written."""

PICTURES = (".svg", ".pdf", ".png")

T = TypeVar("T")


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """As `replace_whole`, for a file that a user has named: what goes wrong is an InputError."""
    try:
        replace_whole(path, write)
    except InputError:
        raise
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        raise InputError(f"cannot write {str(path)!r}: {getattr(e, 'strerror', None) or e}") from None


def replace_whole(path: Path, write: Callable[[Path], Any], sync: bool = False) -> None:
    """Let `write` write beside `path`, then rename: a reader sees the old file or the new one, never half of one.

    sync: what was written is on the disk before it has its name, and has its name before this returns.
    """
    # beside the target, because a rename is atomic only within one file system; where a link leads, not in its place
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
        with contextlib.suppress(OSError, ValueError):  # gone already, or never there
            beside.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot make the folder {str(folder)!r}: {e.strerror or e}") from None


def synced(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # where folders cannot be opened, and need not be
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def of_extension(table: Mapping[str, T], path: Path) -> T:
    """The entry of a file's extension."""
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
    """pyarrow and pyarrow.parquet. kind: what needs them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{kind} needs pyarrow: pip install 'attnflow[corpus]'") from None
