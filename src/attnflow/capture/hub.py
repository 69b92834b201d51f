"""Model loading from a hub id or a path, with caches and offline mode, and without unpickling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch

from attnflow.capture.pooling import Pooling
from attnflow.capture.quantised import is_plain
from attnflow.capture.sentence_folder import folder_of
from attnflow.errors import AttentionWarning, InputError

DeviceMap = Mapping[str, str | int]
"""Devices of the parts of a model, by path, as in transformers and accelerate."""

DTYPES = ("auto", "float32", "float16", "bfloat16", "float64")

ADAPTER = "adapter_config.json"

PICKLED = ("pytorch_model*.bin", "*.pth", "*.pt", "*.ckpt")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json")
OTHERS = ("*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.safetensors")

_ONE_GGUF = Lock()


class Loaded(NamedTuple):
    """A model that was loaded from a folder or the hub.

    revision: None for a folder.
    pooling: that of a sentence-embedding model.
    """

    model: torch.nn.Module
    processor: Any
    name: str
    revision: str | None
    pooling: Pooling | None = None


def fetch(
    model: str | Path,
    revision: str | None,
    device: str | DeviceMap | None,
    dtype: str,
    trust_remote_code: bool,
    allow_pickle: bool,
    gguf_file: str | None,
) -> Loaded:
    """Load a model, its processor and its name. Arguments are as in `attnflow.load`."""
    from transformers.utils import logging

    if not isinstance(model, str | Path) or not str(model):
        raise InputError(
            f"model={model!r}: expected a folder or a hub id, such as 'bert-base-uncased'; wrap() takes a model object"
        )
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r}: expected one of {', '.join(map(repr, DTYPES))}")
    place = None if device == "auto" or isinstance(device, Mapping) else device_of(device)
    name = str(model)
    if gguf_file is None and name.endswith(".gguf") and Path(name).is_file():
        name, gguf_file = str(Path(name).parent), Path(name).name
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        if Path(name).is_dir() and not (Path(name) / gguf_file).is_file():
            raise InputError(f"the folder {name!r} has no file {gguf_file!r}")
        options["gguf_file"] = gguf_file
    elif Path(name).is_dir() and (Path(name) / ADAPTER).is_file():
        raise InputError(
            f"the folder {name!r} contains an adapter for another model ({ADAPTER}): merge the two with peft "
            f"(PeftModel.from_pretrained(model, {name!r}).merge_and_unload()) and save the result, or pass the adapted "
            "model to wrap()"
        )
    elif Path(name).is_dir() and not any((Path(name) / file).is_file() for file in ("config.json", "modules.json")):
        gguf = sorted(p.name for p in Path(name).glob("*.gguf"))
        hint = f"; to load its GGUF file, give gguf_file={gguf[0]!r}" if gguf else ""
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
            loaded, processor, config, pooling = _from_pretrained(name, options, dtype, allow_pickle, place, device)
    finally:
        if shown:
            logging.enable_progress_bar()
    local = Path(name).is_dir()
    known = name_of(str(Path(name) / gguf_file) if local and gguf_file else name)
    revision = None if local else revision or getattr(config, "_commit_hash", None)
    for module in () if pooling is None else pooling.after:
        module.to(loaded.device)
    return Loaded(loaded, processor, known, revision, pooling)


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Make transformers read a GGUF file only once inside the block, and without a progress bar.

    By itself, transformers reads the whole file, including the vocabulary, for the config, the tokenizer and the
    weights, and rebuilds the table of tensor names for every module of the model: two thirds of the time for a small
    model.
    """
    try:
        import gguf
        from transformers import modeling_gguf_pytorch_utils as reading
    except ImportError:  # transformers reports what is missing
        yield
        return
    changes: dict[tuple[Any, str], Callable[[Any], Any]] = {
        (gguf, "GGUFReader"): cache,
        (gguf, "get_tensor_name_map"): cache,
        (reading, "tqdm"): lambda bar: lambda tensors, **_: tensors,
    }
    with _ONE_GGUF:  # modules are shared by all threads: a later one must not mistake the changes for the originals
        originals = {place: getattr(*place) for place in changes if hasattr(*place)}
        try:
            for place, original in originals.items():
                setattr(*place, changes[place](original))
            yield
        finally:
            for place, original in originals.items():
                setattr(*place, original)


def name_of(source: str) -> str:
    """Return the name of a model for results: a hub id as it is, or the last part of a path, without its location.

    >>> name_of("org/model"), name_of("/home/me/run-7/checkpoint-1000")
    ('org/model', 'checkpoint-1000')
    """
    local = Path(source)
    if not source or not (local.exists() or local.is_absolute() or source[0] in ".~" or len(local.parts) > 2):
        return source
    return (local if local.name not in ("", "..") else local.resolve()).name or source


