"""A GGUF file loads the model that was written, is read once, and shows no progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import attnflow as af
from helpers.small_tokenizers import byte_level

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from transformers import modeling_gguf_pytorch_utils as reading  # noqa: E402

from helpers.gguf_files import written  # noqa: E402


def test_the_model_that_was_written_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_level()
    model = written(tmp_path / "small.gguf", tokenizer)
    reader, tables, bars = gguf.GGUFReader, gguf.get_tensor_name_map, reading.tqdm
    calls: list[str] = []

    def counted(name: str, task: Any) -> Any:
        return lambda *words: calls.append(name) or task(*words)

    monkeypatch.setattr(gguf, "GGUFReader", counted("file", reader))
    monkeypatch.setattr(gguf, "get_tensor_name_map", counted("table", tables))
    loaded = af.load(tmp_path / "small.gguf", dtype="float32")
    assert sorted(calls) == ["file", "table"]
    assert capfd.readouterr() == ("", "")
    assert reading.tqdm is bars
    own = model.state_dict()
    assert all(torch.equal(weight, own[name]) for name, weight in loaded.model.state_dict().items())
    text = "The keys to the cabinet"
    assert loaded.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]
    trace = loaded.trace(text)
    assert trace.tokens == af.wrap(model, tokenizer).trace(text).tokens
    af.load(tmp_path / "small.gguf")
    assert calls.count("file") == 2  # nothing is cached between loads: the file may have changed


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    written(tmp_path / "small.gguf", byte_level())
    whole = (tmp_path / "small.gguf").read_bytes()
    (tmp_path / "small.gguf").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(af.InputError, match=r"the file '.*small\.gguf' is damaged or not in GGUF format"):
        af.load(tmp_path / "small.gguf")
