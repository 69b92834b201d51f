"""A prompt as a model reads it: its tokens with their text, its messages and documents, and its units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple

from torch import Tensor

from attnflow.capture import chat, control, inputs
from attnflow.capture.chat import Content
from attnflow.capture.control import Tokens
from attnflow.capture.decoded import decoded
from attnflow.capture.encode import check_vocabulary
from attnflow.capture.picture import Picture
from attnflow.capture.runner import Runner
from attnflow.capture.wiring import Wiring
from attnflow.errors import InputError, TextError
from attnflow.texts import units
from attnflow.texts.spans import Span as Span
from attnflow.texts.spans import find_span as find_span
from attnflow.texts.units import UNITS as UNITS
from attnflow.texts.units import Range

HEADING = "Document: {}\n"
"""The line above each document; two newlines follow the document."""


@dataclass(frozen=True)
class Part:
    """A message or a document, as a range of characters of the prompt's text. A message excludes its markup."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Units:
    """Units of a prompt in order: how each is shown, its token numbers, and its characters of the prompt's text.

    breaks: the white space after each unit that belongs to its last token (".\\n\\n" is one token in many models).
    """

    texts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    ranges: tuple[Range, ...]
    breaks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Prompt:
    """What a model reads before it answers.

    text: the whole text, including the chat template.
    offsets: the characters of each token; an empty range if a token has none.
    tokens, special, word_ids, word_texts: labels, as for any input.
    messages, documents: as ranges of characters of the text.
    template: which tokens come from the chat template.
    tensors: the model's inputs other than the tokens, for an image.
    image: the positions that represent it.
    picture: their layout, if known.
    wiring: how patches feed them, if known.
    photo: the image as it was given.
    """

    ids: tuple[int, ...]
    text: str
    offsets: tuple[Range, ...]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    word_ids: tuple[int | None, ...]
    word_texts: tuple[str, ...]
    messages: tuple[Part, ...] = ()
    documents: tuple[Part, ...] = ()
    template: tuple[bool, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    image: tuple[int, ...] = ()
    picture: Picture | None = None
    wiring: Wiring | None = None
    photo: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def units(self, unit: str) -> Units:
        """Return the units of this kind, each with its tokens.

        "token" means every token. Other units leave out special tokens and the chat template. "word", "sentence" and
        "paragraph" do not cross the border of a message or document. "message" and "document" are named, not quoted. White
        space around these larger units belongs to none: what is left out leaves paragraphs apart. An image is a separate
        unit, before the others; among words, each of its places is one.
        """
        if not isinstance(unit, str) or unit not in UNITS:
            raise InputError(f"unit is {unit!r:.60}: expected one of {', '.join(UNITS)}")
        if unit == "token":
            return Units(self.tokens, tuple((i,) for i in range(len(self))), self.offsets)
        if unit == "word":
            return self._words()
        if self.image and unit != "document":
            marks = tuple(mark or i in self.image for i, mark in enumerate(self.special))
            others = replace(self, special=marks, image=()).units(unit)
            at = self.offsets[self.image[0]][0]
            breaks = ("", *others.breaks)
            return Units(("image", *others.texts), (self.image, *others.groups), ((at, at), *others.ranges), breaks)
        if unit in ("message", "document"):
            parts = self.messages if unit == "message" else self.documents
            if not parts:
                way = "as a list of messages" if unit == "message" else "with documents={name: text}"
                raise InputError(f"the prompt has no {unit}s: choose another unit, or give it {way}")
            return self._units([(part.start, part.end) for part in parts], [part.name for part in parts])
        split = units.sentences if unit == "sentence" else units.paragraphs
        ranges = [(start + a, start + b) for start, end in self._regions() for a, b in split(self.text[start:end])]
        return self._units(ranges, [self.text[a:b].strip() for a, b in ranges])

    def _words(self) -> Units:
        groups: list[list[int]] = [[] for _ in self.word_texts]
        for token, word in enumerate(self.word_ids):
            if word is not None:
                groups[word].append(token)
        ranges = tuple(
            (min(self.offsets[i][0] for i in group), max(self.offsets[i][1] for i in group)) for group in groups
        )
        return Units(self.word_texts, tuple(map(tuple, groups)), ranges)

    def _units(self, ranges: Sequence[Range], texts: Sequence[str]) -> Units:
        places: list[Range] = []
        following = (0, 0)
        for i in reversed(range(len(self))):
            if self.special[i] or self.template[i]:
                following = (0, 0)
                places.append(following)
                continue
            start, end = self._written(i)
            following = (start, end) if end > start else following  # a mark of a word's beginning belongs to the word
            places.append(following)
        ranges = [self._stripped(start, end) for start, end in ranges]
        groups = units.assign(places[::-1], ranges)
        keep = [k for k, group in enumerate(groups) if group]
        ends = [self.text[ranges[k][1] : self.offsets[groups[k][-1]][1]] for k in keep]
        return Units(
            tuple(texts[k] for k in keep),
            tuple(tuple(groups[k]) for k in keep),
            tuple(ranges[k] for k in keep),
            tuple(end if end.isspace() else "" for end in ends),
        )

    def _stripped(self, start: int, end: int) -> Range:
        """Return a range without the white space around it."""
        inside = self.text[start:end]
        return start + len(inside) - len(inside.lstrip()), end - len(inside) + len(inside.rstrip())

    def _written(self, token: int) -> Range:
        """Return a token's characters without leading white space, which is between units."""
        start, end = self.offsets[token]
        lead = end - start - len(self.text[start:end].lstrip())
        return (start + lead, end) if start + lead < end else (start, end)

    def _regions(self) -> list[Range]:
        """Return the regions of the text between borders of messages and documents, which no sentence crosses."""
        whole = [(part.start, part.end) for part in self.messages] or [(0, len(self.text))]
        regions: list[Range] = []
        for start, end in whole:
            inner = [part for part in self.documents if start <= part.start < end]
            cuts = [start, *(cut for part in inner for cut in (part.start, part.end)), end]
            regions += [(a, b) for a, b in pairwise(cuts) if self.text[a:b].strip()]
        return regions


class AnswerLabels(NamedTuple):
    """How an answer's tokens are shown: each token's label, its characters of the text, and the text."""

    tokens: tuple[str, ...]
    offsets: tuple[Range, ...]
    special: tuple[bool, ...]
    text: str
    word_ids: tuple[int | None, ...]
    word_texts: tuple[str, ...]

    def quoted(self, tokens: Sequence[int]) -> str:
        """Return the text of these tokens."""
        offsets = [self.offsets[i] for i in tokens]
        return self.text[min(a for a, _ in offsets) : max(b for _, b in offsets)].strip() or self.tokens[tokens[0]]


def read_prompt(
    model: Runner,
    prompt: str | Sequence[Mapping[str, str]],
    *,
    documents: Mapping[str, str] | None = None,
    system: str | None = None,
    interpret_special: bool = False,
) -> Prompt:
    """Read a text or a list of messages as the model does.

    prompt: a text, which goes to the tokenizer as it is; or messages, such as [{"role": "user", "content": "…"}], which
        go through the tokenizer's chat template, up to the start of the answer.
    documents: texts by name. They come before a text prompt, or before the last user message, each as "Document: name",
        its text on the lines below, and a blank line.
    system: a system message before the others. A text prompt then becomes a user message, which needs a chat template.
    interpret_special: let special tokens that are written literally in texts ("<|im_start|>", "</s>") act as special
        tokens. Otherwise such texts are refused.
    """
    if model.tokenizer is None:
        raise InputError(
            "this model was wrapped without a tokenizer, and a prompt needs one: give wrap(model, tokenizer)"
        )
    if isinstance(prompt, str):
        if not prompt.strip():
            raise TextError.of("empty", f"the prompt {prompt!r:.60} is empty: expected at least one word")
        if system is not None and not chat.has_template(model.tokenizer):
            raise InputError(
                "system needs a chat template, and the tokenizer of this model has none: put its content into the "
                "prompt"
            )
    elif isinstance(prompt, Mapping | bytes | bytearray) or not isinstance(prompt, Sequence):
        raise InputError(
            f"prompt is {inputs.kind(prompt)}: expected a text, or a list of messages such as {chat.EXAMPLE}"
        )
    heads = _checked_documents(documents)
    if isinstance(prompt, str) and system is None:
        text, parts = _with_documents(prompt, heads)
        result = _plain(model, text, interpret_special)
        result = replace(result, documents=tuple(parts))
    else:
        listed = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        result = _chat(model, chat.checked_messages(listed, system), heads, interpret_special)
    _check_length(result, model.limit())
    check_vocabulary(model, result.ids)
    return result


def plain_ids(model: Runner, text: str) -> list[int]:
    """Return the tokens that spell a text, such as an answer, without additions; special tokens are plain text."""
    _check_usable(model, text)
    return _tokens(model.tokenizer, text, [(0, len(text))], add_special=False).ids


def with_answer(prompt: Prompt, answer_ids: Sequence[int], model: Runner) -> AnswerLabels:
    """Return labels of tokens that follow the prompt. Special tokens among them are not part of the text."""
    ids = [int(i) for i in answer_ids]
    tokenizer: Any = model.tokenizer
    text, offsets = decoded(tokenizer, ids, prompt.ids)
    special = control.special_ids(tokenizer)
    marks = [i in special and end == start for i, (start, end) in zip(ids, offsets, strict=True)]
    raw = [str(piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    tokens, word_ids, word_texts = inputs.by_offsets((text,), raw, marks, offsets, [0] * len(ids))
    return AnswerLabels(tokens, tuple(offsets), tuple(marks), text, word_ids, word_texts)


def _checked_documents(documents: Mapping[str, str] | None) -> dict[str, str]:
    if documents is None:
        return {}
    if not isinstance(documents, Mapping):
        raise InputError(f"documents is {inputs.kind(documents)}: expected a dict from names to texts")
    for name, content in documents.items():
        if not isinstance(name, str) or not name.strip() or "\n" in name:
            raise InputError(f"a document has the name {name!r:.60}: expected a single line of text")
        if not isinstance(content, str):
            raise InputError(f"the document {name!r} is {inputs.kind(content)}: expected a text")
        if not content.strip():
            raise InputError(f"the document {name!r} is empty: write something, or leave it out")
    return dict(documents)


def _with_documents(text: str, documents: Mapping[str, str]) -> tuple[str, list[Part]]:
    """Put the documents before the text, and return where they are."""
    whole, parts = "", []
    for name, content in documents.items():
        whole += HEADING.format(name)
        parts.append(Part(name, len(whole), len(whole) + len(content)))
        whole += content + "\n\n"
    return whole + text, parts


def _plain(model: Runner, text: str, interpret: bool) -> Prompt:
    _check_usable(model, text)
    tokenizer: Any = model.tokenizer
    ids, offsets, added = _tokens(tokenizer, text, [] if interpret else [(0, len(text))], add_special=True)
    if all(added):
        raise TextError.of("empty", f"the prompt {text!r:.60} has no tokens: expected at least one word")
    special = [mark or sign for mark, sign in zip(added, _special(tokenizer, text, ids, offsets), strict=True)]
    return _labelled(tokenizer, text, ids, offsets, special, [False] * len(ids))


def _chat(model: Runner, messages: list[chat.Message], documents: Mapping[str, str], interpret: bool) -> Prompt:
    tokenizer: Any = model.tokenizer
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    parts: list[Part] = []
    if documents:
        if last < 0:
            raise InputError("documents are inserted into a user message, and there is none: add one")
        content, parts = _with_documents(messages[last]["content"], documents)
        messages = [*messages[:last], {"role": "user", "content": content}, *messages[last + 1 :]]
    text, contents = chat.render(tokenizer, messages)
    _check_usable(model, text)
    plain = [(content.start, content.end) for content in contents]
    ids, offsets, _ = _tokens(tokenizer, text, [] if interpret else plain, add_special=False)
    special = _special(tokenizer, text, ids, offsets)
    result = _labelled(tokenizer, text, ids, offsets, special, [not inside for inside in _within(offsets, plain)])
    rendered = [content for content in contents if content.message == last]
    return replace(result, messages=_message_parts(messages, contents), documents=_moved(rendered, parts))


def _check_usable(model: Runner, text: str) -> None:
    problem = inputs.unusable(model.tokenizer, text, model.limit())
    if problem is not None:
        raise problem


def _tokens(tokenizer: Any, text: str, plain: Sequence[Range], add_special: bool) -> Tokens:
    """Tokenize the text; refuse control tokens within the plain ranges."""
    tokens = _tokenized(tokenizer, text, add_special)
    signs = control.acting(tokenizer, text, tokens.ids, tokens.offsets)
    for i, sign, inside in zip(tokens.ids, signs, _within(tokens.offsets, plain), strict=True):
        if sign and inside:
            raise InputError(
                f"the text contains {str(control.control_tokens(tokenizer)[i])!r}, which would act as a special token: "
                "remove it, or give interpret_special=True, or an answer as token numbers"
            )
    return tokens


def _tokenized(tokenizer: Any, text: str, add_special: bool) -> Tokens:
    try:
        tokenized = inputs.tokenize(tokenizer, [(text,)], False, add_special_tokens=add_special)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # errors from Rust are not an Exception
        raise inputs.refusal(e) from None
    ids = [int(i) for i in tokenized["input_ids"][0]]
    added = [add_special and bool(mark) for mark in tokenized["special_tokens_mask"][0]]
    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    parts = [None if mark else 0 for mark in added]
    return Tokens(ids, inputs.own_ranges((text,), pieces, tokenized["offset_mapping"][0], parts), added)


def _special(tokenizer: Any, text: str, ids: list[int], offsets: list[Range]) -> list[bool]:
    """Return which tokens are special tokens in the text."""
    special = control.special_ids(tokenizer)
    signs = control.acting(tokenizer, text, ids, offsets)
    return [sign and i in special for i, sign in zip(ids, signs, strict=True)]


def outside_of(offsets: Sequence[Range], ranges: Sequence[Range]) -> list[bool]:
    """Return whether each token has no character in any of these ranges."""
    return [not inside for inside in _within(offsets, ranges)]


def _within(offsets: Sequence[Range], ranges: Sequence[Range]) -> list[bool]:
    """Return whether each token has a character in a range; a token without characters belongs to the next one."""
    inside: list[bool] = []
    following = False
    for start, end in reversed(offsets):
        if end > start:
            following = any(start < stop and begin < end for begin, stop in ranges)
        inside.append(following)
    return inside[::-1]


def _labelled(
    tokenizer: Any, text: str, ids: list[int], offsets: list[Range], special: list[bool], template: list[bool]
) -> Prompt:
    raw = [str(piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    sequence = [None if mark else 0 for mark in special]
    tokens, word_ids, words = inputs.by_offsets((text,), raw, special, offsets, sequence)
    theirs = [None if mark else word for word, mark in zip(word_ids, template, strict=True)]
    number = count()
    renumbered = {word: next(number) for word in dict.fromkeys(theirs) if word is not None}
    return Prompt(
        ids=tuple(ids),
        text=text,
        offsets=tuple(offsets),
        tokens=tokens,
        special=tuple(special),
        word_ids=tuple(None if word is None else renumbered[word] for word in theirs),
        word_texts=tuple(words[word] for word in renumbered),
        template=tuple(template),
    )


def _message_parts(messages: Sequence[chat.Message], contents: Sequence[Content]) -> tuple[Part, ...]:
    """Name messages by role, with a number if a role has several."""
    roles = [message["role"] for message in messages]
    names = [role if roles.count(role) == 1 else f"{role} {roles[: i + 1].count(role)}" for i, role in enumerate(roles)]
    return tuple(Part(names[content.message], content.start, content.end) for content in contents)


def _moved(contents: Sequence[Content], parts: Sequence[Part]) -> tuple[Part, ...]:
    """Convert parts of a message to parts of the rendered text."""
    moved = []
    for part in parts:
        for content in contents:
            if content.skipped is not None:
                start = content.start + part.start - content.skipped
                moved.append(Part(part.name, start, start + part.end - part.start))
    if len(moved) < len(parts):
        raise InputError(
            "the chat template of this tokenizer changes documents, so their positions cannot be found: give the "
            "prompt as one text"
        )
    return tuple(moved)


def _check_length(prompt: Prompt, limit: int | None) -> None:
    size = len(prompt)
    if limit is None or size <= limit:
        return
    if not prompt.documents:
        raise TextError.of("too long", f"the prompt has {size} tokens and the model takes {limit}: shorten it")
    documents = prompt.units("document")
    sizes = [f"{name!r} has {len(group)}" for name, group in zip(documents.texts, documents.groups, strict=True)]
    rest = size - sum(map(len, documents.groups))
    raise TextError.of(
        "too long",
        f"the prompt has {size} tokens and the model takes {limit}: {', '.join(sizes)} and the rest has {rest}; "
        "shorten documents, or leave some out",
    )


def prompt_of_ids(model: Runner, ids: Sequence[int]) -> Prompt:
    """Return a prompt made from given tokens, labelled by their decoding, or by their numbers without a tokenizer."""
    numbers = [int(i) for i in ids]
    if not numbers:
        raise TextError.of("empty", "the prompt has no tokens: expected at least one")
    if max(numbers) >= model.vocabulary() or min(numbers) < 0:
        raise InputError(
            f"the prompt contains the token {max(numbers)}: expected numbers from 0 to {model.vocabulary() - 1}"
        )
    size = len(numbers)
    if model.tokenizer is None:
        names = tuple(map(str, numbers))
        ends = accumulate(map(len, names), lambda end, length: end + 1 + length)  # with a space between two names
        offsets = tuple((end - len(name), end) for end, name in zip(ends, names, strict=True))
        words = tuple(range(size))
        return Prompt(
            tuple(numbers), " ".join(names), offsets, names, (False,) * size, words, names, template=(False,) * size
        )
    text, ranges = decoded(model.tokenizer, numbers)
    marks = set(getattr(model.tokenizer, "all_special_ids", []))
    special = [i in marks and start == end for i, (start, end) in zip(numbers, ranges, strict=True)]
    result = _labelled(model.tokenizer, text, numbers, ranges, special, [False] * size)
    _check_length(result, model.limit())
    return result
