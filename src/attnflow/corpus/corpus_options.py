"""What a corpus job computes for every text, and which options are compatible.

Mistakes are reported before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from attnflow._arrays import positions
from attnflow.corpus.schema import score_columns
from attnflow.errors import InputError
from attnflow.graph import check_residual
from attnflow.method_table import LAYERED, TEXT_METHODS, check_options, is_about_answer, method_name
from attnflow.selection import read_layer, select_layers
from attnflow.source_methods import ANSWER_WAYS, METHOD, METHODS, TOKENS

BATCH_TOKENS = 2048
BATCH_TOKENS_GPU = 65536

UNITS = ("token", "word", "sentence", "paragraph")
"""The units that the sources of an answer can be."""

TOGETHER = ("gradient", "attention-gradient", "answer")
"""Edges about answers that `attnflow.edges.batched` computes for many texts at once."""

DEFAULT = "rollout"
CHANGING = (
    "words", "query", "layers", "residual", "edges", "normalize", "answer", "answer_column",
    "of",
)  # fmt: skip
"""Options that change what methods compute; each must apply to at least one method of the job."""
OF_TEXTS = ("query", "words", "truncate", "pair", "normalize", "of")
OF_WRITING = ("max_new_tokens", "unit", "span", "occurrence", "chat")
"""`OF_TEXTS` options do not apply to written answers; `OF_WRITING` options apply to nothing else."""

INSTEAD = {"query": "give span=, a part of each answer, instead", "words": "give unit='word' instead"}
"""What does for written answers what an option does for texts."""
WRITTEN = {"layers": LAYERED, "residual": LAYERED[1:], "edges": LAYERED}
"""The methods for written answers that take each option."""


@dataclass(frozen=True)
class Writing:
    """How a language model's answers are written and explained.

    span: a part of the answer, by its text.
    occurrence: which occurrence of the span, from 1.
    unit: what the values cover in the prompt.
    chat: whether prompts go through the chat template; None: if the tokenizer has one.
    """

    max_new_tokens: int
    unit: str = "token"
    span: str | None = None
    occurrence: int | None = None
    chat: bool | None = None


@dataclass(frozen=True)
class Options:
    """What is computed for every text.

    layers: from 0.
    batch_tokens: how many tokens run together, padding included.
    edges, normalize, answer, of: as in `Model.trace`.
    answer_column: the input column with the answer of each text.
    writing: set for jobs that explain what a language model writes.
    """

    methods: tuple[str, ...]
    layers: tuple[int, ...]
    query: str | None = None
    residual: float = 0.5
    words: bool = False
    truncate: bool = False
    batch_tokens: int = BATCH_TOKENS
    edges: str | None = None
    normalize: str | None = None
    answer: int | str | None = None
    of: str | None = None
    answer_column: str | None = None
    writing: Writing | None = None

    @property
    def columns(self) -> list[str]:
        return score_columns(self.methods, self.layers)

    @property
    def layered(self) -> tuple[str, ...]:
        """The methods that have layers."""
        return tuple(method for method in self.methods if method in LAYERED)

    @property
    def is_by_text(self) -> bool:
        """Whether each text needs its own passes: for edges other than attention, and for methods about the answer."""
        return self.writing is None and (self.edges is not None or len(self.layered) < len(self.methods))

    @property
    def is_together(self) -> bool:
        """Whether a batch of texts is explained at once: by attention, or by edges about the model's own answers."""
        if self.writing is not None or self.words:
            return False
        if not self.is_by_text:
            return True
        others = set(self.methods) - set(self.layered)
        of_each = self.answer is None and self.answer_column is None and self.of != "difference"
        return (
            of_each
            and (self.query is None or METHOD not in self.methods)
            and not (others and self.layered)
            and others <= set(ANSWER_WAYS)
            and self.edges in (None, *TOGETHER)
        )

    @property
    def has_answers(self) -> bool:
        """Whether a row says which answer it is about."""
        return self.writing is not None or is_about_answer(self.edges) or len(self.layered) < len(self.methods)

    def settings(self) -> dict[str, Any]:
        """Return the options as stored in a manifest."""
        values = asdict(self)
        writing = values.pop("writing")
        return {**values, **({} if writing is None else {"answers": True, **writing})}


