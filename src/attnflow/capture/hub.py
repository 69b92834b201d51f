"""Loading models as the hub's users expect: an id or a path, caches and offline mode respected, nothing unpickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch

from attnflow.errors import InputError

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")

_ONE_GGUF = Lock()


class Loaded(NamedTuple):
    """What a folder or the hub gave. revision: None for a folder."""

    model: torch.nn.Module
    processor: Any
    name: str
    revision: str | None


def fetch(
    model: str | Path,
    revision: str | None,
    device: str | None,
    dtype: str,
    trust_remote_code: bool,
    safetensors: bool,
    gguf_file: str | None,
) -> Loaded:
    """The model, its processor and its name: arguments as in `attnflow.load`."""
    from transformers.utils import logging

    if not isinstance(model, str | Path) or not str(model):
        raise InputError(
            f"model={model!r}: expected a folder or a hub id, such as 'bert-base-uncased'; wrap() takes a model object"
        )
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r}: expected one of {', '.join(map(repr, DTYPES))}")
    place = device_of(device)
    name = str(model)
    if gguf_file is None and name.endswith(".gguf") and Path(name).is_file():
        name, gguf_file = str(Path(name).parent), Path(name).name
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        if Path(name).is_dir() and not (Path(name) / gguf_file).is_file():
            raise InputError(f"the folder {name!r} has no file {gguf_file!r}")
        options["gguf_file"] = gguf_file
    elif Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        gguf = sorted(p.name for p in Path(name).glob("*.gguf"))
        hint = f"; for the GGUF file in it, give gguf_file={gguf[0]!r}" if gguf else ""
        raise InputError(f"the folder {name!r} has no config.json: expected a folder that save_pretrained wrote{hint}")
    elif Path(name).is_file():
        raise InputError(f"{name!r} is a file: expected the folder of a model, or a hub id")
    elif not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise InputError(
            f"there is no folder {name!r}: expected the folder of a model, or a hub id such as 'bert-base-uncased'"
        )
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with nullcontext() if gguf_file is None else gguf_read_once():
            loaded, processor, config = _from_pretrained(name, options, dtype, safetensors)
    finally:
        if shown:
            logging.enable_progress_bar()
    local = Path(name).is_dir()
    known = name_of(str(Path(name) / gguf_file) if local and gguf_file else name)
    revision = None if local else revision or getattr(config, "_commit_hash", None)
    return Loaded(loaded.to(place), processor, known, revision)


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """transformers reads a GGUF file once inside the block, and without a bar.

    By itself it reads the whole file, vocabulary and all, for the config, the tokenizer and the weights, and makes the
    table of tensor names anew for every module of the model: two thirds of the time of a small model.
    """
    try:
        import gguf
        from transformers import modeling_gguf_pytorch_utils as reading
    except ImportError:  # transformers says what is missing
        yield
        return
    changes: dict[tuple[Any, str], Callable[[Any], Any]] = {
        (gguf, "GGUFReader"): cache,
        (gguf, "get_tensor_name_map"): cache,
        (reading, "tqdm"): lambda bar: lambda tensors, **_: tensors,
    }
    with _ONE_GGUF:  # modules belong to all threads: one that comes later must not take the changes for the originals
        originals = {place: getattr(*place) for place in changes if hasattr(*place)}
        try:
            for place, original in originals.items():
                setattr(*place, changes[place](original))
            yield
        finally:
            for place, original in originals.items():
                setattr(*place, original)


def name_of(source: str) -> str:
    """How results name a model: a hub id as it is, a folder or a file by its last part. Where it lies is not for sharing.

    >>> name_of("org/model"), name_of("/home/me/run-7/checkpoint-1000")
    ('org/model', 'checkpoint-1000')
    """
    local = Path(source)
    if not source or not (local.exists() or local.is_absolute() or source[0] in ".~" or len(local.parts) > 2):
        return source
    return (local if local.name not in ("", "..") else local.resolve()).name or source


def _from_pretrained(name: str, options: dict[str, Any], dtype: str, safetensors: bool) -> tuple[Any, Any, Any]:
    import transformers
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(name, **options)
        cls = _class_of(transformers, config, options["trust_remote_code"])
        arguments = {k: v for k, v in options.items() if k != "trust_remote_code" or cls.__name__.startswith("Auto")}
        if not cls.__name__.startswith("Auto") and not cls._can_set_attn_implementation():
            arguments["attn_implementation"] = "eager"
        if "gguf_file" not in arguments:
            arguments["use_safetensors"] = True if safetensors else None
        torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype)
        loaded = cls.from_pretrained(name, config=config, dtype=torch_dtype, **arguments)
        if cls is AutoModel and not loaded._can_set_attn_implementation():
            loaded = cls.from_pretrained(
                name, config=config, dtype=torch_dtype, **arguments, attn_implementation="eager"
            )
        return loaded, _processor(transformers, name, config, options), config
    except Exception as e:  # files from anywhere: each library below fails in its own way
        raise _explained(name, options, e) from e


def _class_of(transformers: Any, config: Any, trust: bool) -> Any:
    for architecture in getattr(config, "architectures", None) or ():
        if hasattr(transformers, architecture):
            return getattr(transformers, architecture)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if (
        not trust
        and config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and not getattr(config, "architectures", None)
    ):
        return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])
    return transformers.AutoModel


def _processor(transformers: Any, name: str, config: Any, options: dict[str, Any]) -> Any:
    """The tokenizer, or whatever the model's inputs need; None where the repository has none."""
    order: tuple[str, ...] = ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoFeatureExtractor")
    if not any(
        hasattr(config, part) for part in ("vision_config", "audio_config", "patch_size", "num_mel_bins", "conv_dim")
    ):
        order = ("AutoTokenizer",)
    for kind in order:
        try:
            processor = getattr(transformers, kind).from_pretrained(name, **options)
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError):
            continue
        if "gguf_file" in options or not _is_empty(processor, Path(name)):
            return processor
    return None


