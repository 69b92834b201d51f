"""Control tokens, which steer a model instead of spelling a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from attnflow.texts.units import Range

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Tokens(NamedTuple):
    """The tokens of a text.

    added: which of them the tokenizer inserted by itself.
    """

    ids: list[int]
    offsets: list[Range]
    added: list[bool]


def special_ids(tokenizer: Any) -> set[int]:
    """Return all tokens that the tokenizer calls special in any way."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*(int(i) for i, token in added.items() if token.special), *map(int, tokenizer.all_special_ids)}


def control_tokens(tokenizer: Any) -> dict[int, Any]:
    """Return the added tokens that steer a model, by id: special ones, and those in the chat template.

    White space, which templates write as text, and tokens of single bytes do not count.
    """
    template = getattr(tokenizer, "chat_template", None)
    written = template if isinstance(template, str) else "".join((template or {}).values())
    special = special_ids(tokenizer)
    return {
        int(i): token
        for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        if str(token).strip() and not _BYTE.fullmatch(str(token)) and (i in special or str(token) in written)
    }


def acting(tokenizer: Any, text: str, ids: Sequence[int], offsets: Sequence[Range]) -> list[bool]:
    """Return which tokens are control tokens in the text. The unknown token counts if it is written literally."""
    control = control_tokens(tokenizer)
    unknown = getattr(tokenizer, "unk_token_id", None)
    return [
        i in control and (text[start:end].strip() == str(control[i]) if i == unknown else end > start)
        for i, (start, end) in zip(ids, offsets, strict=True)
    ]
