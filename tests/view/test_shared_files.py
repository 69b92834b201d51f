"""Saved files may be shared: none contains the path of the model or the texts."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import attnflow as af
from attnflow.corpus import explain_corpus
from attnflow.model import embedded_folder
from attnflow.view import corpus_page
from attnflow.view.comparison import compare
from attnflow.view.explain import explain

TEXT = "the key to the cabinets in the old houses on the hill"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(embedded_folder(), tmp_path / "a private place" / "mine"))


def content(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        # numpy stores text as four bytes per character
        return b"".join(archive.read(name).replace(b"\0", b"") for name in archive.namelist())


def test_no_saved_format_tells_the_folder_of_the_model(folder: Path, tmp_path: Path) -> None:
    model = af.load(folder)
    out = tmp_path / "out"
    out.mkdir()
    result, comparison = model.trace(TEXT).rollout("[CLS]"), compare(model, TEXT)
    for extension in ("json", "npz", "csv", "parquet", "html", "svg", "pdf", "png"):
        result.save(out / f"result.{extension}")
    for extension in ("json", "csv", "svg", "pdf", "png"):
        comparison.save(out / f"comparison.{extension}")
    explain(model, TEXT).save(out / "page.html")
    texts = tmp_path / "a private place" / "texts.txt"
    texts.write_text(f"{TEXT}\nthe keys\n")
    explain_corpus(texts, out / "corpus", str(folder), methods=("raw", "rollout"))
    corpus_page.write(out / "corpus")
    saved: dict[str, Any] = {path.name: content(path) for path in out.rglob("*") if path.is_file()}
    assert len(saved) == 17
    for name, data in saved.items():
        assert name == "_manifest.jsonl" or b"a private place" not in data, name
        if name.endswith(("json", "npz", "csv", "html", "jsonl")) and name not in ("comparison.csv", "result.csv"):
            assert b"mine" in data, name
    assert str(folder).encode() not in saved["_manifest.jsonl"]  # it has the path of the texts, for --resume
