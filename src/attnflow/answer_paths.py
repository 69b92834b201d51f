"""What carries an answer: its strongest edges, and the bottleneck on the way to a unit of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attnflow.flow import MaxFlow


class Path(NamedTuple):
    """One edge from the position that decides an answer token to a token it reads, and its part of the log-odds."""

    answer_token: str
    answer_position: int
    layer: int
    token: str
    position: int
    part: str
    value: float


class Paths(list[Path]):
    """The strongest edges of a span, with the sums they are part of.

    log_odds: the log-odds of the span, which is ``edges + own + constants``.
    edges: the sum over all edges, listed or not.
    own: what the deciding positions hold themselves.
    constants: what comes from biases.
    """

    def __init__(self, paths: Sequence[Path], log_odds: float, edges: float, own: float, constants: float) -> None:
        super().__init__(paths)
        self.log_odds, self.edges, self.own, self.constants = log_odds, edges, own, constants

    @property
    def explained(self) -> float:
        """The sum over the listed edges."""
        return sum(path.value for path in self)


class Narrow(NamedTuple):
    """An edge of a minimum cut: at a layer, from a unit or token to one below it."""

    layer: int
    query: str
    key: str
    capacity: float


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """The maximum flow from a span to one unit of the prompt, with its minimum cut.

    value: the flow.
    gap: its difference from the cut; zero, up to rounding, proves both.
    span, unit: the two ends.
    cut: the edges of a minimum cut by name, widest first.
    flow, nodes: the flow itself, over merged nodes, and the names of these.
    """

    value: float
    gap: float
    span: str
    unit: str
    cut: tuple[Narrow, ...]
    flow: MaxFlow = field(repr=False)
    nodes: tuple[str, ...] = field(repr=False)


def named(flow: MaxFlow, nodes: Sequence[str], span: str) -> Bottleneck:
    """Return a maximum flow with the names of its nodes."""
    cut = tuple(Narrow(edge.layer, nodes[edge.query], nodes[edge.key], edge.capacity) for edge in flow.cut)
    return Bottleneck(flow.value, flow.gap, span, nodes[flow.token], cut, flow, tuple(nodes))
