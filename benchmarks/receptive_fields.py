"""Which receptive-field normalisation ranks tokens like blank-out of the next token does?

The query is the last token of a sentence, whose state predicts the next one. What a token is worth to the prediction is
``Δp[i] = p(y | text) - p(y | text with token i blanked)``, where y is the model's own likeliest next token. Every view
of attention at the last layer, under every normalisation of `attnflow.receptive`, is compared with |Δp| by Spearman's
rank correlation within each sentence. ``python -m benchmarks.receptive_fields`` runs it; docs/decoders.md has the
result.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import attnflow
from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, progress
from attnflow.errors import InputError
from attnflow.evaluate.statistics import Interval, intervals, spearman
from attnflow.graph import attention_graph
from attnflow.receptive import MODES, check_mode, relative
from attnflow.rollout import rollout
from attnflow.texts.strict import read_lines
from benchmarks.command import run_command

if TYPE_CHECKING:
    from attnflow.model import Model
    from attnflow.trace import Trace

Floats = NDArray[np.float64]
Score = tuple[str, str | None]  # method and variant

VARIANTS: tuple[str | None, ...] = (None, *MODES)
BLANKS = ("space", "remove", "special")
SCOPES = {
    # Blanking the query changes the question, and with "remove" another token asks it.
    "without the query": slice(0, -1),
    # Decoders put spare attention on the first token, whatever it is.
    "without the query and the first token": slice(1, -1),
    "all tokens": slice(0, None),
}
RECENCY, RANDOM = "recency", "random"


@dataclass(frozen=True)
class Case:
    """One sentence: its scores by method and variant, and for each blank what each token is worth to the prediction."""

    scores: Mapping[Score, Floats]
    worth: Mapping[str | int, Floats]
    probability: float


@dataclass(frozen=True)
class Row:
    """One score under one blank over one scope of tokens.

    agreement: Spearman with blank-out.
    gain: agreement minus that of the method without normalisation, sentence by sentence.
    over_recency: agreement minus that of "later tokens count more".
    position: Spearman of the score itself with the position, which is the bias.
    beyond_position: the partial rank correlation with blank-out given the position.
    """

    method: str
    variant: str | None
    blank: str | int
    scope: str
    sentences: int
    agreement: Interval
    position: Interval
    beyond_position: Interval
    gain: Interval | None = None
    over_recency: Interval | None = None


def agree(x: Floats, y: Floats) -> float:
    """Return Spearman's correlation; 0 if one of the two is constant, and so ranks nothing."""
    return float(np.nan_to_num(spearman(x, y)))


def partial(xy: float, xz: float, yz: float) -> float:
    """Return the correlation of x and y given z, ``(xy - xz·yz) / √((1-xz²)(1-yz²))``; 0 if z determines one."""
    rest = (1 - xz * xz) * (1 - yz * yz)
    return (xy - xz * yz) / rest**0.5 if rest > 1e-12 else 0.0


def sample(
    model: Model,
    lines: Sequence[str],
    count: int,
    *,
    shortest: int = 8,
    longest: int = 40,
    cut: bool = False,
    seed: int = 0,
) -> list[list[int]]:
    """Return token ids of `count` lines of `shortest` to `longest` tokens, drawn without replacement.

    cut: end each at a random place, so that the model predicts a word inside the sentence.
    """
    if model.tokenizer is None:
        raise InputError(f"{model!r} was wrapped without a tokenizer: give wrap(model, tokenizer)")
    draw = random.Random(seed)
    chosen: list[list[int]] = []
    for line in draw.sample(lines, len(lines)):
        ids = list(model.tokenizer(line, verbose=False)["input_ids"])
        if shortest + cut <= len(ids) <= longest:
            chosen.append(ids[: draw.randint(shortest, len(ids) - 1)] if cut else ids)
        if len(chosen) == count:
            return chosen
    raise InputError(
        f"the text has {len(chosen)} sentences of {shortest + cut} to {longest} tokens, fewer than the {count} "
        "requested: give a longer text, or fewer sentences"
    )


