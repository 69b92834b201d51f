"""How much of each hidden state of a transformer comes from each input token (Abnar & Zuidema, 2020)."""

from attnflow.errors import AttentionWarning as AttentionWarning
from attnflow.errors import InputError as InputError
from attnflow.flow import CutEdge as CutEdge
from attnflow.flow import FlowPath as FlowPath
from attnflow.flow import MaxFlow as MaxFlow
from attnflow.flow import flow as flow
from attnflow.flow import max_flow as max_flow
from attnflow.graph import attention_graph as attention_graph
from attnflow.graph import merge as merge
from attnflow.heads import single_head as single_head
from attnflow.rollout import rollout as rollout

__version__ = "0.1.0"
