"""Chat templates: rendering of messages, and the positions of their contents in the rendered text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.capture.inputs import kind
from attnflow.errors import InputError

Message = dict[str, str]

EXAMPLE = '[{"role": "user", "content": "…"}]'

_TRIMS = (str, str.strip, str.rstrip, str.lstrip)
"""What templates may do to contents: keep them, or trim them."""


@dataclass(frozen=True)
class Content:
    """Where the content of one message is in the rendered text.

    skipped: the number of characters that the template trimmed from its front, or None if the template changed it in
        another way.
    """

    message: int
    start: int
    end: int
    skipped: int | None = 0


def has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def checked_messages(messages: Sequence[Any], system: str | None = None) -> list[Message]:
    """Validate the messages and return them as dicts with role and content."""
    if not messages:
        raise InputError(f"the list of messages is empty: expected at least one, such as {EXAMPLE}")
    checked = [_checked(message, f"message {i + 1}") for i, message in enumerate(messages)]
    if system is None:
        return checked
    if checked[0]["role"] == "system":
        raise InputError("system is given twice, as an argument and as the first message: give it once")
    return [_checked({"role": "system", "content": system}, "system"), *checked]


def _checked(message: Any, name: str) -> Message:
    if not isinstance(message, Mapping):
        raise InputError(f"{name} is {kind(message)}: expected a dict with role and content, such as {EXAMPLE}")
    missing = [key for key in ("role", "content") if key not in message]
    if missing:
        raise InputError(f"{name} has no {' and no '.join(missing)}: expected role and content, such as {EXAMPLE}")
    more = [str(key) for key in message if key not in ("role", "content")]
    if more:
        raise InputError(f"{name} has {', '.join(more)} in addition to role and content: remove the other keys")
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or not re.fullmatch(r"[\w-]+", role):
        raise InputError(f"the role of {name} is {role!r:.60}: expected one word, such as system, user or assistant")
    if not isinstance(content, str):
        raise InputError(f"the content of {name} is {kind(content)}: expected a text")
    if not content.strip():
        raise InputError(f"the content of {name} is empty: write something, or leave the message out")
    return {"role": role, "content": content}


def render(tokenizer: Any, messages: Sequence[Message]) -> tuple[str, list[Content]]:
    """Render the messages with the template, ready for an answer, and return where their contents are, in order.

    The template runs a second time with a mark in place of each content; the text between the marks is the template's
    own. This gives the exact place of contents that were kept or trimmed. Contents that were changed in another way are
    found between the template's own pieces, if there is only one way to do so; otherwise the template is refused.
    """
    if not has_template(tokenizer):
        raise InputError(
            "the tokenizer of this model has no chat template, which a list of messages needs: give the prompt as one text"
        )
    text = _applied(tokenizer, messages)
    seen = {*text, *(character for message in messages for character in message["content"])}
    mark = next(chr(i) for i in range(0xF0000, 0xFFFFE) if chr(i) not in seen)  # a private character
    marked = _applied(tokenizer, [{**m, "content": f"{mark}{i}{mark}"} for i, m in enumerate(messages)])
    pieces = re.split(f"{mark}(\\d+){mark}", marked)
    numbers, own = [int(n) for n in pieces[1::2]], pieces[::2]
    contents = _trimmed(text, [messages[n]["content"] for n in numbers], own) or _between(text, own)
    if contents is None or mark in "".join(own):
        raise InputError(
            "the chat template of this tokenizer changes the contents of messages, so their positions cannot be "
            "found: apply the template yourself and give the prompt as one text, with interpret_special=True"
        )
    return text, [Content(n, *place) for n, place in zip(numbers, contents, strict=True)]


Place = tuple[int, int, int | None]


def _trimmed(text: str, contents: Sequence[str], own: Sequence[str]) -> list[Place] | None:
    """Return the places of the contents if the template only kept or trimmed them, else None."""
    if not text.startswith(own[0]):
        return None
    places: list[Place] = []
    cursor = len(own[0])
    for content, after in zip(contents, own[1:], strict=True):
        for trim in _TRIMS:
            seen = trim(content)
            if text.startswith(seen + after, cursor):
                break
        else:
            return None
        places.append((cursor, cursor + len(seen), content.index(seen)))
        cursor += len(seen) + len(after)
    return places if cursor == len(text) else None


def _between(text: str, own: Sequence[str]) -> list[Place] | None:
    """Return the places between the template's own pieces if the pieces fit the text in one way only, else None."""
    shortest = re.fullmatch("(.*?)".join(map(re.escape, own)), text, re.DOTALL)
    longest = re.fullmatch("(.*)".join(map(re.escape, own)), text, re.DOTALL)
    if not shortest or not longest or shortest.regs != longest.regs:
        return None
    return [(start, end, None) for start, end in shortest.regs[1:]]


def _applied(tokenizer: Any, messages: Sequence[Message]) -> str:
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except Exception as e:  # templates are programs and may raise anything
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        roles = ", ".join(m["role"] for m in messages)
        raise InputError(
            f"the chat template of this tokenizer does not accept messages by {roles} ({reason:.120}): use roles that "
            "it accepts, or give the prompt as one text"
        ) from None