def neutral(model: Model, blank: str | int) -> int | None:
    """Return the id of the token that replaces another; None for removing it."""
    if isinstance(blank, int):
        return blank
    if blank not in BLANKS:
        raise InputError(f"blank={blank!r}: expected one of {', '.join(map(repr, BLANKS))}, or the id of a token")
    if blank == "remove":
        return None
    if model.tokenizer is None:
        raise InputError(f'blank={blank!r} needs a tokenizer: wrap the model with one, or give "remove" or an id')
    if blank == "space":
        ids = list(model.tokenizer(" ", add_special_tokens=False)["input_ids"])
        if len(ids) == 1:
            return int(ids[0])
        raise InputError(f'blank=\'space\': a space is {len(ids)} tokens here; give "remove", "special" or an id')
    for name in ("mask", "unk", "eos", "pad"):
        token = getattr(model.tokenizer, f"{name}_token_id", None)
        if token is not None:
            return int(token)
    raise InputError('blank=\'special\': the tokenizer has no special token; give "space", "remove" or an id')


def blank_out(model: Model, ids: Sequence[int], blanks: Sequence[str | int]) -> tuple[float, dict[str | int, Floats]]:
    """Return the probability of the likeliest next token, and its loss without each token by blank: Δp[input]."""
    import torch

    text = {"input_ids": torch.tensor([list(ids)])}
    rows = {}
    for blank in blanks:
        token = neutral(model, blank)
        rows[blank] = model.blank_out(text, by="remove" if token is None else token, signed=True)
    return rows[blanks[0]].provenance["answer"]["probability"], {
        blank: w.row().astype(np.float64) for blank, w in rows.items()
    }


