"""A prompt with an image, through the model's processor, and the positions that represent the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnflow.capture import encode
from attnflow.capture.picture import image_places, picture_of
from attnflow.capture.processed import features
from attnflow.capture.prompt import Part, Prompt, outside_of, prompt_of_ids
from attnflow.capture.runner import Runner


def read_picture_prompt(
    model: Runner, prompt: Any, image: Any, *, system: str | None = None, interpret_special: bool = False
) -> Prompt:
    """Read a text or messages together with an image, as the model does.

    The image comes before a text, or before the last user message, unless the text contains the processor's image
    token.

    prompt: as in `read_prompt`.
    """
    tensors, contents = features(model, prompt, image, system, interpret_special)
    ids = [int(i) for i in tensors["input_ids"][0].tolist()]
    places = image_places(model.config, ids)
    wiring = encode.wired(model, tensors, places)
    picture = picture_of(wiring, places)
    result = prompt_of_ids(model, ids)
    names = {place: picture.name(number) for number, place in enumerate(picture.places)} if picture else {}
    tokens, special = list(result.tokens), list(result.special)
    word_ids, texts = list(result.word_ids), list(result.word_texts)
    for place in places:
        tokens[place], special[place], word_ids[place] = names.get(place, "image"), False, len(texts)
        if names:
            texts.append(tokens[place])
    if places and not names:  # all of them are one word
        texts.append("image")
    messages = _parts(result.text, contents)
    beside = {name: x for name, x in tensors.items() if name not in ("input_ids", "attention_mask")}
    ranges = [(part.start, part.end) for part in messages]
    template = outside_of(result.offsets, ranges) if messages else result.template
    return replace(
        result, tokens=tuple(tokens), special=tuple(special), word_ids=tuple(word_ids), word_texts=tuple(texts),
        messages=messages, template=tuple(mark and i not in places for i, mark in enumerate(template)), tensors=beside,
        image=tuple(places), picture=picture, wiring=wiring, photo=image,
    )  # fmt: skip


def _parts(text: str, contents: Sequence[tuple[str, str]]) -> tuple[Part, ...]:
    """Find the contents of messages in the decoded text; name them by role, with a number if a role has several."""
    roles = [role for role, _ in contents]
    parts, cursor = [], 0
    for i, (role, content) in enumerate(contents):
        start = text.find(content.strip(), cursor)
        if start < 0:  # if it decodes differently from how it was written, the whole text counts
            return ()
        cursor = start + len(content.strip())
        parts.append(Part(role if roles.count(role) == 1 else f"{role} {roles[: i + 1].count(role)}", start, cursor))
    return tuple(parts)
