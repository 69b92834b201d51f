"""Texts or messages with an image, through the processor of a vision-language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnflow.capture import chat, control
from attnflow.capture.images import KINDS, read_image
from attnflow.capture.inputs import kind
from attnflow.errors import InputError, TextError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner


def features(
    model: Runner, prompt: Any, image: Any, system: str | None = None, interpret_special: bool = False
) -> tuple[dict[str, Tensor], list[tuple[str, str]]]:
    """Run the processor on both; also return the role and the content of each message."""
    processor = model.processor
    mark = getattr(processor, "image_token", None)
    if getattr(processor, "image_processor", None) is None or model.tokenizer is None or mark is None:
        raise InputError(
            f"{model!r} has no processor for texts with an image: expected a vision-language model, loaded from a "
            "folder with its processor, or wrap(model, processor)"
        )
    picture = read_image(image.detach().cpu().numpy() if isinstance(image, Tensor) else image)
    if isinstance(prompt, str) and system is None:
        _check_plain(model, prompt, mark, interpret_special)
        rendered = prompt if mark in prompt else f"{mark} {prompt}"
        contents: list[tuple[str, str]] = []
    elif isinstance(prompt, str) or (isinstance(prompt, Sequence) and not isinstance(prompt, bytes | Mapping)):
        listed = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = chat.checked_messages(listed, system)
        contents = [(message["role"], message["content"]) for message in messages]
        for _, content in contents:
            _check_plain(model, content, mark, interpret_special)
        rendered = _rendered(model, contents, mark)
    else:
        raise InputError(f"prompt is {kind(prompt)}: expected a text, or a list of messages such as {chat.EXAMPLE}")
    begin = getattr(model.tokenizer, "bos_token", None)
    again = {"add_special_tokens": False} if begin and rendered.startswith(begin) else {}
    try:
        tensors = processor(text=[rendered], images=[picture], return_tensors="pt", **again)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RuntimeError) as e:
        raise InputError(
            f"the processor does not accept this text with an image ({type(e).__name__}: "
            f"{str(e).splitlines()[0]:.100}): {KINDS}"
        ) from None
    return {name: x for name, x in tensors.items() if isinstance(x, Tensor)}, contents


def _check_plain(model: Runner, text: str, mark: str, interpret: bool) -> None:
    if not text.replace(mark, "").strip():
        raise TextError.of("empty", f"the prompt {text!r:.60} is empty: expected at least one word")
    if text.count(mark) > 1:
        raise InputError(f"the prompt contains {mark} {text.count(mark)} times: expected it once, for one image")
    written = [str(token) for token in control.control_tokens(model.tokenizer).values() if str(token) in text]
    acting = [token for token in written if token != mark]
    if acting and not interpret:
        raise InputError(
            f"the prompt contains {acting[0]!r}, which would act as a special token in a prompt with an image: remove "
            "it, or give interpret_special=True"
        )


def _rendered(model: Runner, contents: Sequence[tuple[str, str]], mark: str) -> str:
    """Render messages with the processor's chat template, with the image in the last user message."""
    template: Any = model.processor if chat.has_template(model.processor) else model.tokenizer
    if not chat.has_template(template):
        raise InputError("the processor of this model has no chat template: give the prompt as one text")
    last = max((i for i, (role, _) in enumerate(contents) if role == "user"), default=-1)
    if last < 0:
        raise InputError("an image belongs to a user message, and there is none: add one")
    placed = any(mark in content for _, content in contents)
    messages = []
    for i, (role, content) in enumerate(contents):
        items: list[dict[str, str]] = [{"type": "text", "text": content}]
        messages.append({"role": role, "content": [{"type": "image"}, *items] if i == last and not placed else items})
    try:
        return str(template.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except Exception as e:  # templates are programs and may raise anything
        raise InputError(
            f"the chat template of this model does not accept an image ({type(e).__name__}: {e!s:.80}): give the "
            "prompt as one text"
        ) from None
