"""Control tokens, which steer a model instead of spelling a text, and texts that contain them literally."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnflow.errors import InputError
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


def unused(text: str, count: int) -> list[str]:
    """Return private characters that are not in the text."""
    seen = set(text)
    free = (chr(i) for i in range(0xF0000, 0xFFFFE) if chr(i) not in seen)
    return [next(free) for _ in range(count)]


def encode_apart(tokenizer: Any, text: str, plain: Sequence[Range], add_special: bool) -> Tokens:
    """Tokenize a text such that control tokens within the plain ranges are spelled like any other text.

    transformers has split_special_tokens for this, which is not enough: it also spells the control tokens of a
    template, and Unigram models have control tokens among their pieces. So a copy of the tokenizer knows them by
    private characters, with the same length. Outside the plain ranges they are written with these characters; inside,
    their names mean nothing to the copy.
    """
    control = control_tokens(tokenizer)
    names = [str(token) for token in control.values()]
    if not getattr(tokenizer, "is_fast", False):
        shown = [name for name in names if any(name in text[start:end] for start, end in plain)]
        raise InputError(
            f"the prompt contains {', '.join(shown)}, which this tokenizer cannot read as plain text: remove it, or "
            "give interpret_special=True"
        )
    stand_ins = {name: sign * len(name) for name, sign in zip(names, unused(text, len(names)), strict=True)}
    copy = _copy(tokenizer.backend_tokenizer, control.values(), stand_ins)
    encoding = copy.encode(_disguised(text, plain, stand_ins), add_special_tokens=add_special)
    added = [bool(mark) for mark in encoding.special_tokens_mask]
    return Tokens(list(encoding.ids), list(encoding.offsets), added)


def _copy(backend: Any, control: Any, stand_ins: Mapping[str, str]) -> Any:
    """Return a copy of the tokenizer with other names for its control tokens, and the same ids."""
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    model = state["model"]
    state["truncation"] = state["padding"] = None
    # A token that the model does not know would get a new id.
    ids = {stand_ins.get(token["content"], token["content"]): int(token["id"]) for token in state["added_tokens"]}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in stand_ins]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {stand_ins.get(piece, piece): i for piece, i in model["vocab"].items()} | ids
    else:
        vocabulary = [[stand_ins.get(piece, piece), score] for piece, score in model["vocab"]]
        names = {i: name for name, i in ids.items()}
        gaps = range(len(vocabulary), max(names, default=0) + 1)
        model["vocab"] = vocabulary + [[names.get(i, f"{next(iter(ids))}{i}"), 0.0] for i in gaps]
    if model.get("unk_token") in stand_ins:
        model["unk_token"] = stand_ins[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if "".join(merge) not in stand_ins]
    copy = Tokenizer.from_str(json.dumps(state))
    copy.add_tokens([_renamed(token, stand_ins[str(token)], copy.normalizer) for token in control])
    return copy


def _renamed(token: Any, name: str, normalizer: Any) -> Any:
    """Return a token that no setting of the tokenizer spells out.

    normalized: the tokenizer looks for it in the normalized text.
    """
    from tokenizers import AddedToken

    survives = normalizer is None or name in normalizer.normalize_str(name)
    options = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word}
    return AddedToken(name, special=False, normalized=token.normalized and survives, **options)


def _disguised(text: str, plain: Sequence[Range], stand_ins: Mapping[str, str]) -> str:
    """Replace control tokens outside the plain ranges by their stand-ins."""
    pattern = re.compile("|".join(map(re.escape, sorted(stand_ins, key=len, reverse=True))))
    pieces, cursor = [], 0
    for start, end in (*plain, (len(text), len(text))):
        pieces += [pattern.sub(lambda match: stand_ins[match[0]], text[cursor:start]), text[start:end]]
        cursor = end
    return "".join(pieces)
