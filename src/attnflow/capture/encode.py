"""What a user gives to a model: which of `inputs` it is for, with the decoder's side and the model's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import inputs
from attnflow.capture.inputs import Encoded
from attnflow.capture.picture import picture_of
from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner


def limit(model: Runner) -> int | None:
    """How many tokens the model takes, or None where nothing says so."""
    limits = []
    stated = getattr(model.tokenizer, "model_max_length", None)
    if isinstance(stated, int) and stated < 10**9:
        limits.append(stated)
    text = model.text_config
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    relative = hasattr(text, "relative_attention_num_buckets") or getattr(text, "position_biased_input", True) is False
    if isinstance(positions, int) and positions > 0 and not relative:
        # RoBERTa and its kin count positions from the padding id on.
        offset = _position_offset(model)
        limits.append(positions - offset)
    return min(limits) if limits else None


def decoder_limit(model: Runner) -> int | None:
    """How many tokens the decoder of an encoder-decoder takes, or None where nothing says so."""
    text = model.text_config
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "max_target_positions", None)
    relative = hasattr(text, "relative_attention_num_buckets")
    return positions if isinstance(positions, int) and positions > 0 and not relative else None


def _position_offset(model: Runner) -> int:
    for module in model.model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding) and table.padding_idx is not None:
            return int(table.padding_idx) + 1
    return 0


def encode(model: Runner, item: Any, target: str | None, truncate: bool, rate: int | None) -> Encoded:
    """What `Model.trace` was given, as tensors and labels; what is encoded already stays as it is."""
    if isinstance(item, Encoded):
        return item
    if isinstance(item, Mapping):
        return _named_tensors(model, item)
    main = getattr(model.model, "main_input_name", "input")
    both = hasattr(model.model, "get_text_features") and hasattr(model.model, "get_image_features")
    if main == "pixel_values" or (both and not isinstance(item, str | tuple)):
        return inputs.encode_image(getattr(model.processor, "image_processor", model.processor), item, _patch(model))
    if main in ("input_values", "input_features"):
        encoded = inputs.encode_audio(model.processor, item, main, rate)
        return (
            _with_target(model, encoded, target, truncate)
            if getattr(model.config, "is_encoder_decoder", False)
            else encoded
        )
    if isinstance(item, Tensor):
        return _named_tensors(model, {main: item if item.dim() > 1 else item[None]})
    if target is not None and not getattr(model.config, "is_encoder_decoder", False):
        raise InputError("target is for encoder-decoder models, and this is none: leave it out")
    result = encode_texts(model, [item], target, truncate)[0]
    if isinstance(result, InputError):
        raise result
    return result


def encode_texts(
    model: Runner, texts: Sequence[Any], target: str | None = None, truncate: bool = False
) -> list[Encoded | InputError]:
    """Texts, or pairs of texts, through the tokenizer at once; for one that cannot be used, why."""
    results = inputs.encode_texts(model.tokenizer, texts, limit(model), truncate)
    untyped = not model.accepts("token_type_ids")
    for i, encoded in enumerate(results):
        if isinstance(encoded, InputError):
            continue
        if untyped:
            encoded.tensors.pop("token_type_ids", None)
        if getattr(model.config, "is_encoder_decoder", False):
            try:
                results[i] = _with_target(model, encoded, target, truncate)
            except InputError as e:
                results[i] = e
    return results


def _named_tensors(model: Runner, inputs_by_name: Mapping[str, Any]) -> Encoded:
    if {"role", "content"} <= set(inputs_by_name):
        raise InputError(
            "this is a message of a chat, with a role and a content: expected a text; Model.answer takes messages, and "
            "explains what the model answers to them"
        )
    tensors = {}
    for name, x in inputs_by_name.items():
        if x is None:
            continue
        try:
            tensors[str(name)] = x if isinstance(x, Tensor) else torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{name} is a {type(x).__name__}: expected a tensor") from None
    for name in ("pixel_values", "input_values", "input_features", "inputs_embeds"):
        cut = name == "pixel_values" and "image_grid_thw" in tensors  # a row for each patch, of one image or several
        if name in tensors and not cut and tensors[name].shape[:1] != (1,):
            raise InputError(f"{name} has shape {tuple(tensors[name].shape)}: expected [1, …], one input at a time")
    ids = tensors.get("input_ids")
    if ids is None:
        return _with_patches(model, Encoded(tensors))
    if ids.dim() != 2 or ids.shape[0] != 1 or not ids.shape[1]:
        raise InputError(f"input_ids has shape {tuple(ids.shape)}: expected [1, tokens], one text at a time")
    if ids.is_floating_point() or ids.is_complex() or int(ids.min()) < 0:
        raise InputError(f"input_ids holds {ids.dtype} from {ids.min().item()}: expected whole numbers from 0")
    mask = tensors.get("attention_mask")
    if mask is not None and (mask.dim() != 2 or not bool(mask.bool().all())):
        raise InputError(
            "attention_mask hides positions: give one text without its padding; a list of texts is padded for you"
        )
    encoded = _with_picture(model, _named(model, ids[0].tolist(), tensors))
    target = tensors.get("decoder_input_ids")
    return encoded if target is None else replace(encoded, target=_named(model, target[0].tolist(), {}))


def _named(model: Runner, ids: list[int], tensors: dict[str, Tensor]) -> Encoded:
    if model.tokenizer is None:
        return inputs.labelled(tensors, [str(i) for i in ids])
    special = set(model.tokenizer.all_special_ids)
    special -= {getattr(model.tokenizer, f"{name}_token_id", None) for name in ("unk", "mask")}  # they stand for words
    pieces = [str(p) for p in model.tokenizer.convert_ids_to_tokens(ids)]
    marks = [i in special for i in ids]
    tokens, word_ids, texts = inputs.by_marks(pieces, marks)
    return Encoded(
        tensors, tokens, tuple(marks), word_ids, texts, model.tokenizer.decode([i for i in ids if i not in special])
    )


def _with_picture(model: Runner, encoded: Encoded) -> Encoded:
    """The same, where positions stand for patches of an image: named by row and column, each a word of its own."""
    picture = picture_of(model.config, encoded.tensors, _patch(model))
    if picture is None:
        return encoded
    tokens, special = list(encoded.tokens), list(encoded.special)
    word_ids, texts = list(encoded.word_ids), list(encoded.word_texts)
    for number, place in enumerate(picture.places):
        tokens[place] = f"image {number // picture.columns + 1},{number % picture.columns + 1}"
        special[place], word_ids[place] = False, len(texts)
        texts.append(tokens[place])
    return replace(
        encoded, tokens=tuple(tokens), special=tuple(special), word_ids=tuple(word_ids), word_texts=tuple(texts),
        picture=picture,
    )  # fmt: skip


def _with_patches(model: Runner, encoded: Encoded) -> Encoded:
    if "pixel_values" not in encoded.tensors:
        return encoded
    return replace(inputs.encode_image(None, encoded.tensors["pixel_values"], _patch(model)), tensors=encoded.tensors)


def _patch(model: Runner) -> tuple[int, int] | None:
    vision = getattr(model.config, "vision_config", None) or model.config
    size = getattr(vision, "patch_size", None) or getattr(getattr(model.model, "patch_embed", None), "patch_size", None)
    if size is None:
        return None
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def decoder_start(model: Runner) -> int:
    """The token that an encoder-decoder's decoder begins with."""
    generation = getattr(model.model, "generation_config", None)
    start = getattr(generation, "decoder_start_token_id", None)  # what it writes with, where the two differ
    if start is None:
        start = getattr(model.config, "decoder_start_token_id", None)
    return model.pad_id() if start is None else int(start)


