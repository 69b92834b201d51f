"""What a grid keeps on disk: the parts of its stages, and the manifest that says what all of them are of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import attnflow
from attnflow.cli.options import make_folder
from attnflow.errors import InputError
from attnflow.files import write_whole

if TYPE_CHECKING:
    from attnflow.model import Model

FINGERPRINT = "configuration"
PLACES = 997
MANIFEST = "grid-run.json"

Row = dict[str, Any]
Say = Callable[[str], None]


def there(folder: Path, parts: Sequence[tuple[int, ...]], each: int, digest: str, say: Say) -> dict[int, list[Row]]:
    """The parts of a stage that are done, by their numbers; each: rows of one text."""
    make_folder(folder)
    found = {}
    for place, numbers in enumerate(parts):
        path = _path(folder, place)
        rows = _read(path, [number for number in numbers for _ in range(each)], digest) if path.exists() else None
        if rows is not None:
            found[place] = rows
        elif path.exists():
            say(f"{folder.name}: {path.name} is damaged or of another run, and is done again")
    return found


def write(folder: Path, place: int, rows: list[Row], digest: str) -> None:
    pa, parquet = libraries()
    table = pa.Table.from_pylist(rows).replace_schema_metadata({b"attnflow": digest.encode()})
    write_whole(_path(folder, place), lambda beside: parquet.write_table(table, beside, write_page_checksum=True))


def _path(folder: Path, place: int) -> Path:
    return folder / f"{place:05}.parquet"


def _read(path: Path, samples: list[int], digest: str) -> list[Row] | None:
    """None where it is damaged, or holds anything else than these samples of this run."""
    _, parquet = libraries()
    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file, page_checksum_verification=True).read()
        same = table["sample"].to_pylist() == samples and table.schema.metadata[b"attnflow"] == digest.encode()
        return table.to_pylist() if same else None
    except Exception:  # pyarrow has no one type for what a garbled file raises
        return None


def libraries() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("a grid is kept as parquet, by pyarrow: pip install 'attnflow[corpus]'") from None
    return pyarrow, parquet


def manifest_of(
    model: Model, used: Sequence[Any], ids: Sequence[list[int]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    plain = json.dumps(list(used), default=lambda x: torch.as_tensor(x).tolist())
    return {
        "model": model.name,
        "class": type(model.model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "weights": weights_hash(model),
        "texts": _digest(plain),
        "tokens": _digest(list(ids)),
        **settings,
        "attnflow": attnflow.__version__,
        FINGERPRINT: fingerprint(model),
    }


def digest_of(manifest: Mapping[str, Any]) -> str:
    """What parts are marked with; where the model lies may differ."""
    return _digest({name: value for name, value in manifest.items() if name not in ("model", FINGERPRINT)})


def weights_hash(model: Model) -> str:
    """Of names, shapes and sums of bits: whole numbers, so that every device and every order of adding gives the same."""
    told = []
    for name, x in model.model.state_dict().items():
        bits = _bits(x)
        sums = [int(part.sum(dtype=torch.int64)) for part in (bits, bits[::3], bits[: len(bits) // 2])]
        told.append([name, list(x.shape), str(x.dtype), *sums])
    return _digest(told)


def fingerprint(model: Model) -> str:
    """Of what else makes a model: its configuration, its special tokens, and where in a parameter its numbers stand."""
    config = {} if model.config is None else model.config.to_dict()
    own = {name: value for name, value in config.items() if not name.startswith("_") and "version" not in name}
    places = [
        bits[: len(bits) // PLACES * PLACES].view(-1, PLACES).sum(0, dtype=torch.int64).tolist()
        for bits in (_bits(x) for x in model.model.state_dict().values())
    ]
    special = {name: getattr(model.tokenizer, f"{name}_token_id", None) for name in ("unk", "mask", "pad")}
    return _digest(json.loads(json.dumps([own, special, places], default=str)))


def _bits(x: torch.Tensor) -> torch.Tensor:
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().reshape(-1).view(size)


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def agree(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, or checks that the one that is there asks for the same; where the model lies may differ."""
    make_folder(folder)
    path = folder / MANIFEST
    if not path.exists():
        write_whole(path, lambda beside: beside.write_text(json.dumps(manifest, indent=1) + "\n"))
        return
    try:
        held = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, OSError):
        raise InputError(f"{str(path)!r} cannot be read: give another folder") from None
    differ = []
    for name, value in manifest.items():
        if name == FINGERPRINT and name not in held:  # of a folder that was begun before there was one
            continue
        if name != "model" and held.get(name) != value:
            plain = not isinstance(value, list | dict) and name not in ("weights", "texts", "tokens", FINGERPRINT)
            differ.append(f"{name} {held.get(name)!r}, now {value!r}" if plain else f"other {name}")
    if differ:
        raise InputError(
            f"the folder {str(folder)!r} holds a grid of other settings ({'; '.join(differ)}): give another folder"
        )