def _is_empty(processor: Any, folder: Path) -> bool:
    """Whether it is a tokenizer that transformers made of nothing, for a folder that has no file of one."""
    files = getattr(processor, "vocab_files_names", None)
    if not files or not folder.is_dir():
        return False
    return not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", *files.values()))


def device_of(device: str | None) -> torch.device:
    """The device of that name; None for the first GPU if there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        choices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise InputError(f"device={device!r} is not here: expected one of {', '.join(map(repr, choices))}") from None
    return place


def _explained(name: str, options: dict[str, Any], error: BaseException) -> InputError:
    """One sentence for what went wrong below."""
    from huggingface_hub import errors as hub

    causes: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in causes:
        causes.append(at)
        at = at.__cause__ or at.__context__
    kinds = tuple(type(c) for c in causes)

    def among(*types: type) -> bool:
        return any(issubclass(k, types) for k in kinds)

    text = " ".join(str(c) for c in causes)
    if among(hub.GatedRepoError):
        return InputError(f"the model {name!r} is gated: accept its terms on the hub and log in with 'hf auth login'")
    if among(hub.RevisionNotFoundError):
        return InputError(
            f"the model {name!r} has no revision {options['revision']!r}: expected a branch, a tag or a commit"
        )
    offline = among(hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError, ConnectionError)
    if offline or "couldn't connect" in text.lower() or "offline mode" in text.lower():
        return InputError(
            f"the model {name!r} is not in the cache and the hub cannot be reached: connect to the network (or unset "
            "HF_HUB_OFFLINE), or give the path of a folder"
        )
    if among(hub.RepositoryNotFoundError) or "not a valid model identifier" in text:
        return InputError(
            f"there is no model {name!r} on the hub, or it is private: check the id, or log in with 'hf auth login'"
        )
    if "trust_remote_code" in text:
        return InputError(f"the model {name!r} brings its own code: read that code, then give trust_remote_code=True")
    if "Weights only load failed" in text:
        return InputError(
            f"the weights of {name!r} hold code, which is not run: ask for a safetensors version of the model"
        )
    if "Error while deserializing header" in text or "SafetensorError" in " ".join(k.__name__ for k in kinds):
        return InputError(f"the weights of {name!r} are damaged ({_first_line(error)}): fetch them again")
    if "safetensors" in text:
        return InputError(
            f"the model {name!r} has no safetensors weights: convert it, or give safetensors=False to read its "
            "PyTorch files through torch's weights-only reader"
        )
    return InputError(f"the model {name!r} cannot be loaded: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
