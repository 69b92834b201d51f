"""Tables 1 to 3: rank correlations of the views with blank-out and gradients, compared with the paper's."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import AttentionWarning, InputError
from attnflow.evaluate.correlation import VIEWS, Scores, measure, summarize
from attnflow.evaluate.evaluation import Evaluation
from attnflow.evaluate.statistics import Interval, intervals, rank_correlations, ranks
from attnflow.paper import published as paper
from attnflow.paper.agreement import NUMBERS, Example, encode

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]
Say = Callable[[str], None]

Run = tuple[str, Mapping[str, Evaluation], Mapping[str, Any]]  # model, its readings, and its shape

SOME = 200
"""Texts on which sums of gradients are examined."""

VERDICTS = HOLDS, UNDECIDED, CONTRADICTED, UNASKED = "holds", "undecided", "contradicted", "cannot be asked"

TEXT, WORDS, AUTHORS = "text", "words", "authors"
READINGS = {
    TEXT: "as the text says it: every token ranked, special ones too; Spearman with ties sharing the mean of their ranks",
    WORDS: "the same, but only words are ranked: no [CLS] and no end token",
    AUTHORS: "as the released code does it: see the importance; Spearman by the formula without ties, on dense ranks",
}

IMPORTANCES: dict[str, dict[str, Any]] = {
    f"table1, {TEXT}": {"method": "blank-out", "by": "unk"},
    f"table2, {TEXT}": {"method": "gradient", "reduce": "l2", "of": "probability"},
    f"table2, {AUTHORS}": {"method": "gradient", "reduce": "abs-sum", "of": "difference"},
}
"""What `measure` computes; the authors' reading of Table 1 is derived from the text's."""

VERB_NUMBER = ("table1", "table2")
IN_WORDS = {
    "table1": {
        TEXT: "|p(true) − p(true, token replaced by UNK)|",
        AUTHORS: "the same, but 0 for the end token: of the variants in the code's history the one closest to the table",
    },
    "table2": {
        TEXT: "L2 norm of the gradient of p(true) with respect to the token's embedding",
        AUTHORS: "|Σ_d ∂(p0 − p1)/∂x_d|: the absolute value of the sum over the dimensions of the embedding",
    },
    "table3": {
        TEXT: "L2 norm of the gradient of p(predicted) with respect to the token's embedding; the row of [CLS]",
        AUTHORS: "Σ_d ∂(positive logit)/∂x_d, signed; the largest over all rows instead of the row of [CLS]",
    },
}


def verb_number_tables(
    models: Sequence[tuple[str, Model]],
    examples: Sequence[Example],
    say: Say,
    *,
    samples: int = 2000,
    resamples: int = 5000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compute Tables 1 and 2 for each model, on the first `samples` examples of the split "test".

    models: (name, model); more than one for several training seeds.
    """
    test = [e for e in examples if e.split in ("test", None)][:samples]
    if len(test) < 2:
        raise InputError(f"the data has {len(test)} examples of the split 'test': expected at least 2")
    runs: dict[str, list[Run]] = {table: [] for table in VERB_NUMBER}
    for name, model in models:
        start = time.perf_counter()
        measured = _measured(model, test, lambda line, name=name: say(f"{name}: {line}"))  # type: ignore[misc]
        summaries = {
            table: {r: _summary(measured, table, r, resamples, seed) for r in READINGS} for table in VERB_NUMBER
        }
        seconds = time.perf_counter() - start
        say(f"{name}: {seconds:.1f} s for {len(test)} examples, 3 views, {summaries['table1'][TEXT].layers} layers")
        texts = [" ".join(e.words[-20:]) for e in test[:SOME]]
        shape = {"seconds": seconds, "cancellation": cancellation(model, texts, "difference"), **_shape(measured)}
        for table, readings in summaries.items():
            runs[table].append((name, readings, shape))
    return {table: _result(table, len(test), own, resamples, seed) for table, own in runs.items()}


def _result(table: str, samples: int, runs: Sequence[Run], resamples: int, seed: int) -> dict[str, Any]:
    """Return the result of a table as JSON-compatible data."""
    return {
        "table": table,
        "samples": samples,
        "views": list(VIEWS),
        "readings": {r: {"of": IN_WORDS[table].get(r, IN_WORDS[table][TEXT]), "how": READINGS[r]} for r in READINGS},
        "runs": [
            {
                "model": name,
                "accuracy": readings[TEXT].accuracy,
                **shape,
                "readings": {r: readings[r].to_dict() for r in READINGS},
                "claims": {r: claims(readings[r].correlations[:, 0], resamples, seed) for r in READINGS},
            }
            for name, readings, shape in runs
        ],
        "all": {r: over_all([own[r].correlations[:, 0] for _, own, _ in runs], resamples, seed) for r in READINGS},
        "paper": paper.TABLES[table],
        "paper_claims": papers_claims(table),
    }


