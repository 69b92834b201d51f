"""Ways to load a model."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnflow as af
from deployments.cells import Cell, Numbers, Outcome, compared, numbers
from helpers.architectures import LLAMA, POSITIONS, hf, text

GROUP = "Loading"
SHARP = {**LLAMA, "initializer_range": 0.3}
"""Large weights, because uniform attention would be right whatever is loaded."""

DECODER = hf("LlamaForCausalLM", **SHARP)


def truth(model: Any, inputs: dict[str, torch.Tensor] | None = None) -> Numbers:
    """Return what an eager model returns without our hooks, and rollout by its definition."""
    with torch.no_grad():
        out = model.eval()(**(inputs or text()), output_attentions=True)
    layers = [x[0].double().numpy() for x in out.attentions]
    rows, rolled = np.eye(layers[0].shape[-1]), []
    for weights in layers:
        rows = (0.5 * weights.mean(0) + 0.5 * np.eye(len(rows))) @ rows
        rolled.append(rows)
    queries = slice(-1, None) if all(not np.triu(x, 1).any() for x in layers) else slice(None)  # a decoder's last
    values = {f"weights of L{n + 1}": weights for n, weights in enumerate(layers)}
    return {**values, "rollout": np.stack(rolled)[:, queries]}


def loaded(folder: Path, **options: Any) -> Numbers:
    return numbers(af.load(folder, **{"device": "cpu", **options}), text())


def against(folder: Path, **options: Any) -> Outcome:
    """Compare the model in a folder with the one that was saved there."""
    return compared(lambda: loaded(folder, **options), lambda: truth(DECODER("eager")))


def saved(folder: Path, **options: Any) -> Path:
    DECODER().save_pretrained(folder / "model", **options)
    return folder / "model"


def pickled(folder: Path, shards: int = 1, content: dict[str, Any] | None = None) -> Path:
    """Write a folder with PyTorch files instead of safetensors: one, or several with an index."""
    path = saved(folder)
    (path / "model.safetensors").unlink()
    weights = list((DECODER().state_dict() if content is None else content).items())
    if shards == 1:
        torch.save(dict(weights), path / "pytorch_model.bin")
        return path
    files = {}
    for number in range(shards):
        file = f"pytorch_model-{number + 1:05}-of-{shards:05}.bin"
        torch.save(dict(weights[number::shards]), path / file)
        files |= dict.fromkeys((name for name, _ in weights[number::shards]), file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return path


class Code:
    """A pickle that would create a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def with_code(folder: Path, allow_pickle: bool) -> Outcome:
    path = pickled(folder, content={"model.embed_tokens.weight": Code(folder / "ran")})
    outcome = against(path, allow_pickle=allow_pickle)
    assert not (folder / "ran").exists()
    return outcome


def missing_shard(folder: Path) -> Outcome:
    path = saved(folder, max_shard_size="20KB")
    sorted(path.glob("*.safetensors"))[1].unlink()
    return against(path)


def missing_tensors(folder: Path, names: Callable[[str], bool], options: dict[str, Any] | None = None) -> Outcome:
    from safetensors.torch import load_file, save_file

    path = saved(folder)
    file = path / "model.safetensors"
    save_file({n: x for n, x in load_file(file).items() if not names(n)}, file, metadata={"format": "pt"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outcome = against(path)
    if options is not None:
        assert any(options["warning"] in str(w.message) for w in told), [str(w.message) for w in told]
    return outcome


def damaged(folder: Path) -> Outcome:
    file = saved(folder) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    return against(file.parent)


def config_only(folder: Path, *others: str) -> Outcome:
    path = saved(folder)
    (path / "model.safetensors").unlink()
    for name in others:
        (path / name).touch()
    return against(path)


def adapter_only(folder: Path) -> Outcome:
    (folder / "adapter").mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "org/model", "r": 8}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    return against(folder / "adapter")


def own_code(folder: Path) -> Outcome:
    (folder / "own").mkdir()
    (folder / "own" / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}})
    )
    (folder / "own" / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    outcome = against(folder / "own")
    assert not (folder / "ran").exists()
    return outcome


def in_precision(folder: Path, dtype: str) -> Outcome:
    """Load a single-precision checkpoint in another precision, and compare with the eager model in that precision."""
    path = saved(folder)
    oracle = DECODER("eager").to(getattr(torch, dtype))
    return compared(lambda: loaded(path, dtype=dtype), lambda: truth(oracle))


def widened(folder: Path) -> Outcome:
    model = DECODER().to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    oracle = DECODER("eager")
    for parameter in oracle.parameters():  # buffers with position frequencies are in no checkpoint
        parameter.data = parameter.data.bfloat16().float()
    return compared(lambda: loaded(folder / "model", dtype="float32"), lambda: truth(oracle))


def gguf_file(folder: Path, kind: str) -> Outcome:
    from helpers.gguf_files import written
    from helpers.small_tokenizers import byte_level

    sizes = {"intermediate_size": 64, "initializer_range": 0.3}
    model = written(folder / "small.gguf", byte_level(), kind, **sizes)
    return compared(
        lambda: numbers(af.load(folder / "small.gguf", device="cpu", dtype="float32"), text()), lambda: truth(model)
    )


def on_disk(folder: Path) -> Outcome:
    """The upper layer stays on disk and is loaded when it runs."""
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "cpu", "model.rotary_emb": "cpu"}
    places |= {"model.layers.2": "disk", "model.norm": "cpu", "lm_head": "cpu"}
    path = saved(folder)

    def got() -> Numbers:
        model = af.load(path, device=places)
        assert {p.device.type for p in model.model.parameters()} == {"cpu", "meta"}
        return numbers(model, text())

    return compared(got, lambda: truth(DECODER("eager")))


