"""The file formats of a result, by extension. .json and .npz can be read back; nothing is ever unpickled."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow._arrays import FloatArray
from attnflow.errors import InputError
from attnflow.files import arrow, of_extension, table_text
from attnflow.version import __version__

if TYPE_CHECKING:
    from pandas import DataFrame

    from attnflow.result import TokenAttention

FORMAT = "attnflow.TokenAttention"
ANSWER_FORMAT = "attnflow.Answer"
VERSION = 2
LABELS = ("method", "text", "layers", "queries", "query_tokens", "tokens", "word_ids", "word_texts", "special", "parts",
          "patches", "provenance")  # fmt: skip

DEFLATE = 1100
"""The most bytes that one compressed byte can expand to."""


def labels(result: TokenAttention) -> dict[str, Any]:
    """Return everything but the values, as JSON."""
    fields = {name: getattr(result, name) for name in LABELS}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"format": FORMAT, "version": VERSION, **plain, "dtype": str(result.values.dtype)}


def _read_labels(text: str | bytes | dict[str, Any], path: Path) -> tuple[dict[str, Any], np.dtype[Any]]:
    """Read the arguments of TokenAttention, except the values, and the type of the values."""
    document = text if isinstance(text, dict) else json.loads(text)
    if document["format"] == ANSWER_FORMAT:
        raise InputError(
            f"{str(path)!r} contains a whole answer, with its texts and its matrix: read it as JSON. load() reads what "
            "answer.sources(...).save(...) writes"
        )
    if document["format"] != FORMAT:
        raise ValueError("another format")
    if document["version"] != VERSION:
        raise InputError(
            f"{str(path)!r} has format version {document['version']!r:.20}, and attnflow {__version__} reads version "
            f"{VERSION}: save it again with this attnflow"
        )
    if document["dtype"] not in ("float32", "float64"):
        raise ValueError("another dtype")
    return {name: document[name] for name in LABELS}, np.dtype(document["dtype"])


def plain_numbers(values: FloatArray) -> list[list[list[float | None]]]:
    """Return values [layer, query, input] as lists for JSON: None for NaN."""
    objects: NDArray[np.object_] = values.astype(object)
    objects[np.isnan(values)] = None
    lists: list[list[list[float | None]]] = objects.tolist()
    return lists


def _write_json(result: TokenAttention, path: Path) -> None:
    path.write_text(json.dumps(result.to_dict()) + "\n", encoding="ascii")


def _read_json(path: Path) -> tuple[dict[str, Any], FloatArray]:
    document = json.loads(path.read_text(encoding="utf-8"))
    fields, dtype = _read_labels(document, path)
    return fields, np.array(document["values"], dtype=dtype)


def _write_npz(result: TokenAttention, path: Path) -> None:
    with path.open("wb") as file:  # numpy would append .npz to a path
        np.savez_compressed(file, values=result.values, meta=np.array(json.dumps(labels(result))))


def _read_npz(path: Path) -> tuple[dict[str, Any], FloatArray]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        for name in ("meta", "values"):
            _check_size(archive.zip, f"{name}.npy", path)
        fields, dtype = _read_labels(str(archive["meta"]), path)
        return fields, archive["values"].astype(dtype)


def _check_size(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    """Refuse an array whose header declares more than the file can contain, before allocating memory for it."""
    entry = archive.getinfo(name)
    with archive.open(name) as file:
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    declared = math.prod(shape) * dtype.itemsize
    if declared > entry.file_size or entry.file_size > DEFLATE * path.stat().st_size:
        raise InputError(
            f"{str(path)!r} is damaged or forged: it declares {max(declared, entry.file_size):,} bytes of {name[:-4]}, and "
            f"its {path.stat().st_size:,} bytes cannot hold them"
        )


def _columns(result: TokenAttention) -> dict[str, tuple[int, list[Any]]]:
    """Return the columns of the long table before the value: the axis of each, and its entries along that axis."""
    n = len(result.tokens)
    return {
        "layer": (0, [number + 1 for number in result.layers]),
        "query": (1, list(result.queries)),
        "query_token": (1, [table_text(token) for token in result.query_tokens]),
        "input": (2, list(range(n))),
        "token": (2, [table_text(token) for token in result.tokens]),
        "word": (2, list(result.word_ids)),
        "special": (2, list(result.special)),
        "part": (2, [table_text(part) for part in result.parts] or [""] * n),
    }


def _write_csv(result: TokenAttention, path: Path) -> None:
    columns = _columns(result)
    columns["special"] = 2, [str(special).lower() for special in result.special]
    places = np.indices(result.values.shape).reshape(3, -1).tolist()
    cells = [map(entries.__getitem__, places[axis]) for axis, entries in columns.values()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*columns, "value"))
        numbers = ["" if math.isnan(value) else value for value in result.values.ravel().tolist()]
        writer.writerows(zip(*cells, numbers, strict=True))


def _write_parquet(result: TokenAttention, path: Path) -> None:
    pa, parquet = arrow(".parquet")
    places = np.indices(result.values.shape).reshape(3, -1)
    # the column of a text without any word would have no type
    columns = {
        name: pa.array(entries, pa.int64() if name == "word" else None).take(pa.array(places[axis]))
        for name, (axis, entries) in _columns(result).items()
    }
    table = pa.table({**columns, "value": result.values.ravel()})
    meta = {b"attnflow": json.dumps(labels(result)).encode()}  # with the provenance
    parquet.write_table(table.replace_schema_metadata(meta), path, write_page_checksum=True)


def frame(result: TokenAttention) -> DataFrame:
    """Return the long table as a data frame."""
    try:
        import pandas
    except ImportError:
        raise InputError("to_pandas() needs pandas, which is not installed: pip install pandas") from None
    places = np.indices(result.values.shape).reshape(3, -1)
    # inputs in no word have no number, which int64 cannot express
    columns = {
        name: pandas.Series(entries, dtype="Int64" if name == "word" else None).take(places[axis]).array
        for name, (axis, entries) in _columns(result).items()
    }
    return pandas.DataFrame({**columns, "value": result.values.ravel()})


def damaged(path: Path) -> InputError:
    return InputError(f"{str(path)!r} is damaged or not a result: expected a complete file written by save()")


def read(path: Path) -> tuple[dict[str, Any], FloatArray]:
    """Read the arguments of TokenAttention and the values from a file."""
    reader = of_extension(READERS, path)
    try:
        return reader(path)
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{str(path)!r} declares more values than fit into memory: it is damaged or forged") from None
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: expected a file written by save()") from None
    except Exception as e:  # zip and JSON readers raise unrelated exceptions for garbled files
        if isinstance(e, OSError) and e.strerror:
            raise InputError(f"cannot read {str(path)!r}: {e.strerror}") from None
        raise damaged(path) from None


WRITERS: dict[str, Callable[[TokenAttention, Path], None]] = {
    ".json": _write_json, ".npz": _write_npz, ".csv": _write_csv, ".parquet": _write_parquet,
}  # fmt: skip
READERS: dict[str, Callable[[Path], tuple[dict[str, Any], FloatArray]]] = {".json": _read_json, ".npz": _read_npz}
