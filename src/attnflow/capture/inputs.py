"""Conversion of a user's input to the tensors that a model takes and the labels that people read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnflow._arrays import FloatArray
from attnflow.capture.images import read_image
from attnflow.capture.picture import Picture
from attnflow.capture.wiring import Wiring
from attnflow.errors import InputError, TextError, a_type
from attnflow.texts.units import WORD, is_mark

if TYPE_CHECKING:
    from transformers import BatchEncoding

FAR = 1 << 20
FAR_A_TOKEN = 1000
"""Maximal characters of a text, in total and per token that the model takes, checked before tokenization."""


@dataclass(frozen=True)
class Encoded:
    """One input: tensors for a batch of one, and a label for each position.

    word_ids: the word of each position, None for special tokens.
    special: class, separator, register and padding tokens.
    patches: rows and columns of the patches of an image, which are the last positions.
    target: the decoder's text.
    picture: an image within a text.
    wiring: how its patches feed positions of the text.
    cut: the number of tokens before truncation to the model's limit.
    image: what a vision model saw, uint8 [height, width, 3], made small.
    """

    tensors: dict[str, Tensor]
    tokens: tuple[str, ...] = ()
    special: tuple[bool, ...] = ()
    word_ids: tuple[int | None, ...] = ()
    word_texts: tuple[str, ...] = ()
    text: str = ""
    patches: tuple[int, int] | None = None
    target: Encoded | None = None
    picture: Picture | None = None
    wiring: Wiring | None = None
    cut: int | None = None
    image: FloatArray | None = None


def labelled(tensors: dict[str, Tensor], tokens: Sequence[str], special: Sequence[bool] | None = None) -> Encoded:
    """Label positions that are each a separate word: patches, frames, or ids without a tokenizer."""
    marks = tuple(special) if special is not None else (False,) * len(tokens)
    number = count()
    ids = [None if mark else next(number) for mark in marks]
    words = tuple(t for t, mark in zip(tokens, marks, strict=True) if not mark)
    return Encoded(tensors, tuple(tokens), marks, tuple(ids), words)


def encode_text(tokenizer: Any, text: Any, limit: int | None, truncate: bool, target: bool = False) -> Encoded:
    """Tokenize a text, or a pair of texts."""
    encoded = encode_texts(tokenizer, [text], limit, truncate, target)[0]
    if isinstance(encoded, InputError):
        raise encoded
    return encoded


def encode_texts(
    tokenizer: Any, texts: Sequence[Any], limit: int | None, truncate: bool, target: bool = False
) -> list[Encoded | InputError]:
    """Tokenize texts, or pairs of texts, at once. For a text that cannot be used, return the error instead."""
    results: list[Encoded | InputError | None] = [
        unusable(tokenizer, text, None if truncate else limit) for text in texts
    ]
    groups: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        if results[i] is None:
            groups.setdefault(1 if isinstance(text, str) else len(text), []).append(i)
    for members in groups.values():  # texts and pairs have different shapes
        parts = [(text,) if isinstance(text, str) else text for text in (texts[i] for i in members)]
        try:
            tokenized = tokenize(tokenizer, parts, target)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:  # errors from Rust are not an Exception; one text must not harm the others
            alone = len(members) == 1
            for i in members:
                results[i] = refusal(e) if alone else encode_texts(tokenizer, [texts[i]], limit, truncate, target)[0]
            continue
        group = Group.of(tokenizer, tokenized)
        for place, i in enumerate(members):
            try:
                results[i] = _encoded(tokenizer, parts[place], group, place, limit, truncate, target)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as e:
                results[i] = e if isinstance(e, InputError) else refusal(e)
    return [e for e in results if e is not None]


def refusal(e: BaseException) -> InputError:
    """Convert an error of the tokenizer to a refusal."""
    reason = (str(e).splitlines() or [""])[0]
    return TextError.of(
        "tokenizer",
        f"the tokenizer does not accept this text ({type(e).__name__}: {reason:.80}): shorten it, or split it",
    )


def unusable(tokenizer: Any, text: Any, limit: int | None) -> InputError | None:
    """Return why a text cannot be tokenized, or None."""
    parts = (text,) if isinstance(text, str) else text
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 2 or not all(isinstance(p, str) for p in parts):
        return InputError(f"text is {kind(text)}: expected a string, or a pair of strings (text, second text)")
    try:
        " ".join(parts).encode()
    except UnicodeEncodeError:
        return TextError.of(
            "encoding", "the text contains bytes that are not UTF-8: decode it with its own encoding first"
        )
    size = sum(map(len, parts))
    if limit is not None and size > max(FAR, FAR_A_TOKEN * limit):
        return TextError.of(
            "too long", f"the text has {size:,} characters and the model takes {limit} tokens: shorten it, or split it"
        )
    if tokenizer is None:
        return InputError(
            "this model was wrapped without a tokenizer: give wrap(model, tokenizer), or a dict of tensors"
        )
    if not getattr(tokenizer, "is_fast", False):
        return InputError(
            f"{type(tokenizer).__name__} does not say which characters its tokens have: load the fast tokenizer, "
            "AutoTokenizer.from_pretrained(…, use_fast=True), or give token numbers, a dict of tensors"
        )
    return None


def tokenize(tokenizer: Any, parts: Sequence[tuple[str, ...]], target: bool, **more: Any) -> BatchEncoding:
    """Tokenize texts, or pairs of them, with the characters of each token."""
    options = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "verbose": False, **more}
    texts = {"text_target" if target else "text": [part[0] for part in parts]}
    if len(parts[0]) == 2:
        texts["text_pair"] = [part[1] for part in parts]
    return tokenizer(**texts, **options)


@dataclass(frozen=True, eq=False)
class Group:
    """Texts that were tokenized together, to share the cost of common work.

    pieces: the names of the tokens that occur, by id.
    rows: tensors [1, token] of each text, by name.
    """

    tokenized: BatchEncoding
    pieces: Mapping[int, str]
    rows: Mapping[str, Sequence[Tensor]]

    @staticmethod
    def of(tokenizer: Any, tokenized: BatchEncoding) -> Group:
        numbers = sorted({i for ids in tokenized["input_ids"] for i in ids})
        pieces = dict(zip(numbers, map(str, tokenizer.convert_ids_to_tokens(numbers)), strict=True))
        names = [n for n in getattr(tokenizer, "model_input_names", ["input_ids"]) if n in tokenized]
        rows = {}
        for name in dict.fromkeys(["input_ids", *names]):
            flat = torch.tensor([i for row in tokenized[name] for i in row])[None]
            rows[name] = flat.split([len(row) for row in tokenized[name]], 1)
        return Group(tokenized, pieces, rows)


def _encoded(
    tokenizer: Any, parts: tuple[str, ...], group: Group, place: int, limit: int | None, truncate: bool, target: bool
) -> Encoded:
    """Build the encoding of the text at this place of the tokenizer's output."""
    tokenized = group.tokenized
    ids = tokenized["input_ids"][place]
    marks = list(map(bool, tokenized["special_tokens_mask"][place]))
    if len(parts) == 2 and not any(marks) and tokenizer.num_special_tokens_to_add(pair=False):
        raise InputError("the tokenizer of this model does not support pairs of texts: give one text")
    if all(marks) or not any(part.strip() for part in parts):
        raise TextError.of("empty", f"the text {' '.join(parts)!r:.60} is empty: expected at least one word")
    whole = len(ids)
    if limit is not None and whole > limit:
        if not truncate:
            side = "last" if getattr(tokenizer, "truncation_side", "right") == "left" else "first"
            raise TextError.of(
                "too long",
                f"the text has {whole} tokens and the model takes {limit}: shorten it, split it, or give truncate=True "
                f"to keep the {side} {limit} tokens",
            )
        tokenized, place = tokenize(tokenizer, [parts], target, truncation=True, max_length=limit), 0
        group = Group.of(tokenizer, tokenized)
        ids, marks = tokenized["input_ids"][0], list(map(bool, tokenized["special_tokens_mask"][0]))
    raw = [group.pieces[i] for i in ids]
    sequence = tokenized.sequence_ids(place)
    offsets = own_ranges(parts, raw, tokenized["offset_mapping"][place], sequence)
    tokens, word_ids, words = by_offsets(parts, raw, marks, offsets, sequence)
    tensors = {name: rows[place] for name, rows in group.rows.items()}
    return Encoded(
        tensors, tokens, tuple(marks), word_ids, words, " ".join(parts), cut=whole if whole > len(ids) else None
    )


