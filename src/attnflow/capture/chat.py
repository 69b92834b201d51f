"""Messages through a chat template, and where the contents of each stand in what comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.capture import control
from attnflow.capture.inputs import kind
from attnflow.errors import InputError

Message = dict[str, str]

EXAMPLE = '[{"role": "user", "content": "…"}]'

_TRIMS = (str, str.strip, str.rstrip, str.lstrip)
"""What templates do to contents: leave them, or trim them."""


@dataclass(frozen=True)
class Content:
    """Where the content of one message stands in the rendered text.

    skipped: characters that the template trimmed off its front, or None where the template changed it otherwise.
    """

    message: int
    start: int
    end: int
    skipped: int | None = 0


def has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def checked_messages(messages: Sequence[Any], system: str | None = None) -> list[Message]:
    """The messages as dicts of role and content, after a look at each of them."""
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
        raise InputError(f"{name} is {kind(message)}: expected a dict of role and content, such as {EXAMPLE}")
    missing = [key for key in ("role", "content") if key not in message]
    if missing:
        raise InputError(f"{name} has no {' and no '.join(missing)}: expected role and content, such as {EXAMPLE}")
    more = [str(key) for key in message if key not in ("role", "content")]
    if more:
        raise InputError(f"{name} has {', '.join(more)} besides role and content: leave out what is neither")
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or not re.fullmatch(r"[\w-]+", role):
        raise InputError(f"the role of {name} is {role!r:.60}: expected one word, such as system, user or assistant")
    if not isinstance(content, str):
        raise InputError(f"the content of {name} is {kind(content)}: expected a text")
    if not content.strip():
        raise InputError(f"the content of {name} is empty: write something, or leave the message out")
    return {"role": role, "content": content}


def render(tokenizer: Any, messages: Sequence[Message]) -> tuple[str, list[Content]]:
    """What the template makes of the messages, ready for an answer, and where their contents stand, in order.

    The template runs a second time with a mark in place of each content; what stands between the marks is the template's
    own. Contents that it left alone or trimmed are then known to the character. Contents that it changed otherwise are
    what stands between those pieces, if there is only one way to find them; if not, the template is refused.
    """
    if not has_template(tokenizer):
        raise InputError(
            "the tokenizer of this model has no chat template, which a list of messages needs: give the prompt as one text"
        )
    text = _applied(tokenizer, messages)
    mark = control.unused("".join(m["content"] for m in messages) + text, 1)[0]
    marked = _applied(tokenizer, [{**m, "content": f"{mark}{i}{mark}"} for i, m in enumerate(messages)])
    pieces = re.split(f"{mark}(\\d+){mark}", marked)
    numbers, own = [int(n) for n in pieces[1::2]], pieces[::2]
    contents = _trimmed(text, [messages[n]["content"] for n in numbers], own) or _between(text, own)
    if contents is None or mark in "".join(own):
        raise InputError(
            "the chat template of this tokenizer changes what messages say, so that their places cannot be known: apply "
            "the template yourself and give the prompt as one text, with interpret_special=True"
        )
    return text, [Content(n, *place) for n, place in zip(numbers, contents, strict=True)]


Place = tuple[int, int, int | None]


def _trimmed(text: str, contents: Sequence[str], own: Sequence[str]) -> list[Place] | None:
    """Places of contents that the template has left alone or trimmed, if that is all it did."""
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
    """What stands between the template's own pieces, if they lie in the text in one way only."""
    shortest = re.fullmatch("(.*?)".join(map(re.escape, own)), text, re.DOTALL)
    longest = re.fullmatch("(.*)".join(map(re.escape, own)), text, re.DOTALL)
    if not shortest or not longest or shortest.regs != longest.regs:
        return None
    return [(start, end, None) for start, end in shortest.regs[1:]]


def _applied(tokenizer: Any, messages: Sequence[Message]) -> str:
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except Exception as e:  # templates are programs that came with the model
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        roles = ", ".join(m["role"] for m in messages)
        raise InputError(
            f"the chat template of this tokenizer does not take messages by {roles} ({reason:.120}): give those that it "
            "takes, or the prompt as one text"
        ) from None
