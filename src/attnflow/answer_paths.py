"""What carries an answer: its strongest edges, and the narrowest place on the way to a unit of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attnflow.flow import MaxFlow


class Path(NamedTuple):
    """One edge from the position that decides an answer token to a token that it reads, and its part of the log-odds."""

    answer_token: str
    answer_position: int
    layer: int
    token: str
    position: int
    part: str
    value: float


class Paths(list[Path]):
    """The strongest edges of a span, and what they are parts of.

    log_odds: of the span. edges: the sum over all edges, also those that are not listed. own: what the deciding positions
    hold themselves. constants: what biases hold. ``edges + own + constants`` is ``log_odds``.
    """

    def __init__(self, paths: Sequence[Path], log_odds: float, edges: float, own: float, constants: float) -> None:
        super().__init__(paths)
        self.log_odds, self.edges, self.own, self.constants = log_odds, edges, own, constants

    @property
    def explained(self) -> float:
        """The sum over the edges that are listed."""
        return sum(path.value for path in self)


class Narrow(NamedTuple):
    """An edge of a minimum cut: at a layer, from a unit or token to one below it."""

    layer: int
    query: str
    key: str
    capacity: float


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """The maximum flow from a span to one unit of the prompt, and the narrowest place on its way.

    value: what flows. gap: how far the cut is from it; zero, up to rounding, proves both. span, unit: what it is between.
    cut: the edges of a minimum cut, widest first, by name. flow: the flow itself, over merged nodes; nodes: their names.
    """

    value: float
    gap: float
    span: str
    unit: str
    cut: tuple[Narrow, ...]
    flow: MaxFlow = field(repr=False)
    nodes: tuple[str, ...] = field(repr=False)


def named(flow: MaxFlow, nodes: Sequence[str], span: str) -> Bottleneck:
    """A maximum flow with the names of its nodes."""
    cut = tuple(Narrow(edge.layer, nodes[edge.query], nodes[edge.key], edge.capacity) for edge in flow.cut)
    return Bottleneck(flow.value, flow.gap, span, nodes[flow.token], cut, flow, tuple(nodes))
