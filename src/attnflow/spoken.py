"""The seconds of a sound that each word of its transcript comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from attnflow._arrays import to_numpy
from attnflow.errors import InputError
from attnflow.result import TokenAttention
from attnflow.source_methods import SPOKEN
from attnflow.trace_results import seconds_of

if TYPE_CHECKING:
    from attnflow.trace import Trace


class WordSeconds(NamedTuple):
    """A word of a transcript, the seconds where it was heard, and the share of its attention there."""

    word: str
    start: float
    end: float
    share: float


def spoken(trace: Trace) -> TokenAttention:
    """See `attnflow.Trace.spoken`."""
    whole = trace.unmerged or trace
    if whole.sound is None or not whole.parts:
        raise InputError(
            "spoken() needs the trace of a sound by a model that transcribes it, such as Whisper; for other models of "
            "sound use raw(), rollout() or flow()"
        )
    first, layers = whole.first_query, range(len(whole.ends) // 2, len(whole.ends))
    mean = torch.stack([whole.steps[whole.ends[l]].weights[first:, :first].double() for l in layers]).mean(0)
    words: dict[int, list[int]] = {}
    for position, word in enumerate(whole.word_ids[first:]):
        if word is not None and position and any(map(str.isalnum, whole.word_texts[word])):
            words.setdefault(word, []).append(position)
    if not words:
        raise InputError("the transcript has no words: expected a sound with speech, or give the transcript as target=")
    rows = [mean[[position - 1 for position in places]].mean(0) for places in words.values()]
    return TokenAttention(
        values=to_numpy(torch.stack(rows))[None],
        method=SPOKEN,
        layers=(len(whole.ends) - 1,),
        queries=tuple(places[0] for places in words.values()),
        query_tokens=tuple(whole.word_texts[word] for word in words),
        tokens=whole.tokens[:first],
        word_ids=whole.word_ids[:first],
        word_texts=whole.word_texts,
        special=whole.special[:first],
        text=whole.text,
        seconds=seconds_of(whole)[:first],
        provenance={**whole.provenance, "unit": "word", "layers": [l + 1 for l in layers]},
    )


def word_seconds(trace: Trace) -> list[WordSeconds]:
    """See `attnflow.Trace.word_seconds`."""
    result = spoken(trace)
    return [
        WordSeconds(word, *result.stretch(query))
        for word, query in zip(result.query_tokens, result.queries, strict=True)
    ]