Labels = tuple[tuple[str, ...], tuple[int | None, ...], tuple[str, ...]]


def own_ranges(
    parts: tuple[str, ...], raw: Sequence[str], offsets: Sequence[Any], sequence: Sequence[int | None]
) -> list[tuple[int, int]]:
    """Return the characters of each token, from the tokenizer's offsets, which are wrong in three cases.

    A mark before the first word has no character, but gets the word's. Tokenizers that trim give separate white space
    no characters. Accents that a normalizer removed or joined belong to no token.
    """
    ranges = [(int(start), int(stop)) for start, stop in offsets]
    if all(map(str.isascii, parts)) and not any(  # the quick way out: most texts have none of the three
        part is not None and (start == stop or not piece.strip("▁Ġ"))
        for (start, stop), piece, part in zip(ranges, raw, sequence, strict=True)
    ):
        return ranges
    begins = {
        part: [*(s for (s, _), p in zip(ranges, sequence, strict=True) if p == part)] for part in range(len(parts))
    }
    seen, before = [0] * len(parts), [0] * len(parts)
    for i, (piece, part) in enumerate(zip(raw, sequence, strict=True)):
        if part is None:
            continue
        text, (start, stop) = parts[part], ranges[i]
        seen[part] += 1
        following = begins[part][seen[part]] if seen[part] < len(begins[part]) else len(text)
        if start == stop:
            blank = text[before[part] : before[part] + len(piece)]
            if blank.isspace():
                start, stop = before[part], before[part] + len(piece)
        elif not piece.strip("▁Ġ") and (start == following or text[start:stop].strip().strip("▁Ġ")):
            stop = start
        while start < stop < following and is_mark(text[stop]):
            stop += 1
        ranges[i] = (start, stop)
        before[part] = max(before[part], stop)
    return ranges


