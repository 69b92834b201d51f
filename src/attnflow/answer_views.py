"""Views of a trace that are about the model's answer: what the answer took from each input, by its edges."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from attnflow._arrays import to_numpy
from attnflow.capture.inside import Inside
from attnflow.edges.weights import Signed, answer_values, evidence_sums, values_named
from attnflow.edges.weights import answer_rows as edge_rows
from attnflow.errors import InputError
from attnflow.result import TokenAttention, summed
from attnflow.selection import Query
from attnflow.source_methods import INPUTS, METHOD, trace_method
from attnflow.trace_results import Chosen, natural, notes_of_rows, result_of

if TYPE_CHECKING:
    from attnflow.trace import Trace


def _answered(trace: Trace) -> Inside:
    """Return what a trace with answer edges kept."""
    if trace.inside is None or trace.inside.find_evidence is None:
        raise InputError('this trace has no answer edges: trace the text with edges="answer"')
    return trace.inside


def _of_groups(trace: Trace, result: TokenAttention) -> TokenAttention:
    """Return the result of the tokens below a trace over words or groups, summed over its groups."""
    record = {name: trace.provenance[name] for name in ("unit", "groups") if name in trace.provenance}
    return summed(
        result,
        trace.word_groups or (),
        tokens=trace.tokens,
        word_ids=trace.word_ids,
        word_texts=trace.word_texts,
        special=trace.special,
        patches=trace.patches,
        provenance={**result.provenance, **record},
    )


def answer_rows(trace: Trace, query: Query, signed: Signed) -> TokenAttention:
    """See `attnflow.Trace.answer_rows`."""
    if trace.unmerged is not None:
        groups = trace.word_groups or ()
        chosen_groups = () if query is None else [groups[trace.first_query + i] for i in trace.query_positions(query)]
        members = None if query is None else [i for group in chosen_groups for i in group]
        return _of_groups(trace, answer_rows(trace.unmerged, members, signed))
    seen = _answered(trace)
    if query is None and seen.place is None and trace.pooled is not None:
        chosen = natural(trace)
        rows = chosen.rows or list(range(len(trace.tokens)))
    else:
        rows = [trace.first_query + i for i in trace.query_positions(seen.place if query is None else query)]
        chosen = Chosen(rows[:1])
    parts = edge_rows(trace, rows).clone()
    if seen.causal:
        # what a position reads from itself stays there, so its part is what it holds at the bottom
        parts[rows] = seen.evidence.own[rows]
    return _shown(trace, METHOD, parts, chosen, signed)


def answer_inputs(trace: Trace, signed: Signed) -> TokenAttention:
    """See `attnflow.Trace.answer_inputs`."""
    if trace.unmerged is not None:
        return _of_groups(trace, answer_inputs(trace.unmerged, signed))
    seen = _answered(trace)
    chosen = natural(trace) if seen.place is None else Chosen([trace.first_query + seen.place])
    return _shown(trace, INPUTS, seen.evidence.own.clone(), chosen, signed)


def sources(trace: Trace) -> TokenAttention:
    """See `attnflow.Trace.sources`."""
    if trace.unmerged is not None:
        return _of_groups(trace, sources(trace.unmerged))
    about = _answered(trace).answer or {}
    # a vision tower moves what it sees, so only following the edges all the way down finds the patches
    if trace.picture is not None or trace_method(about.get("kind")) == INPUTS:
        return answer_inputs(trace, "shares")
    return answer_rows(trace, None, False)


def _shown(trace: Trace, method: str, parts: Tensor, chosen: Chosen, signed: Signed) -> TokenAttention:
    """Return parts [input] of the answer's log-odds, signed or as shares, with their notes."""
    seen = _answered(trace)
    evidence = seen.evidence
    sums = evidence_sums(method, parts, evidence.y, evidence.constants, evidence.gap, seen.causal)
    parts, said = answer_values(parts, seen.causal, evidence.gap, trace.provenance, signed)
    top, values = [len(trace.ends) - 1], to_numpy(parts)[None, None]
    notes = [{**own, **said} for own in notes_of_rows(trace, method, values[-1], top, chosen)]
    result = result_of(trace, method, values, top, chosen, {"signed": signed}, words=False, notes=notes)
    return replace(result, provenance={**result.provenance, **values_named(signed, trace.provenance), "evidence": sums})