def scores(trace: Trace, variants: Sequence[str | None]) -> dict[Score, Floats]:
    """Return what every method gives to each token for the last query at the last layer.

    "rollout, last third" stops at the states before the last third of the layers, and treats these as their own tokens.
    """
    weights = [layer.astype(np.float64) for layer in trace.graph(residual=0)]
    third = -max(1, len(weights) // 3)

    def upper(layers: Sequence[Any]) -> Any:
        return rollout(attention_graph(np.stack(layers[third:])[:, None]), layers=-1)[0]

    methods: dict[str, Callable[[str | None], Any]] = {
        "raw": lambda v: relative(lambda layers: layers[-1], weights, v)[-1],
        "raw, mean of layers": lambda v: relative(lambda layers: np.mean(layers, 0), weights, v)[-1],
        "rollout": lambda v: trace.rollout(query=-1, layer=-1, receptive_field=v).values[0, 0],
        "rollout, last third": lambda v: relative(upper, weights, v)[-1],
        "flow": lambda v: trace.flow(query=-1, layer=-1, receptive_field=v).values[0, 0],
    }
    return {(name, v): method(v) for name, method in methods.items() for v in variants}


def measure(
    model: Model,
    sentences: Sequence[Sequence[int]],
    variants: Sequence[str | None],
    blanks: Sequence[str | int],
    say: Callable[[str], None],
    seed: int = 0,
) -> list[Case]:
    """Trace and blank out every sentence, given as token ids."""
    import torch

    draw = np.random.default_rng(seed)
    cases = []
    for number, ids in enumerate(sentences, 1):
        if len(ids) < 4:
            raise InputError(f"sentence {number} has {len(ids)} tokens: expected at least 4")
        trace = model.trace({"input_ids": torch.tensor([list(ids)])})
        if not all(c.causal for c in model.checked.values()):
            raise InputError(
                f"{model!r} does not read from left to right: expected a decoder that predicts the next token"
            )
        values = scores(trace, variants)
        values[RECENCY, None] = np.arange(len(ids), dtype=np.float64)
        values[RANDOM, None] = draw.random(len(ids))
        probability, worth = blank_out(model, ids, blanks)
        cases.append(Case(values, worth, probability))
        if number % 10 == 0 or number == len(sentences):
            say(f"{number} of {len(sentences)} sentences")
    return cases


def summarize(cases: Sequence[Case], *, signed: bool = False, resamples: int = 5000, seed: int = 0) -> list[Row]:
    """Return means over sentences with bootstrap intervals, for every blank, scope, method and variant.

    signed: compare with Δp instead of |Δp|: then tokens that count against the prediction come last.
    """
    rows: list[Row] = []
    for blank in cases[0].worth:
        for scope in SCOPES:
            rows += _rows(cases, blank, scope, signed, resamples, seed)
    return rows


def _rows(
    cases: Sequence[Case], blank: str | int, scope: str, signed: bool, resamples: int, seed: int
) -> Iterator[Row]:
    names, part = list(cases[0].scores), SCOPES[scope]
    agreement, position, beyond = np.empty((3, len(cases), len(names)))
    for number, case in enumerate(cases):
        worth = (case.worth[blank] if signed else np.abs(case.worth[blank]))[part]
        place = case.scores[RECENCY, None][part]
        bias = agree(worth, place)
        for k, name in enumerate(names):
            x = case.scores[name][part]
            agreement[number, k], position[number, k] = agree(x, worth), agree(x, place)
            beyond[number, k] = partial(agreement[number, k], position[number, k], bias)
    plain = [names.index((method, None)) if (method, None) in names else -1 for method, _ in names]
    recency = names.index((RECENCY, None))
    columns = (agreement, position, beyond, agreement - agreement[:, plain], agreement - agreement[:, [recency]])
    summaries = zip(*(intervals(column, resamples, seed) for column in columns), strict=True)
    for k, ((method, variant), (own, bias, rest, gain, over)) in enumerate(zip(names, summaries, strict=True)):
        yield Row(
            method, variant, blank, scope, len(cases), own, bias, rest,
            gain=gain if variant is not None and plain[k] >= 0 else None,
            over_recency=over if k != recency else None,
        )  # fmt: skip


def run(
    model: Model,
    sentences: Sequence[Sequence[int]],
    variants: Sequence[str | None],
    say: Callable[[str], None],
    *,
    blanks: Sequence[str | int] = ("space",),
    signed: bool = False,
    resamples: int = 5000,
    seed: int = 0,
) -> list[Row]:
    """Run the experiment on sentences as token ids (see `sample`)."""
    for variant in variants:
        check_mode(variant)
    for blank in blanks:
        neutral(model, blank)
    if not sentences:
        raise InputError("there are no sentences: expected at least one, as token ids")
    return summarize(
        measure(model, sentences, variants, blanks, say, seed), signed=signed, resamples=resamples, seed=seed
    )


def tables(rows: Sequence[Row]) -> list[Table]:
    """Return one table for every blank and scope."""
    by_blank: dict[tuple[str | int, str], Table] = {}
    for row in rows:
        key = (row.blank, row.scope)
        if key not in by_blank:
            by_blank[key] = Table(
                "method", "receptive field", "agreement", "against None", "against recency", "beyond position",
                "score and position",
                title=f"Spearman with blank-out ({row.blank}), {row.scope}, {row.sentences} sentences",
            )  # fmt: skip
        by_blank[key].add_row(
            row.method, "" if row.method in (RECENCY, RANDOM) else str(row.variant), str(row.agreement),
            str(row.gain or ""), str(row.over_recency or ""), str(row.beyond_position), f"{row.position.mean:+.3f}",
        )  # fmt: skip
    return list(by_blank.values())


def main(
    text: Annotated[Path, typer.Option(help="One sentence per line: .txt or .txt.xz.")],
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    gguf: Annotated[str | None, typer.Option(help="Name of a GGUF file in the folder.")] = None,
    sentences: Annotated[int, typer.Option(min=2, help="Number of sentences, of 8 to 40 tokens.")] = 200,
    blank: Annotated[
        str, typer.Option(help="What replaces a token: space, remove, special; comma-separated for several.")
    ] = "space",
    cut: Annotated[
        bool, typer.Option("--cut", help="End each sentence at a random place, so that a word inside it is predicted.")
    ] = False,
    signed: Annotated[bool, typer.Option("--signed", help="Compare with Δp instead of |Δp|.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the sample, the bootstrap and the random baseline.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find the receptive-field normalisation that ranks a decoder's tokens like blank-out of the next token does."""
    lines = list(dict.fromkeys(line for _, line in read_lines(text)))
    silence()
    loaded = attnflow.load(model, gguf_file=gguf, dtype="float32")
    chosen = sample(loaded, lines, sentences, cut=cut, seed=seed)
    rows = run(loaded, chosen, VARIANTS, progress, blanks=blank.split(","), signed=signed, seed=seed)
    if as_json:
        provenance = {
            "model": loaded.name, "gguf": gguf, "dtype": "float32", "attnflow": attnflow.__version__,
            "text": text.name, "cut": cut, "signed": signed, "seed": seed,
        }  # fmt: skip
        print(json.dumps({"provenance": provenance, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    Console().print(*tables(rows), sep="\n\n")


if __name__ == "__main__":
    run_command(main)