def _from_pretrained(
    name: str, options: dict[str, Any], dtype: str, allow_pickle: bool, place: torch.device | None, device: Any
) -> tuple[Any, Any, Any, Pooling | None]:
    """Load the model onto its device, its processor, its config and its pooling.

    place: the single device; None if ``device`` is a map.
    """
    import transformers
    from transformers import AutoConfig, AutoModel

    config = None
    try:
        sentence = None if "gguf_file" in options else folder_of(name, options["revision"], allow_pickle)
        pooling = None
        if sentence is not None:
            inner, pooling = sentence
            if Path(name).is_dir():
                name = str(Path(name) / inner)
            elif inner:
                options = {**options, "subfolder": inner}
        config = AutoConfig.from_pretrained(name, **options)
        if pooling is not None and getattr(config, "is_encoder_decoder", False) and not _encoder_alone(config):
            raise InputError(
                f"the sentence-embedding model {name!r} has an encoder and a decoder, and pools the states of its "
                "decoder: expected a model with one stack of layers"
            )
        cls = _class_of(transformers, config, options["trust_remote_code"], pooling is not None)
        arguments = {k: v for k, v in options.items() if k != "trust_remote_code" or cls.__name__.startswith("Auto")}
        if not cls.__name__.startswith("Auto") and not cls._can_set_attn_implementation():
            arguments["attn_implementation"] = "eager"
        if "gguf_file" not in arguments:
            arguments["use_safetensors"] = None if allow_pickle else True
        if place is None:
            arguments["device_map"] = device if isinstance(device, str) else dict(device)
        elif quantised_by(config) is not None:  # layers that were packed on one device cannot all move to another
            arguments["device_map"] = {"": place}
        arguments["dtype"] = dtype if dtype == "auto" else getattr(torch, dtype)
        arguments["output_loading_info"] = True
        arguments["ignore_mismatched_sizes"] = True  # refused below, with a name and both shapes
        loaded, report = cls.from_pretrained(name, config=config, **arguments)
        if cls is AutoModel and not loaded._can_set_attn_implementation():
            loaded, report = cls.from_pretrained(name, config=config, **arguments, attn_implementation="eager")
        _check_shapes(name, report.get("mismatched_keys", ()))
        _check_whole(name, report.get("missing_keys", ()), pooling is not None)
        _check_all_used(name, report.get("unexpected_keys", ()), dict(loaded.named_parameters()))
        if "device_map" not in arguments:
            loaded = loaded.to(place)
        elif dtype != "auto" and place is not None and all(is_plain(p) for p in loaded.parameters()):
            loaded = loaded.to(arguments["dtype"])  # transformers leaves dequantised weights in bfloat16
        return loaded, _processor(transformers, name, config, options), config, pooling
    except InputError:
        raise
    except Exception as e:  # the libraries below raise many kinds of errors
        raise _explained(name, options, e, allow_pickle, quantised_by(config)) from e


def quantised_by(config: Any) -> str | None:
    """Return the quantisation method named in a checkpoint's configuration, such as "gptq" or "torchao", or None."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return None
    method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else quantisation.quant_method
    return str(getattr(method, "value", method) or "an unknown method")


def _check_shapes(name: str, mismatched: Any) -> None:
    """Check that the tensors of the checkpoint fit the configuration, because transformers fills others at random."""
    for path, shape, own in sorted(mismatched, key=lambda each: str(each[0])):
        raise InputError(
            f"the weights of {name!r} do not fit its config.json: {path!r} has shape {tuple(shape)}, expected "
            f"{tuple(own)}; use the config.json that belongs to these weights, or download all files again"
        )


def _check_whole(name: str, missing: Any, headless: bool) -> None:
    """Check that the checkpoint had the weights of all layers, because transformers fills missing ones at random.

    headless: whether everything after the layers is ignored.
    """
    lacking = sorted(missing)
    inside = [path for path in lacking if "embed" in path or any(part.isdigit() for part in path.split("."))]
    if inside:
        raise InputError(
            f"the weights of {name!r} lack {len(inside)} tensors of its layers, such as {inside[0]!r}, which would be "
            "random: download all of its files, or use weights that match its config.json"
        )
    if lacking and not headless:
        some = ", ".join(map(repr, lacking[:3])) + ", …" * (len(lacking) > 3)
        warnings.warn(
            f"the weights of {name!r} lack {some}: these are random, and so is what the model computes with them; its "
            "layers come from the checkpoint",
            AttentionWarning,
            stacklevel=2,
        )


def _check_all_used(name: str, unused: Iterable[str], own: Container[str]) -> None:
    """Warn if the checkpoint has more layers than the config, which transformers drops with a notice."""
    for path in sorted(unused):
        parts = path.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        lower = [".".join([*parts[:i], "0", *parts[i + 1 :]]) for i in numbers[:1]]
        if any(each in own for each in lower):
            warnings.warn(
                f"the weights of {name!r} have layers that its config.json does not name, such as {path!r}: they are not "
                "used. Check the number of layers in config.json",
                AttentionWarning,
                stacklevel=2,
            )
            return


def _class_of(transformers: Any, config: Any, trust: bool, headless: bool) -> Any:
    """Return the class of the model.

    headless: whether only the states are needed, as for a sentence-embedding model.
    """
    if headless:
        return _encoder_alone(config) or transformers.AutoModel
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


def _encoder_alone(config: Any) -> Any:
    """Return the class with the encoder alone, such as T5EncoderModel, or None if there is none."""
    import transformers

    return getattr(transformers, f"{type(config).__name__.removesuffix('Config')}EncoderModel", None)


def _processor(transformers: Any, name: str, config: Any, options: dict[str, Any]) -> Any:
    """Return the tokenizer, or what else the model's inputs need; None if the repository has none."""
    order: tuple[str, ...] = ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor")
    if not any(hasattr(config, part) for part in ("vision_config", "patch_size")):
        order = ("AutoTokenizer",)
    failure = ""
    for kind in order:
        try:
            processor = getattr(transformers, kind).from_pretrained(name, **options)
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as e:
            failure = f"{type(e).__name__}: {_first_line(e)}"
            continue
        if "gguf_file" in options or not _is_empty(processor, Path(name)):
            return processor
    file = next((file for file in TOKENIZERS if failure and (Path(name) / file).is_file()), None)
    if file is not None:
        raise InputError(
            f"the tokenizer of {name!r} cannot be read from {file} ({failure:.120}): download its files again, or install "
            "what the message names"
        )
    return None


