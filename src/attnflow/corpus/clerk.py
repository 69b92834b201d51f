"""Reading, tokenizing and writing of shards, beside the model that explains them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attnflow.capture import inputs
from attnflow.capture.assemble import class_or_last
from attnflow.capture.inputs import Encoded
from attnflow.corpus.plan import Reader, Shard
from attnflow.corpus.schema import Explained, failed_row, table
from attnflow.corpus.text_arrays import Scored, Sheet, columns_of, rows_of, sheet_of
from attnflow.errors import InputError, TextError
from attnflow.jobs.store import Record, write_shard
from attnflow.selection import places_of
from attnflow.texts.sources import Corpus, Text

Inputs = list[Encoded | Explained]
"""Each text as model input, or the error that keeps it from being explained."""

Encode = Callable[[Sequence[Any]], list[Encoded | InputError]]


@dataclass(frozen=True)
class Tokenizing:
    """How texts become tokens, for a model with one stack of layers.

    limit: the most tokens the model takes.
    typed: whether the model takes token types.
    causal: whether positions see only earlier ones.
    query: what is explained, as the user wrote it.
    single: whether every text has exactly one query, because the methods are about the answer.
    """

    tokenizer: Any
    limit: int | None
    truncate: bool
    typed: bool
    causal: bool
    query: str | None
    single: bool = False

    def encode(self, texts: Sequence[Any]) -> list[Encoded | InputError]:
        encoded = inputs.encode_texts(self.tokenizer, texts, self.limit, self.truncate)
        for one in encoded:
            if isinstance(one, Encoded) and not self.typed:
                one.tensors.pop("token_type_ids", None)
        return encoded

    def queries(self, encoded: Encoded) -> list[int]:
        """Return the positions of a text that are explained."""
        natural = class_or_last(self.causal, encoded.special)
        return [natural or 0] if self.single else places_of(self.query, encoded.tokens, natural)


@dataclass(eq=False)
class Desk:
    """A shard in progress: its texts, their labels or errors, and the sheet that was sent to the model."""

    texts: list[Text]
    inputs: Inputs
    sheet: Sheet | None = None


class Clerk:
    """Reads and writes shards. The scores are computed elsewhere.

    folder: the output folder.
    columns: the score columns.
    answers: whether rows say which answer they are about.
    desks: the shards in progress, by number.
    """

    def __init__(
        self, corpus: Corpus, folder: str, columns: Sequence[str], answers: bool, tokenizing: Tokenizing | None
    ) -> None:
        self.reader = Reader(corpus)
        self.folder, self.columns, self.answers, self.tokenizing = Path(folder), list(columns), answers, tokenizing
        self.desks: dict[int, Desk] = {}

    def inputs(self, shard: Shard, prepare: Callable[[Sequence[Text]], Inputs]) -> Inputs:
        """Read and prepare the texts of a shard one by one."""
        texts = self.reader.texts(shard)
        self.desks[shard.number] = Desk(texts, prepare(texts))
        return self.desks[shard.number].inputs

    def sheet(self, shard: Shard) -> Sheet:
        """Return as arrays the texts of a shard that can be explained."""
        assert self.tokenizing is not None
        self.inputs(shard, partial(prepared, encode=self.tokenizing.encode))
        desk = self.desks[shard.number]
        queries: list[list[int]] = []
        for number, one in enumerate(desk.inputs):
            if isinstance(one, Encoded):
                try:
                    queries.append(self.tokenizing.queries(one))
                except InputError as e:
                    desk.inputs[number] = failed_row(e)
        ready = [one for one in desk.inputs if isinstance(one, Encoded)]
        desk.sheet = sheet_of(ready, queries, len(desk.texts))
        return desk.sheet

    def write(self, shard: Shard, rows: Sequence[Explained] | Scored) -> Record:
        """Write the file of a shard in progress; return its record."""
        desk = self.desks.pop(shard.number)
        arrays = None
        if isinstance(rows, Scored):
            assert desk.sheet is not None
            ready = {number: one for number, one in enumerate(desk.inputs) if isinstance(one, Encoded)}
            arrays = columns_of(desk.sheet, rows, list(ready))
            explained = iter(rows_of(list(ready.values()), rows))
            rows = [next(explained) if isinstance(one, Encoded) else one for one in desk.inputs]
        contents = table(shard.row, desk.texts, rows, self.columns, self.answers, arrays)
        file = write_shard(self.folder / shard.file, contents)
        return {
            "part": shard.number,
            "row": shard.row,
            "texts": shard.count,
            "tokens": sum(len(row.tokens) for row in rows if row.tokens is not None),
            "errors": dict(sorted(Counter(row.error for row in rows if row.error is not None).items())),
            "digest": shard.digest,
            **file,
        }

    def close(self) -> None:
        self.reader.close()


def prepared(texts: Sequence[Text], encode: Encode) -> Inputs:
    """Tokenize texts; return an error row for each text that cannot be explained."""
    results: list[Encoded | Explained | None] = [unreadable(text) for text in texts]
    rest = [i for i, one in enumerate(results) if one is None]
    readable = [texts[i].text if texts[i].pair is None else (texts[i].text, texts[i].pair) for i in rest]
    for i, encoded in zip(rest, encode(readable), strict=True):
        results[i] = failed_row(encoded) if isinstance(encoded, InputError) else encoded
    return [one for one in results if one is not None]


def unreadable(text: Text) -> Explained | None:
    """Return the error row of a text that cannot be tokenized, or None."""
    if text.problem is not None:
        return Explained(error="unreadable", message=text.problem)
    empty = TextError.of("empty", "the text is empty: expected at least one word")
    return failed_row(empty) if text.text is None else None