def _with_target(model: Runner, encoded: Encoded, target: str | None, truncate: bool) -> Encoded:
    """The decoder's side: its start token and the target, shifted by one, so that position i predicts token i."""
    start = decoder_start(model)
    if target is None:
        if not hasattr(model.model, "generate") or not getattr(model.model, "can_generate", lambda: False)():
            raise InputError(
                "this encoder-decoder cannot write a target by itself: give target=, the text for its decoder"
            )
        try:
            with torch.no_grad():
                written = model.model.generate(
                    **model.placed(encoded.tensors), max_new_tokens=64, num_beams=1, do_sample=False
                )
        except Exception as e:  # whatever a model file does
            raise InputError(
                f"this encoder-decoder cannot write a target by itself ({type(e).__name__}: {e!s:.80}): give target=, "
                "the text for its decoder"
            ) from e
        ids = [int(i) for i in written[0].tolist()]
        ids = ids if ids[:1] == [start] else [start, *ids]
        ends = getattr(model.config, "eos_token_id", None)
        while len(ids) > 1 and (ids[-1] == model.pad_id() or ids[-1] == ends):
            ids.pop()
        side = _named(model, ids, {})
    else:
        written = inputs.encode_text(model.tokenizer, target, limit(model), truncate, target=True)
        ids = [start, *written.tensors["input_ids"][0].tolist()]
        keep = len(ids) - 1 if written.special[-1] else len(ids)
        label = _named(model, [start], {}).tokens[0]
        side = Encoded(
            {},
            (label, *written.tokens)[:keep],
            (True, *written.special)[:keep],
            (None, *written.word_ids)[:keep],
            written.word_texts,
            written.text,
        )
        ids = ids[:keep]
    return replace(encoded, tensors={**encoded.tensors, "decoder_input_ids": torch.tensor([ids])}, target=side)