def by_offsets(
    parts: tuple[str, ...], raw: list[str], marks: list[bool], offsets: list[Any], sequence: list[int | None]
) -> Labels:
    """Label tokens by words of the text itself; words of tokenizers differ (WordPiece, byte-level BPE, SentencePiece).

    A token that covers several words (") ." as one piece) joins them.
    """
    spans = [[m.span() for m in WORD.finditer(part)] for part in parts]
    counts = [len(own) for own in spans]
    reached = [0] * len(parts)  # the first word of each part that does not end before the token
    tokens: list[str] = []
    word_ids: list[int | None] = []
    texts: list[str] = []
    blank: list[int] = []  # tokens of white space only, which join the next word
    part_of, last, begin = -1, -1, 0  # the current word: its part, its last span, its start
    for place, (piece, mark, (start, stop), part) in enumerate(zip(raw, marks, offsets, sequence, strict=True)):
        word_ids.append(None)
        if mark or part is None:
            tokens.append(piece)
            part_of = -1
            continue
        seen = parts[part][start:stop].strip()
        tokens.append(piece if not seen or piece.startswith("##") else seen)
        own, first, count = spans[part], reached[part], counts[part]
        while first and own[first - 1][1] > start:  # a tokenizer may go back
            first -= 1
        while first < count and own[first][1] <= start:
            first += 1
        reached[part] = final = first
        while final < count and own[final][0] < stop:
            final += 1
        final -= 1
        if first > final:
            blank.append(place)
            continue
        if part != part_of or first > last:
            texts.append("")
            begin = own[first][0]
        part_of, last = part, final
        texts[-1] = parts[part][begin : own[last][1]]
        word_ids[place] = len(texts) - 1
        if blank:
            for i in blank:
                word_ids[i] = len(texts) - 1
            blank = []
    for i in blank:  # at the end of the text: they join the previous word, if there is one
        word_ids[i] = len(texts) - 1 if texts else None
    return tuple(tokens), tuple(word_ids), tuple(texts)


def by_marks(raw: list[str], marks: list[bool]) -> Labels:
    """Label tokens whose text is unknown by their marks: ▁ and Ġ begin a word, ## continues one."""
    wordpiece = any(piece.startswith("##") for piece in raw)
    begins = any(piece[:1] in "▁Ġ" for piece in raw if piece)
    tokens: list[str] = []
    word_ids: list[int | None] = []
    texts: list[str] = []
    fresh = True
    for piece, mark in zip(raw, marks, strict=True):
        shown = piece if mark or wordpiece else piece.lstrip("▁Ġ") or piece
        tokens.append(shown)
        if mark:
            word_ids.append(None)
            fresh = True
            continue
        new = not piece.startswith("##") if wordpiece else piece[:1] in "▁Ġ" or not begins
        bare = piece.removeprefix("##") if wordpiece else piece.lstrip("▁Ġ")
        if new or fresh or not re.match(r"\w", bare):
            texts.append("")
        texts[-1] += bare
        word_ids.append(len(texts) - 1)
        fresh = bool(bare) and not re.match(r"\w", bare)
    return tuple(tokens), tuple(word_ids), tuple(texts)