def _measured(model: Model, test: Sequence[Example], say: Say) -> Scores:
    import torch

    vocabulary, positions = model.tokenizer.get_vocab(), model.limit() or 10**9  # type: ignore[union-attr]
    ids = [encode(e, vocabulary, positions) for e in test]
    texts = [{"input_ids": torch.tensor([row])} for row in ids]
    labels = [NUMBERS.index(e.number) for e in test]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionWarning)  # `cancellation` reports it as a number
        measured = measure(model, texts, labels, importance=IMPORTANCES, say=say)
    without_end = tuple(
        replace(t, importance=np.concatenate([t.importance, np.append(t.importance[:1, :-1], [[0.0]], 1)]))
        for t in measured.texts
    )
    return replace(measured, texts=without_end, importances=(*measured.importances, f"table1, {AUTHORS}"))


def _summary(measured: Scores, table: str, reading: str, resamples: int, seed: int) -> Evaluation:
    name = f"{table}, {AUTHORS if reading == AUTHORS else TEXT}"
    return summarize(
        measured, importances=[name], special=reading != WORDS, ties="authors" if reading == AUTHORS else "mean",
        resamples=resamples, seed=seed,
    )  # fmt: skip


def _shape(measured: Scores) -> dict[str, Any]:
    """Return properties of the views that involve no importance."""
    return {"evenness": evenness(measured), "ties": ties(measured), "settled": settled(measured)}


def ties(measured: Scores) -> dict[str, list[float]]:
    """Return the fraction of tokens that share their value with another token of the text, by view and layer.

    Flow is at most what leaves the source and what enters the sink; once the first bound is reached, tokens are equal.
    """
    shares = []
    for text in measured.texts:
        placed = ranks(text.views)
        same = (placed[..., :, None] == placed[..., None, :]).sum(-1) > 1
        shares.append(same.mean(-1))
    return {view: row.tolist() for view, row in zip(measured.views, np.mean(shares, 0), strict=True)}


def evenness(measured: Scores) -> list[float]:
    """Return how even rows of raw attention are, by layer: their mean entropy relative to that of equal weights."""
    raw = measured.views.index("raw")
    entropies = []
    for text in measured.texts:
        rows = text.views[raw]
        rows = rows / rows.sum(-1, keepdims=True)
        entropy = -(rows * np.log(np.where(rows > 0, rows, 1))).sum(-1)
        entropies.append(entropy / np.log(rows.shape[-1]))
    return [float(x) for x in np.mean(entropies, 0)]


def settled(measured: Scores) -> dict[str, list[float | None]]:
    """Return the mean rank correlation of each layer with the last layer, by view and layer."""
    correlations = []
    for text in measured.texts:
        correlations.append([rank_correlations(rows, rows[-1:])[:, 0] for rows in text.views])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a view that ranks no text
        mean = np.nanmean(correlations, 0)
    return {
        view: [None if np.isnan(x) else float(x) for x in row] for view, row in zip(measured.views, mean, strict=True)
    }


def cancellation(model: Model, texts: Sequence[str], of: str) -> dict[str, float]:
    """Compare the largest ``|Σ_d g_d|`` with the largest ``Σ_d |g_d|`` over some texts, to see if it is rounding error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttentionWarning)  # the same, as a number
        left, whole = (
            max(float(w.values.max()) for w in model.gradient(list(texts), reduce=reduce, of=of))
            for reduce in ("abs-sum", "l1")
        )
    return {"texts": len(texts), "abs_sum": left, "l1": whole, "ratio": left / whole if whole else 0.0}


def sentiment_table(
    model: Model,
    texts: Sequence[str],
    labels: Sequence[int],
    say: Say,
    *,
    resamples: int = 5000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compute Table 3: a sentence classifier and its input gradients."""
    settings: dict[str, dict[str, Any]] = {
        TEXT: {"row": "answer", "explain": "predicted", "importance": {"gradient": {"reduce": "l2"}}},
        AUTHORS: {
            "row": "max",
            "explain": "true",
            "signed": True,
            "importance": {"gradient": {"reduce": "sum", "of": "logit"}},
        },
    }
    start = time.perf_counter()
    readings: dict[str, Evaluation] = {}
    shape: dict[str, Any] = {}
    for reading, options in settings.items():
        # the code took the gradient of the positive logit for every sentence
        truth = [1] * len(texts) if reading == AUTHORS else list(labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttentionWarning)  # `cancellation` reports it as a number
            measured = measure(model, texts, truth, say=say, **options)
        if reading == TEXT:
            shape = _shape(measured)
        for name in (TEXT, WORDS) if reading == TEXT else (AUTHORS,):
            formula = "authors" if name == AUTHORS else "mean"
            readings[name] = summarize(measured, special=name != WORDS, ties=formula, resamples=resamples, seed=seed)
    seconds = time.perf_counter() - start
    shape |= {"seconds": seconds, "cancellation": cancellation(model, texts[:SOME], "logit")}
    return _result("table3", len(texts), [(model.name, readings, shape)], resamples, seed)


