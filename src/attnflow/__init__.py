"""How much of each hidden state of a transformer comes from each input token (Abnar & Zuidema, 2020).

attention_graph   attention weights -> attention graph: heads, residual connection
rollout, flow     the graph -> token attention [layer, query, input]
max_flow          one pair, with the flow on every edge and the cut that proves it
single_head       token attention of one head
merge             the graph over words, spans or regions
"""

from attnflow.errors import AttentionWarning, InputError
from attnflow.flow import CutEdge, FlowPath, MaxFlow, flow, max_flow
from attnflow.graph import attention_graph, merge
from attnflow.heads import single_head
from attnflow.rollout import rollout

__version__ = "0.1.0"

__all__ = [
    "AttentionWarning",
    "CutEdge",
    "FlowPath",
    "InputError",
    "MaxFlow",
    "attention_graph",
    "flow",
    "max_flow",
    "merge",
    "rollout",
    "single_head",
]
