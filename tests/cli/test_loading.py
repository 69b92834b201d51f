"""Errors for models that cannot be loaded: one sentence that names the command's options."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deployments.loading_cells import adapter_only, config_only, damaged, missing_shard, own_code, pickled
from deployments.quantised_cells import METHODS, library, unknown
from helpers.small_models import classifier, model_folder
from helpers.small_tokenizers import wordpiece

Command = Callable[..., Any]

BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "PyTorch files": (pickled, "model", "convert it, or give allow_pickle=True to read its PyTorch files"),
    "a config alone": (config_only, "model", "has a config.json and no weights: expected model.safetensors"),
    "an adapter alone": (adapter_only, "adapter", "merge the two with peft"),
    "a shard missing": (missing_shard, "model", "lack the file 'model-00002-of-"),
    "a file cut off": (damaged, "model", "are damaged"),
    "code of its own": (own_code, "own", "read that code, then give trust_remote_code=True"),
    "GPTQ": (lambda f: library(f, METHODS["GPTQ"]), "", "quantised by gptq, which transformers cannot load here"),
    "an unknown method": (unknown, "", "which would be random: download all of its files"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_sentence(attnflow: Command, tmp_path: Path, name: str) -> None:
    make, folder, sentence = BROKEN[name]
    make(tmp_path)
    printed = attnflow("show", "a text", "-m", str(tmp_path / folder), status=2)
    assert sentence in printed.err and "Traceback" not in printed.err
    assert printed.err.startswith("attnflow: ") and printed.err.count("\n") == 1 and not printed.out


@pytest.fixture
def pytorch_folder(tmp_path: Path) -> Path:
    path = model_folder(tmp_path / "m", classifier(), wordpiece())
    torch.save(classifier().state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


def test_allow_pickle_of_every_command(attnflow: Command, tmp_path: Path, pytorch_folder: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("text\nthe key to the cabinet\nthe key is rusty\n")
    source = ("-m", str(pytorch_folder))
    for words in (
        ("show", "the key", *source),
        ("compare", "the key", *source),
        ("evaluate", str(texts), *source, "--importance", "gradient", "--views", "raw"),
        ("corpus", "run", str(texts), str(tmp_path / "out"), *source, "--method", "raw", "--method", "rollout"),
    ):
        assert "give allow_pickle=True to read" in attnflow(*words, status=2).err
        attnflow(*words, "--allow-pickle")


def test_every_command_that_loads_a_model_has_the_option(attnflow: Command) -> None:
    for words in (
        ("show",),
        ("compare",),
        ("answer",),
        ("serve",),
        ("evaluate",),
        ("corpus", "run"),
    ):
        assert "--allow-pickle" in attnflow(*words, "--help").out


def test_device_auto(attnflow: Command, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="device maps are accelerate's")
    path = str(model_folder(tmp_path / "m", classifier(), wordpiece()))
    values = [
        json.loads(attnflow("show", "the key", "-m", path, "--device", device, "--method", "rollout", "--json").out)
        for device in ("auto", "cpu")
    ]
    if not torch.cuda.is_available():
        assert values[0]["values"] == values[1]["values"]


def test_notices_of_other_libraries_stay_out(attnflow: Command) -> None:
    attnflow("show", "the key")
    assert logging.getLogger("torchao").level == logging.getLogger("bitsandbytes").level == logging.ERROR