def over_all(correlations: Sequence[Floats], resamples: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return cells over all models: ``{view: [cell of each layer]}``.

    A cell has the mean over models and texts, its interval over resampled texts (each with all models), the standard
    deviation over texts and models, and the mean of each model.
    """
    stacked = np.stack(correlations)  # [model, text, view, layer]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # texts without a correlation in any model
        by_text = np.nanmean(stacked, 0)
        by_model = np.nanmean(stacked, 1)
    cells: dict[str, list[dict[str, Any]]] = {}
    means = intervals(by_text.reshape(len(by_text), -1), resamples, seed)
    for (v, layer), mean in zip(np.ndindex(*by_text.shape[1:]), means, strict=True):
        there = stacked[:, :, v, layer]
        there = there[np.isfinite(there)]
        cells.setdefault(VIEWS[v], []).append(
            {
                "mean": None if mean is None else asdict(mean),
                "sd": float(there.std(ddof=1)) if len(there) > 1 else None,
                "n": len(there),
                "models": [None if np.isnan(m) else float(m) for m in by_model[:, v, layer]],
            }
        )
    return cells


def claims(correlations: Floats, resamples: int, seed: int) -> dict[str, dict[str, Any]]:
    """Test the paper's claims on ``correlations[text, view, layer]``; return differences and a verdict for each.

    A claim says that some differences are above 0. "holds": the 95 % intervals of all differences are above 0.
    "contradicted": one is below 0. "undecided": neither.
    "cannot be asked": the model has no such layers, or attention is the same for all tokens of every text.
    `paper.CLAIMS` defines the claims.
    """
    raw, rollout, flow = (correlations[:, VIEWS.index(view)] for view in ("raw", "rollout", "flow"))
    depth = raw.shape[1]
    middle = range(1, depth - 1)
    lowest = min(middle, key=lambda layer: _mean(raw[:, layer])) if depth > 2 else 0

    def differences(pairs: Mapping[str, tuple[Floats, Floats]]) -> dict[str, Interval | None]:
        if not pairs:
            return {}
        table = np.stack([a - b for a, b in pairs.values()], 1)
        return dict(zip(pairs, intervals(table, resamples, seed), strict=True))

    tested: dict[str, dict[str, Interval | None]] = {
        "collapse": {}
        if depth < 3
        else differences(
            {
                f"½·raw L1 − raw L{lowest + 1}": (raw[:, 0] / 2, raw[:, lowest]),
                f"rollout L{lowest + 1} − raw L{lowest + 1}": (rollout[:, lowest], raw[:, lowest]),
                f"flow L{lowest + 1} − raw L{lowest + 1}": (flow[:, lowest], raw[:, lowest]),
            }
        ),
        "growth": differences(
            {f"rollout L{b + 1} − rollout L{a + 1}": (rollout[:, b], rollout[:, a]) for a, b in pairwise(range(depth))}
        ),
        "ahead": differences(
            {f"flow L{k + 1} − rollout L{k + 1}": (flow[:, k], rollout[:, k]) for k in range(2, depth)}
        ),
        "end": differences(
            {
                f"rollout L{depth} − raw L{depth}": (rollout[:, -1], raw[:, -1]),
                f"flow L{depth} − raw L{depth}": (flow[:, -1], raw[:, -1]),
            }
        ),
    }
    return {
        name: {
            "verdict": _verdict(list(parts.values())),
            "differences": {k: None if d is None else asdict(d) for k, d in parts.items()},
        }
        for name, parts in tested.items()
    }


def _mean(column: Floats) -> float:
    """Return the mean; -inf if there is no correlation."""
    there = column[np.isfinite(column)]
    return float(there.mean()) if len(there) else -np.inf


def _verdict(differences: Sequence[Interval | None]) -> str:
    there = [d for d in differences if d is not None]
    if not differences or len(there) < len(differences):
        return UNASKED
    if all(d.low > 0 for d in there):
        return HOLDS
    return CONTRADICTED if any(d.high < 0 for d in there) else UNDECIDED


def papers_claims(table: str) -> dict[str, str]:
    """Test the same claims on the paper's own means, whose differences have no intervals."""
    raw, rollout, flow = ([m for m in paper.means(table, view) if m is not None] for view in ("raw", "rollout", "flow"))
    lowest = min(range(1, len(raw) - 1), key=lambda k: raw[k])
    from_l3 = range(2 if len(raw) == 6 else 1, len(raw))  # Table 3 has L1, L3, L5 and L6
    holds = {
        "collapse": raw[lowest] < min(raw[0] / 2, rollout[lowest], flow[lowest]),
        "growth": all(b > a for a, b in pairwise(rollout)),
        "ahead": all(flow[k] > rollout[k] for k in from_l3),
        "end": min(rollout[-1], flow[-1]) > raw[-1],
    }
    return {name: HOLDS if true else CONTRADICTED for name, true in holds.items()}