def _is_empty(processor: Any, folder: Path) -> bool:
    """Return whether transformers made up an empty tokenizer for a folder without tokenizer files."""
    files = getattr(processor, "vocab_files_names", None)
    if not files or not folder.is_dir():
        return False
    return not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", *files.values()))


def device_of(device: str | None) -> torch.device:
    """Return the device of that name; for None, the first GPU if there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        choices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise InputError(
            f"device={device!r} is not available: expected one of {', '.join(map(repr, choices))}"
        ) from None
    return place


def _explained(
    name: str, options: dict[str, Any], error: BaseException, allow_pickle: bool, method: str | None
) -> InputError:
    """Translate an error of the libraries below into one sentence.

    method: the quantisation method of the model.
    """
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
            f"the weights of {name!r} contain code, which attnflow does not run: use a safetensors version of the model"
        )
    if "Error while deserializing header" in text or "SafetensorError" in " ".join(k.__name__ for k in kinds):
        return InputError(f"the weights of {name!r} are damaged ({_first_line(error)}): download them again")
    absent = next((str(c).rpartition("/")[2] for c in causes if isinstance(c, FileNotFoundError)), None)
    if absent is not None and absent.endswith((".safetensors", ".bin")):
        return InputError(f"the weights of {name!r} lack the file {absent!r}: download it, or download all files again")
    if "device_map" in text and among(ImportError, ValueError) and "ccelerate" in text:
        return InputError(f"loading the model {name!r} on several devices needs accelerate: pip install accelerate")
    if method is not None:
        return InputError(
            f"the model {name!r} is quantised by {method}, which transformers cannot load here ({_first_line(error)}): "
            "install what the message names, or use a version of the model that is not quantised, or one in GGUF"
        )
    files = _weight_files(Path(name), PICKLED)
    if "safetensors" in text and not allow_pickle and (files or not Path(name).is_dir()):
        return InputError(
            f"the model {name!r} has no safetensors weights: convert it, or give allow_pickle=True to read its "
            "PyTorch files through torch's weights-only reader"
        )
    if "no file named" in text and Path(name).is_dir():
        others = ", ".join(_weight_files(Path(name), (*PICKLED, *OTHERS)))
        return InputError(
            f"the folder {name!r} has a config.json and {f'no weights but {others}' if others else 'no weights'}: "
            "expected model.safetensors, which save_pretrained writes next to it"
        )
    file = options.get("gguf_file")
    called = name if file is None else str(Path(name) / file)
    if file is not None and Path(called).is_file() and not _is_gguf(called):
        return InputError(
            f"the file {called!r} is damaged or not in GGUF format ({_first_line(error)}): download it again"
        )
    return InputError(f"the model {called!r} cannot be loaded: {_first_line(error)}")


def _is_gguf(file: str) -> bool:
    """Return whether the gguf package, if it is there, reads a file to its end."""
    try:
        from gguf import GGUFReader

        GGUFReader(file)
    except ImportError:
        return True
    except Exception:  # it does not check what it reads
        return False
    return True


def _weight_files(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    return sorted({path.name for pattern in patterns for path in folder.glob(pattern)}) if folder.is_dir() else []


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