def encode_image(processor: Any, image: Any, patch: tuple[int, int] | None) -> Encoded:
    """Encode an image (PIL, array [height, width, 3], path, or a tensor of pixel values) as patches."""
    image = read_image(image)
    if isinstance(image, Tensor) and image.dim() in (3, 4):
        tensors = {"pixel_values": image if image.dim() == 4 else image[None]}
    elif processor is None:
        raise InputError(
            "this model was wrapped without an image processor: give wrap(model, processor), or pixel values as a tensor "
            "[channel, height, width]"
        )
    else:
        # a PIL image: convert it to the channels that the processor expects
        if hasattr(image, "convert") and hasattr(image, "mode"):
            image = image.convert("L" if len(getattr(processor, "image_mean", None) or "rgb") == 1 else "RGB")
        try:
            features = processor(images=image, return_tensors="pt")
        except (ValueError, TypeError, AttributeError) as e:
            raise InputError(
                f"the image cannot be prepared ({e}): expected a PIL image or an array [height, width, 3]"
            ) from None
        tensors = {"pixel_values": features["pixel_values"]}
    height, width = tensors["pixel_values"].shape[-2:]
    if patch is None:
        return Encoded(tensors)
    patches = (int(height) // patch[0], int(width) // patch[1])
    return Encoded(tensors, tuple(f"{r},{c}" for r in range(patches[0]) for c in range(patches[1])), patches=patches)


def runs_alone(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether padding would change an input: it has a mask of pairs, or several texts side by side, which
    transformers recognises by their positions if there is no mask."""
    return _has_pairs(tensors) or _restarts(tensors)


def single(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the texts of a batch that is padded on the right, one by one and without padding."""
    ids, mask = tensors.get("input_ids"), tensors.get("attention_mask")
    if ids is None or len(ids) == 1 or mask is None:
        return [dict(tensors)]
    lengths = mask.sum(1).tolist()
    return [
        {name: x[i : i + 1, :n] if x.shape[:2] == ids.shape else x for name, x in tensors.items()}
        for i, n in enumerate(lengths)
    ]


def form_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the names of the tensors, and what else decides how they pass through a model."""
    names = ",".join(sorted(tensors))
    if _has_pairs(tensors):
        names += ", pairs with a look ahead" if looks_ahead(tensors) else ", pairs"
    return names + (", side by side" if _restarts(tensors) else "")


def looks_ahead(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a mask of pairs lets some position see a later one."""
    if not _has_pairs(tensors):
        return False
    mask = tensors["attention_mask"]
    return bool((mask > torch.finfo(mask.dtype).min / 2).triu(1).any())


def _has_pairs(tensors: Mapping[str, Tensor]) -> bool:
    mask = tensors.get("attention_mask")
    return mask is not None and mask.dim() == 4


def _restarts(tensors: Mapping[str, Tensor]) -> bool:
    places = tensors.get("position_ids")
    return places is not None and places.dim() == 2 and bool((places.diff(dim=1) != 1).any())


def batched(inputs: Sequence[Mapping[str, Tensor]], pad_id: int) -> dict[str, Tensor]:
    """Combine the tensors of several inputs into one batch, padded on the right, with an attention mask."""
    names = list(inputs[0])
    if any(list(x) != names for x in inputs):
        raise InputError("the inputs of this batch have different tensors: trace them one at a time")
    if any(map(runs_alone, inputs)):
        raise InputError("an input of this batch has a mask of pairs, or positions that restart: trace it on its own")
    tensors: dict[str, Tensor] = {}
    for name in names:
        rows = [x[name] for x in inputs]
        if rows[0].dim() == 2 and rows[0].dtype in (torch.int64, torch.int32):
            fill = pad_id if name == "input_ids" else 0
            tensors[name] = pad_sequence([row[0] for row in rows], batch_first=True, padding_value=fill)
            continue
        if any(row.shape != rows[0].shape for row in rows):
            raise InputError(f"the inputs of this batch have different shapes of {name}: trace them one at a time")
        tensors[name] = torch.cat(rows)
    if "input_ids" in tensors:
        lengths = torch.tensor([x["input_ids"].shape[1] for x in inputs])
        tensors["attention_mask"] = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long()
    return tensors


def unknown(tokenizer: Any, encoded: Encoded) -> list[int]:
    """Return the positions of unknown tokens, at which the model reads another token than people do."""
    unk = getattr(tokenizer, "unk_token_id", None)
    ids = encoded.tensors["input_ids"][0].tolist() if "input_ids" in encoded.tensors else []
    return [i for i, (n, mark) in enumerate(zip(ids, encoded.special, strict=False)) if n == unk and not mark]


def kind(x: Any) -> str:
    """Describe a value for a message."""
    return f"an array of shape {tuple(x.shape)}" if hasattr(x, "shape") else repr(x) if x is None else a_type(x)
