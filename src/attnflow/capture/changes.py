"""Changes of a model after its self-check: other hooks, modules or attention functions may mix positions elsewhere."""

from __future__ import annotations

from typing import Any, TypeAlias
from weakref import ref

import torch

from attnflow.capture.collect import PREFIX
from attnflow.errors import ModelError

State: TypeAlias = tuple[tuple[object, ...], ...]

INVISIBLE = ("attnflow.", "transformers.")
"""Hooks from these packages come and go while a model runs, also in other threads, and only observe."""


def state_of(model: torch.nn.Module) -> State:
    """Return what decides how states pass through the model, apart from weights: modules, hooks, attention functions."""
    modules = list(model.modules())
    configs = {id(config): config for module in modules if (config := vars(module).get("config")) is not None}
    names = tuple(attention_name(config) for config in configs.values())
    functions = _functions() if any(names) else {}
    # numbers of hooks are never reused, unlike addresses, and references compare objects without keeping them alive
    parts = ((ref(module), type(module), _hooks(module), vars(module).get("forward")) for module in modules)
    return names, tuple(functions.get(name) for name in names), *parts


def own_attention(model: torch.nn.Module) -> str | None:
    """Return the name of the model's attention function if it is a user's own; None if it comes from transformers."""
    name = attention_name(getattr(model, "config", None))
    return name if _is_own(name) else None


def check_one_attention(model: torch.nn.Module) -> None:
    """Refuse a user's own attention function in a part of the model, because parts are observed together."""
    whole = attention_name(getattr(model, "config", None))
    for path, module in model.named_modules():
        name = attention_name(vars(module).get("config"))
        if name not in (None, whole) and _is_own(name):
            raise ModelError(
                f"{path} has its own attention function {name!r}, but the model as a whole has {whole!r}: expected one "
                f"for all parts, for example by set_attn_implementation({name!r})"
            )


def attention_name(config: Any) -> str | None:
    """Return the name of the attention function in a configuration, without our prefix."""
    name = getattr(config, "_attn_implementation", None)
    return name.removeprefix(PREFIX) if isinstance(name, str) else None


def _is_own(name: str | None) -> bool:
    function = None if name is None else _functions().get(name)
    function = getattr(function, "func", function)  # of a partial function
    return function is not None and not str(getattr(function, "__module__", "")).startswith("transformers.")


def _functions() -> dict[str | None, Any]:
    """Return all functions of the attention interface but ours, by name. "eager" is not among them."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    return {name: FUNCTIONS[name] for name in FUNCTIONS.valid_keys() if not name.startswith(PREFIX)}


def _hooks(module: torch.nn.Module) -> tuple[int, ...]:
    """Return the numbers of the module's hooks."""
    if not module._forward_pre_hooks and not module._forward_hooks:
        return ()
    every = (*module._forward_pre_hooks.items(), *module._forward_hooks.items())
    return tuple(number for number, hook in every if not str(getattr(hook, "__module__", "")).startswith(INVISIBLE))