@dataclass(frozen=True)
class Request:
    """The arguments of a job that say what is computed, as the user gave them; `explain_corpus` documents them."""

    methods: str | Sequence[str] | None = None
    layers: str | int | Iterable[int] = "last"
    query: str | int | None = None
    residual: float | None = None
    words: bool = False
    truncate: bool = False
    edges: str | None = None
    normalize: str | None = None
    answer: int | str | None = None
    answer_column: str | None = None
    of: str | None = None
    answers: bool = False
    max_new_tokens: int | None = None
    unit: str | None = None
    span: str | None = None
    occurrence: int | None = None
    chat: bool | None = None
    pair: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The methods in the order of their table; empty if the method for written answers is chosen later."""
        if self.methods is None:
            return () if self.answers else (DEFAULT,)
        known = METHODS if self.answers else TEXT_METHODS
        names = self.methods.split(",") if isinstance(self.methods, str) else list(self.methods)
        chosen = [name.strip() if self.answers else method_name(name) for name in names]
        for name in chosen or ("",):
            if name not in known:
                raise InputError(f"method {name!r}: expected some of {', '.join(known)}, separated by commas")
        return tuple(name for name in known if name in chosen)

    @cached_property
    def chosen(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {
            name: value for name, (value, default) in values.items() if name != "methods" and not _same(value, default)
        }

    @property
    def writing(self) -> Writing | None:
        if not self.answers:
            return None
        count = TOKENS if self.max_new_tokens is None else self.max_new_tokens
        return Writing(count, self.unit or "token", self.span, self.occurrence, self.chat)

    def check(self) -> None:
        """Refuse incompatible options, and options that would have no effect."""
        if self.residual is not None:
            check_residual(self.residual)
        if self.answer is not None and self.answer_column is not None:
            raise InputError(
                f"answer={self.answer!r} applies to all texts and answer_column={self.answer_column!r} gives one per "
                "text: leave one of them out"
            )
        if self.answers:
            self._check_answers()
        else:
            self._check_texts()
        if self.edges is not None or self.of is not None:  # these checks import torch
            from attnflow.edges import check_choice
            from attnflow.importance.question import check_of

            if self.edges is not None:
                check_choice(self.edges, self.normalize, self.residual, self.names)
            if self.of is not None:
                check_of(self.of)

    def _check_texts(self) -> None:
        for name in (name for name in OF_WRITING if name in self.chosen):
            raise InputError(f"{name}={self.chosen[name]!r} requires answers=True: give that too, or leave it out")
        check_options(self.names, {name: self.chosen[name] for name in CHANGING if name in self.chosen})

    def _check_answers(self) -> None:
        for name in (name for name in OF_TEXTS if name in self.chosen):
            advice = INSTEAD.get(name, "leave one of them out")
            raise InputError(f"{name}={self.chosen[name]!r} does not work with answers=True: {advice}")
        writing = self.writing
        assert writing is not None
        if writing.unit not in UNITS:
            raise InputError(f"unit={writing.unit!r}: expected one of {', '.join(UNITS)}")
        if self.span is not None and not self.span.strip():
            raise InputError(f"span={self.span!r} is empty: expected a part of the answers, as it is written there")
        if self.occurrence is not None and (self.span is None or self.occurrence < 1):
            raise InputError(
                f"occurrence={self.occurrence} requires span= and counts from 1: give both, or leave it out"
            )
        if writing.max_new_tokens < 1:
            raise InputError(f"max_new_tokens={writing.max_new_tokens}: expected an int of at least 1")
        for name in ("answer", "answer_column"):
            if name in self.chosen and self.max_new_tokens is not None:
                raise InputError(
                    f"max_new_tokens={self.max_new_tokens} limits what the model writes, but "
                    f"{name}={self.chosen[name]!r} already gives the answer: leave one of them out"
                )
        for name in (name for name in WRITTEN if name in self.chosen and not set(self.names) & set(WRITTEN[name])):
            names = ", ".join(self.names) or "the default method"
            raise InputError(
                f"{name}={self.chosen[name]!r} applies to {', '.join(WRITTEN[name])}, not to {names}: leave it out"
            )

    def options(self, layer_count: int, batch_tokens: int) -> Options:
        """Return the options for a model with `layer_count` layers."""
        return Options(
            self.names, read_layers(self.layers, layer_count), None if self.query is None else str(self.query),
            0.5 if self.residual is None else float(self.residual), self.words, self.truncate,
            batch_tokens, self.edges, self.normalize, self.answer, self.of, self.answer_column, self.writing,
        )  # fmt: skip


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def read_layers(layers: str | int | Iterable[int], count: int) -> tuple[int, ...]:
    """Return layers as numbers from 0."""
    if layers == "all":
        return tuple(range(count))
    if isinstance(layers, str):
        return tuple(sorted({read_layer(one.strip(), count, "last or all") for one in layers.split(",")}))
    return tuple(sorted(set(select_layers(positions(layers, "layer"), count))))
