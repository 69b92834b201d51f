"""Settings of a sentence-transformers folder besides its weights, read as JSON without sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from attnflow.capture.pooling import MODES, SIMILARITIES, Normalize, Pooling
from attnflow.errors import InputError, a_type

OLD_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""A key for each mode, in the order in which their vectors are concatenated; newer folders have one key for all."""

SETTINGS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")

SIMILARITY = {"cos_sim": "cosine", "dot_score": "dot", None: "cosine"}

Find = Callable[[str], Path | None]
"""Maps the name of a file in the folder or repository to its local path; None if there is no such file."""


def folder_of(source: str, revision: str | None, allow_pickle: bool) -> tuple[str, Pooling] | None:
    """Return the subfolder of the transformer in a sentence-transformers folder or repository, and its pooling.

    The subfolder is "" for the top. Return None for a model of another kind.
    """
    find = _finder(source, revision)
    listed = find("modules.json")
    if listed is None:
        return None
    modules = [(str(one.get("type", "")).rpartition(".")[2], str(one.get("path", ""))) for one in _read_list(listed)]
    if not modules or modules[0][0] != "Transformer":
        first = modules[0][0] if modules else "nothing"
        raise InputError(
            f"the sentence-embedding model {source!r} begins with {first}: expected a Transformer, whose attention can "
            "be explained"
        )
    top = modules[0][1]
    empty: Mapping[str, Any] = {}
    settings = next((_read_object(path) for name in SETTINGS if (path := find(_joined(top, name)))), empty)
    more = _read_object(path) if (path := find("config_sentence_transformers.json")) else empty
    paths = [find(_joined(folder, "config.json")) for _, folder in modules[1:]]
    configs = [empty if path is None else _read_object(path) for path in paths]

    def weights(number: int) -> Mapping[str, torch.Tensor]:
        return _tensors(find, modules[number + 1][1], allow_pickle, source)

    return top, _pooling([name for name, _ in modules[1:]], configs, weights, settings, more)


def is_sentence_transformer(model: torch.nn.Module) -> bool:
    """Return whether it is a SentenceTransformer, by its name: the package need not be installed."""
    return any(cls.__name__ == "SentenceTransformer" for cls in type(model).__mro__)


def pooling_of(model: Any) -> tuple[torch.nn.Module, Any, Pooling]:
    """Return the transformer, the tokenizer and the pooling of a SentenceTransformer object."""
    first, *others = list(model)
    inner = getattr(first, "auto_model", None)
    if not isinstance(inner, torch.nn.Module):
        raise InputError(
            f"this SentenceTransformer begins with {type(first).__name__}: expected a Transformer, whose attention can be "
            "explained"
        )
    settings = {
        "max_seq_length": getattr(model, "max_seq_length", None),
        "do_lower_case": getattr(first, "do_lower_case", False),
    }
    name = getattr(model, "similarity_fn_name", None)
    more = {
        "prompts": getattr(model, "prompts", {}),
        "default_prompt_name": getattr(model, "default_prompt_name", None),
        "similarity_fn_name": getattr(name, "value", name),
        "truncate_dim": getattr(model, "truncate_dim", None),
    }
    names = [type(one).__name__ for one in others]
    configs = [dict(one.get_config_dict()) if hasattr(one, "get_config_dict") else {} for one in others]
    pooling = _pooling(names, configs, lambda number: others[number].state_dict(), settings, more)
    return inner, first.tokenizer, pooling


def _pooling(
    names: Sequence[str],
    configs: Sequence[Mapping[str, Any]],
    weights: Callable[[int], Mapping[str, torch.Tensor]],
    settings: Mapping[str, Any],
    more: Mapping[str, Any],
) -> Pooling:
    """Build the pooling.

    names, configs: those of the modules after the transformer.
    weights: returns the weights of one of them, by its number.
    """
    if more.get("truncate_dim") is not None:
        raise InputError(
            f"this sentence-embedding model cuts its embeddings to {more['truncate_dim']} numbers (truncate_dim): expected "
            "one that returns them whole; remove truncate_dim to explain the whole embedding"
        )
    prompt = _prompt(more)
    limit = settings.get("max_seq_length")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise InputError(
            f"the max_seq_length of this sentence-embedding model is {limit!r}: expected a number of tokens, or null"
        )
    named = more.get("similarity_fn_name")
    similarity = SIMILARITY.get(named, str(named))
    modes: tuple[str, ...] = ()
    after: list[torch.nn.Module] = []
    refusal = ""
    for number, (name, config) in enumerate(zip(names, configs, strict=True)):
        if name == "Pooling" and not modes:
            modes = _modes(config)
            if prompt and config.get("include_prompt") is False:
                refusal = (
                    f"this sentence-embedding model leaves its prompt {prompt!r} out of its pooling, and attnflow "
                    "cannot tell which tokens that concerns"
                )
        elif name in ("Normalize", "Dense", "LayerNorm") and modes and not _elsewhere(config):
            after.append(Normalize() if name == "Normalize" else _module(name, config, weights(number)))
        elif name != "Dropout":
            refusal = (
                f"this sentence-embedding model has the module {name}{'' if modes else ' before its pooling'}, but "
                "attnflow supports only Pooling, Dense, LayerNorm and Normalize"
            )
            break
    if not modes and not refusal:
        refusal = "this sentence-embedding model has no Pooling module, so it is unknown how its embedding is computed"
    if not refusal and similarity not in SIMILARITIES:
        refusal = (
            f"this sentence-embedding model compares by {named!r}: expected one of {', '.join(map(repr, SIMILARITIES))}"
        )
    return Pooling(
        modes, tuple(after), similarity, limit, prompt,
        bool(settings.get("do_lower_case")), refusal,
    )  # fmt: skip


