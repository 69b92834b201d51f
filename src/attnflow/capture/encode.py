"""Encoding of a user's input: dispatch to `inputs`, the decoder's side, and the model's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import inputs
from attnflow.capture.images import read_image
from attnflow.capture.inputs import Encoded
from attnflow.capture.photo import photo
from attnflow.capture.picture import image_places, picture_of
from attnflow.capture.processed import features
from attnflow.capture.wiring import Wiring, wiring_of
from attnflow.errors import InputError, a_type

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner


TRAINING = ("labels", "next_sentence_label", "start_positions", "end_positions", "mask_labels", "class_labels")
"""Arguments that say what a model should answer."""

WRITTEN = 64
"""The most tokens that an encoder-decoder writes if no target is given."""

OF_SOUNDS = ("input_features", "input_values")


def limit(model: Runner) -> int | None:
    """Return how many tokens the model takes, or None if unknown."""
    limits = []
    stated = getattr(model.tokenizer, "model_max_length", None)
    if isinstance(stated, int) and stated < 10**9:
        limits.append(stated)
    if model.pooling is not None and model.pooling.limit is not None:
        limits.append(model.pooling.limit)
    text = model.text_config
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    relative = hasattr(text, "relative_attention_num_buckets") or getattr(text, "position_biased_input", True) is False
    if isinstance(positions, int) and positions > 0 and not relative:
        # RoBERTa and similar models count positions from the padding id on.
        offset = _position_offset(model)
        limits.append(int(positions * _stretch(text)) - offset)
    return min(limits) if limits else None


def _stretch(config: Any) -> float:
    """Return by which factor a text may exceed the configured length, because of scaled rotary positions."""
    options = getattr(config, "rope_parameters", None) or {}
    factor = options.get("factor") if options.get("rope_type") == "dynamic" else None
    return max(1.0, float(factor or 1))


def decoder_limit(model: Runner) -> int | None:
    """Return how many tokens the decoder of an encoder-decoder takes, or None if unknown."""
    text = model.text_config
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "max_target_positions", None)
    relative = hasattr(text, "relative_attention_num_buckets")
    return positions if isinstance(positions, int) and positions > 0 and not relative else None


def check_vocabulary(model: Runner, ids: Sequence[int]) -> None:
    """Check that the model has an embedding for each token; otherwise PyTorch fails, on a GPU beyond repair."""
    bare: Any = model.model
    try:
        table = bare.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # plain PyTorch, or embeddings of another kind
        return
    largest = max(ids, default=0)
    if isinstance(table, torch.nn.Embedding) and largest >= table.num_embeddings:
        raise InputError(
            f"token {largest} is outside of the model's vocabulary of {table.num_embeddings} tokens: the tokenizer and "
            "the model do not belong together"
        )


def _position_offset(model: Runner) -> int:
    for module in model.model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding) and table.padding_idx is not None:
            return int(table.padding_idx) + 1
    return 0


def encode(model: Runner, item: Any, target: str | None, truncate: bool) -> Encoded:
    """Encode an input of `Model.trace` into tensors and labels. Encoded inputs are returned unchanged."""
    if isinstance(item, Encoded):
        return item
    if isinstance(item, Mapping):
        return _named_tensors(model, item)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and not isinstance(item[1], str):
        encoded = _named_tensors(model, features(model, *item)[0])
        return replace(encoded, image=photo(model, item[1], encoded.tensors))
    main = getattr(model.model, "main_input_name", "input")
    both = hasattr(model.model, "get_text_features") and hasattr(model.model, "get_image_features")
    if main == "pixel_values" or (both and not isinstance(item, str | tuple)):
        item = read_image(item)
        processor = getattr(model.processor, "image_processor", model.processor)
        encoded = inputs.encode_image(processor, item, patch_size(model))
        return replace(encoded, image=photo(model, item, encoded.tensors))
    if isinstance(item, Tensor):
        return _named_tensors(model, {main: item if item.dim() > 1 else item[None]})
    if main in OF_SOUNDS:
        raise InputError(
            f"the input is {inputs.kind(item)}, and this model takes sounds: expected the tensors of its feature "
            f"extractor, {{{main!r}: …}}, with decoder_input_ids if it writes"
        )
    if target is not None and not getattr(model.config, "is_encoder_decoder", False):
        raise InputError("target is for encoder-decoder models, and this model is not one: leave it out")
    result = encode_texts(model, [item], target, truncate)[0]
    if isinstance(result, InputError):
        raise result
    return result


def encode_texts(
    model: Runner, texts: Sequence[Any], target: str | None = None, truncate: bool = False
) -> list[Encoded | InputError]:
    """Tokenize texts, or pairs of texts, at once. For a text that cannot be used, return the error instead."""
    if model.pooling is not None:
        texts = [model.pooling.prepared(text) for text in texts]
    results = inputs.encode_texts(model.tokenizer, texts, limit(model), truncate)
    untyped = not model.accepts("token_type_ids")
    for i, encoded in enumerate(results):
        if isinstance(encoded, InputError):
            continue
        try:
            check_vocabulary(model, encoded.tensors["input_ids"][0].tolist())
        except InputError as e:
            results[i] = e
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
            "this is a chat message, with a role and a content: expected a text; Model.answer takes messages, and "
            "explains what the model answers to them"
        )
    goal = next((name for name in TRAINING if inputs_by_name.get(name) is not None), None)
    if goal is not None:
        decodes = bool(getattr(model.config, "is_encoder_decoder", False))
        instead = ", or give the target as decoder_input_ids" if decodes else ""
        raise InputError(f"{goal} is for training, where the model computes a loss: leave {goal} out{instead}")
    tensors = {}
    for name, x in inputs_by_name.items():
        if x is None:
            continue
        try:
            tensors[str(name)] = x if isinstance(x, Tensor) else torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{name} is {a_type(x)}: expected a tensor") from None
    for name in ("pixel_values", "input_values", "input_features", "inputs_embeds"):
        cut = name == "pixel_values" and "image_grid_thw" in tensors  # a row for each patch, of one image or several
        if name in tensors and not cut and tensors[name].shape[:1] != (1,):
            raise InputError(f"{name} has shape {tuple(tensors[name].shape)}: expected [1, …], one input at a time")
    ids = tensors.get("input_ids")
    if ids is None:
        return _with_decoder(model, _with_patches(model, Encoded(tensors, image=photo(model, None, tensors))))
    if ids.dim() != 2 or ids.shape[0] != 1 or not ids.shape[1]:
        raise InputError(f"input_ids has shape {tuple(ids.shape)}: expected [1, tokens], one text at a time")
    if ids.is_floating_point() or ids.is_complex() or int(ids.min()) < 0:
        raise InputError(
            f"input_ids contains {ids.dtype} values from {ids.min().item()}: expected non-negative integers"
        )
    mask = tensors.get("attention_mask")
    if mask is not None and mask.dim() == 4:
        tensors["attention_mask"] = _of_pairs(model, mask, int(ids.shape[1]))
    elif mask is not None and (mask.dim() != 2 or not bool(mask.bool().all())):
        raise InputError(
            "attention_mask hides positions: give one text without padding; a list of texts is padded for you"
        )
    encoded = _with_picture(model, _named(model, ids[0].tolist(), tensors))
    return _with_decoder(model, replace(encoded, image=photo(model, None, tensors)))


def _with_decoder(model: Runner, encoded: Encoded) -> Encoded:
    """Name the tokens of the decoder, if they are given."""
    target = encoded.tensors.get("decoder_input_ids")
    return encoded if target is None else replace(encoded, target=_named(model, target[0].tolist(), {}))


def _of_pairs(model: Runner, mask: Tensor, n: int) -> Tensor:
    """Convert a mask of pairs to additive numbers: eager attention would add True and False as they are."""
    if mask.shape[0] != 1 or mask.shape[2:] != (n, n) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InputError(
            f"attention_mask is {mask.dtype} of shape {tuple(mask.shape)}: expected a mask of pairs, [1, 1 or heads, "
            f"{n}, {n}], that is True where a query sees a key, or numbers to add to the scores"
        )
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.finfo(model.dtype).min).to(model.dtype)


def _named(model: Runner, ids: list[int], tensors: dict[str, Tensor]) -> Encoded:
    if model.tokenizer is None:
        return inputs.labelled(tensors, [str(i) for i in ids])
    special = set(model.tokenizer.all_special_ids)
    special -= {getattr(model.tokenizer, f"{name}_token_id", None) for name in ("unk", "mask")}  # these represent words
    pieces = [str(p) for p in model.tokenizer.convert_ids_to_tokens(ids)]
    marks = [i in special for i in ids]
    tokens, word_ids, texts = inputs.by_marks(pieces, marks)
    return Encoded(
        tensors, tokens, tuple(marks), word_ids, texts, model.tokenizer.decode([i for i in ids if i not in special])
    )


def _with_picture(model: Runner, encoded: Encoded) -> Encoded:
    """Name positions that represent patches of an image by row and column, each as a word."""
    places = image_places(model.config, encoded.tensors["input_ids"][0].tolist())
    wiring = wired(model, encoded.tensors, places)
    picture = picture_of(wiring, places)
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
        picture=picture, wiring=wiring,
    )  # fmt: skip


def wired(model: Runner, tensors: Mapping[str, Tensor], places: Sequence[int]) -> Wiring | None:
    """Return how the image is wired to these positions of the text, computed once per image size."""
    if "pixel_values" not in tensors or not places:
        return None
    sizes = {name: tensors[name].tolist() for name in ("image_grid_thw", "image_sizes") if name in tensors}
    kind = f"{tuple(tensors['pixel_values'].shape)}, {sizes}, {len(places)}"
    if kind not in model.wirings:
        model.wirings[kind] = wiring_of(model, tensors, places, patch_size(model))
    return model.wirings[kind]


def _with_patches(model: Runner, encoded: Encoded) -> Encoded:
    pixels, shapes = encoded.tensors.get("pixel_values"), encoded.tensors.get("spatial_shapes")
    if shapes is not None:  # SigLIP 2: a row for each patch, and the shape of the grid
        rows, columns = (int(size) for size in shapes[0])
        names = tuple(f"{r},{c}" for r in range(rows) for c in range(columns))
        return replace(encoded, tokens=names, patches=(rows, columns))
    if pixels is None or pixels.dim() == 5 or "noise" in encoded.tensors:
        return encoded  # numbered: patches of a video, and those that ViT-MAE shuffles by noise
    return replace(inputs.encode_image(None, pixels, patch_size(model)), tensors=encoded.tensors, image=encoded.image)


def patch_size(model: Runner) -> tuple[int, int] | None:
    """Return the height and width of a patch in pixels; None if the configuration does not say."""
    vision = getattr(model.config, "vision_config", None) or model.config
    size = getattr(vision, "patch_size", None) or getattr(getattr(model.model, "patch_embed", None), "patch_size", None)
    if size is None:
        return None
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def decoder_start(model: Runner) -> int:
    """Return the token that the decoder of an encoder-decoder begins with."""
    generation = getattr(model.model, "generation_config", None)
    start = getattr(generation, "decoder_start_token_id", None)  # used for generation, if the two differ
    if start is None:
        start = getattr(model.config, "decoder_start_token_id", None)
    return model.pad_id() if start is None else int(start)


def _with_target(model: Runner, encoded: Encoded, target: str | None, truncate: bool) -> Encoded:
    """Add the decoder's side: its start token and the target, shifted by one, so that position i predicts token i."""
    start = decoder_start(model)
    if target is None:
        ids = _written(model, encoded)
        ids = ids if ids[:1] == [start] else [start, *ids]
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


def _written(model: Runner, encoded: Encoded) -> list[int]:
    """Generate greedily with an encoder-decoder, keeping its start tokens and dropping its end token."""
    if not hasattr(model.model, "generate") or not getattr(model.model, "can_generate", lambda: False)():
        raise InputError(
            "this encoder-decoder cannot generate a target by itself: give target=, the text for its decoder"
        )
    try:
        with torch.no_grad():
            written = model.model.generate(
                **model.placed(encoded.tensors), max_new_tokens=WRITTEN, num_beams=1, do_sample=False,
                return_dict_in_generate=True,
            )  # fmt: skip
    except Exception as e:  # model files may raise anything
        raise InputError(
            f"this encoder-decoder cannot generate a target by itself ({type(e).__name__}: {e!s:.80}): give target=, "
            "the text for its decoder"
        ) from e
    ids = [int(i) for i in written.sequences[0].tolist()]
    ends = getattr(model.config, "eos_token_id", None)
    while len(ids) > 1 and (ids[-1] == model.pad_id() or ids[-1] == ends):
        ids.pop()
    return ids
