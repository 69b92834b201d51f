"""Generation: greedy answers of a language model to prompts, with the key-value cache that generation leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.routes import running
from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Written:
    """What a model generated after one prompt.

    ids: the tokens, without the one that ends a text.
    cache: keys and values of all prompts that ran together.
    item, start: the number of this prompt in the cache, and the place of its first token.
    source: for an encoder-decoder, the states of its encoder.
    """

    ids: tuple[int, ...]
    cache: Any = None
    item: int = 0
    start: int = 0
    source: Any = None


def is_writer(model: Runner) -> bool:
    """Return whether the model can generate text."""
    return hasattr(model.model, "generate") and bool(getattr(model.model, "can_generate", lambda: False)())


def write(
    model: Runner,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    progress: Progress | None = None,
    streamer: Any = None,
    beside: Mapping[str, Tensor] | None = None,
) -> list[Written]:
    """Generate the model's greedy answers to a batch of prompts, each at most ``max_new_tokens`` long.

    beside: for a single prompt, inputs other than its tokens, such as the pixels of an image.
    streamer: for a single prompt, an object of transformers that receives the tokens as they are written.
    """
    from transformers import StoppingCriteriaList

    check_writer(model)
    two_stacks = bool(getattr(model.config, "is_encoder_decoder", False))
    longest = max(map(len, prompts))
    starts = [0 if two_stacks else longest - len(ids) for ids in prompts]  # decoders generate on the right
    rows = [
        [model.pad_id()] * start + list(ids) + [model.pad_id()] * (longest - len(ids) - start)
        for start, ids in zip(starts, prompts, strict=True)
    ]
    seen = [
        [int(start <= i < start + len(ids)) for i in range(longest)] for start, ids in zip(starts, prompts, strict=True)
    ]
    tensors = model.placed({"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(seen), **(beside or {})})
    model.check_evaluating()
    with running(), torch.no_grad(), model.eagerly():
        source = model.model.get_encoder()(**tensors) if two_stacks else None
        options = _options(model, max_new_tokens, source)
        begins = 1 if two_stacks else longest
        if progress is not None:
            options["stopping_criteria"] = StoppingCriteriaList([_tick(progress, max_new_tokens, begins)])
        options["streamer"] = streamer
        out = model.model.generate(**tensors, **options)
    return [
        Written(
            _until_end(model, out.sequences[number, begins:].tolist()),
            None if two_stacks else out.past_key_values,
            number,
            starts[number],
            None if source is None else _item(source, number, len(prompts[number])),
        )
        for number in range(len(prompts))
    ]


def check_count(max_new_tokens: int) -> None:
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise InputError(f"max_new_tokens={max_new_tokens!r}: expected an int of at least 1")


def check_writer(model: Runner) -> None:
    model.check_default_device()
    if not is_writer(model):
        raise InputError(
            f"{type(model.model).__name__} generates no text: expected a language model that generates, such as a "
            "decoder; trace() and attnflow.compare explain classifiers and masked language models"
        )
    main = getattr(model.model, "main_input_name", "input_ids")
    if main != "input_ids" and not model.accepts("input_ids"):
        raise InputError(
            f"{type(model.model).__name__} does not read text (its input is {main}), but a prompt is a text: trace() "
            "explains models for audio and images"
        )


def _options(model: Runner, max_new_tokens: int, source: Any) -> dict[str, Any]:
    from transformers.cache_utils import DynamicCache

    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "do_sample": False, "num_beams": 1, "return_dict_in_generate": True,
        "temperature": None, "top_p": None, "top_k": None, "pad_token_id": model.pad_id(),
        # reset settings of the model that do not fit one greedy text on our cache
        "num_return_sequences": 1, "cache_implementation": None, "prompt_lookup_num_tokens": None, "penalty_alpha": None,
        "dola_layers": None, "token_healing": False,
    }  # fmt: skip
    if getattr(getattr(model.model, "generation_config", None), "stop_strings", None):
        options |= {"stop_strings": None} if model.tokenizer is None else {"tokenizer": model.tokenizer}
    if source is not None:
        options["encoder_outputs"] = source
    else:
        # keep every key, including those that sliding windows no longer see, because what was read once is explained
        options["past_key_values"] = DynamicCache()
    return options


def _tick(progress: Progress, total: int, begins: int) -> Callable[..., Tensor]:
    """Return a stopping criterion that never stops, and tells how many tokens are written."""

    def criterion(ids: Tensor, scores: Any, **_: Any) -> Tensor:
        progress("writing", int(ids.shape[1]) - begins, total)
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    return criterion


def _until_end(model: Runner, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens before the one that ends a text."""
    ends = set(end_ids(model))
    first = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    return tuple(int(token) for token in ids[:first])


def end_ids(model: Runner) -> tuple[int, ...]:
    """Return the tokens that end a text."""
    stated = [
        getattr(getattr(model.model, "generation_config", None), "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        getattr(model.tokenizer, "eos_token_id", None),
    ]
    flat = [i for ids in stated for i in (ids if isinstance(ids, list | tuple) else [ids])]
    return tuple(dict.fromkeys(int(i) for i in flat if isinstance(i, int)))


def _item(source: Mapping[str, Any], number: int, length: int) -> Any:
    """Return the encoder's states for one text of the batch, without padding."""
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=source["last_hidden_state"][number : number + 1, :length])