def _prompt(more: Mapping[str, Any]) -> str:
    """Return the text to put before every text."""
    prompts, name = more.get("prompts") or {}, more.get("default_prompt_name")
    if name is None:
        return ""
    if not isinstance(prompts, Mapping) or name not in prompts:
        names = ", ".join(map(repr, prompts)) or "none"
        raise InputError(
            f"the default prompt {name!r} of this sentence-embedding model is not among its prompts ({names}): correct "
            "default_prompt_name in config_sentence_transformers.json"
        )
    return str(prompts[name] or "")


def _modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    one = config.get("pooling_mode")
    modes = tuple(one) if isinstance(one, list | tuple) else () if one is None else (one,)
    modes = modes or tuple(mode for key, mode in OLD_KEYS.items() if config.get(key))
    if not modes and "pooling_mode" not in config and OLD_KEYS.keys().isdisjoint(config):
        return ("mean",)  # the default of sentence-transformers
    if not modes:
        raise InputError(
            f"this sentence-embedding model pools by nothing: expected one of {', '.join(MODES)}, or a true value of one "
            f"of {', '.join(OLD_KEYS)}"
        )
    unknown = next((mode for mode in modes if mode not in MODES), None)
    if unknown is not None:
        raise InputError(f"this sentence-embedding model pools by {unknown!r}: expected one of {', '.join(MODES)}")
    return modes


def _elsewhere(config: Mapping[str, Any]) -> bool:
    """Return whether a module works on something other than the embedding, or in its own way."""
    names = (config.get("module_input_name"), config.get("module_output_name"))
    return any(name not in (None, "sentence_embedding") for name in names) or bool(config.get("use_residual"))


def _module(name: str, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    try:
        return _built(name, config, weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as e:
        if isinstance(e, InputError):
            raise
        reason = f"it lacks {e}" if isinstance(e, KeyError) else str(e).splitlines()[-1].strip()
        raise InputError(
            f"the module {name} of this sentence-embedding model cannot be built from its config.json and its weights "
            f"({reason}): download it again"
        ) from None


def _built(name: str, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    if name == "LayerNorm":
        norm = torch.nn.LayerNorm(int(config["dimension"]))
        norm.load_state_dict({key.removeprefix("norm."): x for key, x in weights.items()})
        return norm.eval()
    linear = torch.nn.Linear(int(config["in_features"]), int(config["out_features"]), bool(config.get("bias", True)))
    own = {key.removeprefix("linear."): x for key, x in weights.items() if key.startswith("linear.")}
    linear = linear.to(own["weight"].dtype)
    linear.load_state_dict(own)
    path = str(config.get("activation_function") or "torch.nn.modules.linear.Identity")
    kind = getattr(torch.nn, path.rpartition(".")[2], None)
    if not path.startswith("torch.nn.") or not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        raise InputError(f"the Dense module of this model has the activation {path!r}: expected one from torch.nn")
    return torch.nn.Sequential(linear, kind()).eval()


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise InputError(f"{str(path)!r} cannot be read as JSON ({e}): download it again") from None


def _read_object(path: Path) -> Mapping[str, Any]:
    settings = _read(path)
    if not isinstance(settings, dict):
        raise InputError(f"{str(path)!r} contains {a_type(settings)}: expected an object, {{…}}; download it again")
    return settings


def _read_list(path: Path) -> Sequence[Mapping[str, Any]]:
    modules = _read(path)
    strangers = [one for one in modules if not isinstance(one, dict)] if isinstance(modules, list) else [modules]
    if strangers:
        raise InputError(
            f"{str(path)!r} contains {a_type(strangers[0])}: expected a list of objects, [{{…}}]; download it again"
        )
    return list(modules)


def _finder(source: str, revision: str | None) -> Find:
    """Return a finder of files in a folder or a hub repository, which uses the cache if there is no network."""
    folder = Path(source)
    if folder.is_dir():
        return lambda name: folder / name if (folder / name).is_file() else None

    def fetched(name: str) -> Path | None:
        from transformers.utils import cached_file

        path = cached_file(
            source, name, revision=revision, _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
        return None if path is None else Path(path)

    return fetched


def _tensors(find: Find, folder: str, allow_pickle: bool, source: str) -> Mapping[str, torch.Tensor]:
    path = find(_joined(folder, "model.safetensors"))
    if path is not None:
        from safetensors.torch import load_file

        own: Mapping[str, torch.Tensor] = load_file(path)
        return own
    path = find(_joined(folder, "pytorch_model.bin")) if allow_pickle else None
    if path is None:
        raise InputError(
            f"the module {folder!r} of {source!r} has no safetensors weights: convert it, or give allow_pickle=True to "
            "read its PyTorch file through torch's weights-only reader"
        )
    tensors: Mapping[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return tensors