def automatic(folder: Path) -> Outcome:
    path = saved(folder)

    def got() -> Numbers:
        model = af.load(path, device="auto")
        assert model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        return numbers(model, text())

    return compared(got, lambda: truth(DECODER("eager")))


def two_devices(folder: Path) -> Outcome:
    """The upper layers are on a simulated device, whose tensors may not be combined with those of the first."""
    from helpers.places import Places

    model = af.load(saved(folder), device="cpu")

    def got() -> Numbers:
        with Places() as places:
            places.place(model.model, ["model.layers.1", "model.layers.2"])
            values = numbers(model, text())
        assert places.moves > 10
        return values

    return compared(got, lambda: truth(DECODER("eager")))


def encoder(folder: Path) -> Outcome:
    """Load a class with a head by the name in its configuration."""
    build = hf("BertForSequenceClassification", **POSITIONS, initializer_range=0.3, num_labels=3)
    build().save_pretrained(folder / "model")
    return compared(lambda: loaded(folder / "model"), lambda: truth(build("eager")))


PICKLE = "has no safetensors weights: convert it, or give allow_pickle=True"
HEADLESS = {"warning": "lack 'lm_head.weight': these are random"}
GGUF = ("gguf", "accelerate")

CELLS = [
    Cell(GROUP, "safetensors, one file", lambda f: against(saved(f)), within=1e-6),
    Cell(GROUP, "safetensors, several files", lambda f: against(saved(f, max_shard_size="20KB")), within=1e-6),
    Cell(GROUP, "safetensors, a class with a head", encoder, within=1e-6),
    Cell(GROUP, "safetensors, one file of several missing", missing_shard, refusal="lack the file 'model-00002-of-"),
    Cell(GROUP, "safetensors, cut off", damaged, refusal="are damaged"),
    Cell(
        GROUP, "weights without those of a layer", partial(missing_tensors, names=lambda name: "layers.1." in name),
        refusal="tensors of its layers, such as 'model.layers.1.", note="transformers would draw them at random",
    ),
    Cell(
        GROUP, "weights without the head of the class",
        partial(missing_tensors, names=lambda name: name == "lm_head.weight", options=HEADLESS), within=1e-6,
        note="with a warning: the layers are right, the head is random",
    ),
    Cell(GROUP, "`.bin`", lambda f: against(pickled(f)), refusal=PICKLE),
    Cell(GROUP, "`.bin`, several files", lambda f: against(pickled(f, 3)), refusal=PICKLE),
    Cell(GROUP, "`.bin`, `allow_pickle`", lambda f: against(pickled(f), allow_pickle=True), within=1e-6),
    Cell(GROUP, "`.bin`, several files, `allow_pickle`", lambda f: against(pickled(f, 3), allow_pickle=True), within=1e-6),
    Cell(GROUP, "`.bin` with code in it", partial(with_code, allow_pickle=False), refusal=PICKLE),
    Cell(
        GROUP, "`.bin` with code in it, `allow_pickle`", partial(with_code, allow_pickle=True),
        refusal="contain code, which attnflow does not run: use a safetensors version of the model",
    ),
    Cell(GROUP, "a folder with only a config", config_only, refusal="has a config.json and no weights"),
    Cell(
        GROUP, "a folder with TensorFlow weights", lambda f: config_only(f, "tf_model.h5"),
        refusal="no weights but tf_model.h5: expected model.safetensors",
    ),
    Cell(
        GROUP, "a folder with only an adapter (PEFT)", adapter_only,
        refusal="contains an adapter for another model (adapter_config.json): merge the two with peft",
    ),
    Cell(GROUP, "a model with its own code", own_code, refusal="read that code, then give trust_remote_code=True"),
    *(
        Cell(
            GROUP, f"GGUF, {kind}", partial(gguf_file, kind=kind), within=1e-5, needs=GGUF,
            note="the weights as the gguf package dequantises them",
        )
        for kind in ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_0")
    ),
    Cell(GROUP, "`dtype=\"float32\"` of a bfloat16 checkpoint", widened, within=1e-6),
    Cell(GROUP, "`dtype=\"float64\"`", partial(in_precision, dtype="float64"), within=1e-6),
    Cell(GROUP, "`dtype=\"float16\"`", partial(in_precision, dtype="float16"), within=1e-2, note="eager in float16"),
    Cell(GROUP, "`dtype=\"bfloat16\"`", partial(in_precision, dtype="bfloat16"), within=5e-2, note="eager in bfloat16"),
    Cell(GROUP, "`device=\"auto\"`", automatic, within=1e-6, needs=("accelerate",)),
    Cell(GROUP, "a device map, a layer on disk", on_disk, within=1e-6, needs=("accelerate",)),
    Cell(GROUP, "a device map, two devices", two_devices, within=1e-6, note="the second device is simulated"),
]  # fmt: skip
