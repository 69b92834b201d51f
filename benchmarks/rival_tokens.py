"""Exact conversion between tokens and texts, for packages that read texts: they tokenize to the same tokens again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

FIRST = 0x10000
"""The first character beyond the basic plane: none of the million after it is a space or ends a line."""


class Span(NamedTuple):
    """The characters of a token."""

    start: int
    end: int


class Encoded(dict[str, Any]):
    """The result of a tokenizer: ids, attention mask, and the characters of each token."""

    def __init__(self, ids: Sequence[int], ends: Sequence[int], tensors: bool) -> None:
        starts = [0, *ends[:-1]]
        self.spans = [Span(start, end) for start, end in zip(starts, ends, strict=True)]
        values = {"input_ids": list(ids), "attention_mask": [1] * len(ids)}
        super().__init__({k: torch.tensor([v]) for k, v in values.items()} if tensors else values)
        if not tensors:
            self["offset_mapping"] = [tuple(span) for span in self.spans]

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]

    def to(self, device: torch.device) -> Encoded:
        self.update({k: v.to(device) for k, v in self.items() if isinstance(v, torch.Tensor)})
        return self

    def token_to_chars(self, token: int) -> Span:
        return self.spans[token]

    def char_to_token(self, place: int) -> int:
        return next(i for i, span in enumerate(self.spans) if span.start <= place < span.end)


class CharacterTokens:
    """A tokenizer for texts with one character per token, so that any part of a text can be cut out.

    >>> tokens = CharacterTokens(None)
    >>> text = tokens.text([7, 7, 259])
    >>> len(text), tokens.encode(text[1:])
    (3, [7, 259])
    """

    padding_side = "left"

    def __init__(self, tokenizer: Any) -> None:
        self.pad_token_id = getattr(tokenizer, "pad_token_id", None) or 0
        self.pad_token, self.eos_token = self.text([self.pad_token_id]), None

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(FIRST + i) for i in ids)

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(character) - FIRST for character in text]

    def decode(self, ids: Sequence[int] | torch.Tensor, **options: Any) -> str:
        return self.text(ids.tolist() if isinstance(ids, torch.Tensor) else ids)

    def __call__(self, text: str, return_tensors: str | None = None, **options: Any) -> Encoded:
        encoded = Encoded(self.encode(text), range(1, len(text) + 1), return_tensors is not None)
        encoded.pop("offset_mapping", None)  # a batch loader pads every column
        return encoded

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **options: Any) -> str:
        """Return the text unchanged: its tokens include the template already."""
        return messages[-1]["content"]

    def pad(self, rows: Any, **options: Any) -> dict[str, torch.Tensor]:
        """Return batches of texts of one length: one text runs at a time, so nothing is padded."""
        columns = {name: [row[name] for row in rows] for name in rows[0]} if isinstance(rows, list) else rows
        return {name: torch.tensor(values) for name, values in columns.items()}


class KnownTexts:
    """A tokenizer for a few texts with known tokens; each token has its own text, so that "." is a full stop.

    >>> tokens = KnownTexts(None, [3, 4], [5])
    >>> tokens(tokens.text([3, 4]))["input_ids"], tokens.text([5])
    ([3, 4], '<5>')
    """

    def __init__(self, tokenizer: Any, *texts: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.eos_token_id = getattr(tokenizer, "eos_token_id", None)
        self.eos_token = None if self.eos_token_id is None else self.piece(self.eos_token_id)
        end = [] if self.eos_token_id is None else [self.eos_token_id]
        self.ids = {self.text(ids): list(ids) for text in texts for ids in (text, [*text, *end])}

    def piece(self, token: int) -> str:
        """Return the text of one token."""
        return f"<{token}>" if self.tokenizer is None else str(self.tokenizer.decode([token]))

    def text(self, ids: Sequence[int]) -> str:
        return "".join(map(self.piece, ids))

    def decode(self, ids: torch.Tensor, **options: Any) -> str:
        return self.text(ids.tolist())

    def __call__(self, text: str, return_tensors: str | None = None, **options: Any) -> Encoded:
        ids = self.ids[text]
        ends = [len(self.text(ids[: i + 1])) for i in range(len(ids))]
        return Encoded(ids, ends, return_tensors is not None)
