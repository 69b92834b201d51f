"""How much of each hidden state of a transformer comes from each input token (Abnar & Zuidema, 2020).

attention_graph   attention weights -> attention graph: heads, residual connection
rollout, flow     the graph -> token attention [layer, query, input]
max_flow          one pair, with the flow on every edge and the cut that proves it
joint_flow        all inputs in one maximum flow, that of least norm: shares; least_norm_flow has its edges and its proof
single_head       token attention of one head
rank_heads        which heads attend as an alignment does; aligned_pairs makes the alignment of a name, tokens or an array
merge             the graph over words, spans or regions
load, wrap        a model, of which trace(text) gives all of this with tokens, words and prediction, and blank_out(text) and
                  gradient(text) what each token is worth; load() without a name is a model of the paper's kind
                  answer(prompt) is what a language model writes, and where it came from: an Answer
evaluate          how well views rank tokens as importance does: evaluate.evaluate(model, texts, labels)
column_sums       how much attention each key gets, from queries and keys alone; log_sum_exp gives the rows' denominators
TokenAttention    what comes out: values with their labels; shows and saves itself
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnflow.errors import AttentionWarning, InputError, JobError, ModelError
from attnflow.flow import CutEdge, FlowPath, MaxFlow, flow, max_flow
from attnflow.graph import attention_graph, merge
from attnflow.heads import HeadScore, aligned_pairs, rank_heads, single_head
from attnflow.joint_flow import JointFlow, joint_flow, least_norm_flow
from attnflow.result import Score, TokenAttention
from attnflow.rollout import rollout
from attnflow.version import __version__ as __version__

if TYPE_CHECKING:
    from attnflow import corpus as corpus
    from attnflow import evaluate as evaluate
    from attnflow import importance as importance
    from attnflow import view as view
    from attnflow.answer import Answer
    from attnflow.attention_sums import column_sums, log_sum_exp
    from attnflow.capture.paged import PagedCache
    from attnflow.capture.passes import Prediction
    from attnflow.long import LinearTrace
    from attnflow.model import Model, load, wrap
    from attnflow.trace import Trace

__all__ = [
    "Answer",
    "AttentionWarning",
    "CutEdge",
    "FlowPath",
    "HeadScore",
    "InputError",
    "JobError",
    "JointFlow",
    "LinearTrace",
    "MaxFlow",
    "Model",
    "ModelError",
    "PagedCache",
    "Prediction",
    "Score",
    "TokenAttention",
    "Trace",
    "aligned_pairs",
    "attention_graph",
    "column_sums",
    "flow",
    "joint_flow",
    "least_norm_flow",
    "load",
    "log_sum_exp",
    "max_flow",
    "merge",
    "rank_heads",
    "rollout",
    "single_head",
    "wrap",
]


if not TYPE_CHECKING:  # a checker sees the names themselves, and none besides

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> Any:
        """What needs torch is loaded when it is first named, so that the rest stays instant and runs without it."""
        if name in ("corpus", "evaluate", "importance", "view"):
            return importlib.import_module(f"attnflow.{name}")
        room = {"PagedCache": "capture.paged", "Prediction": "capture.passes"}.get(name, "model")
        if name in ("column_sums", "log_sum_exp"):
            room = "attention_sums"
        elif name not in ("Answer", "LinearTrace", "Model", "PagedCache", "Prediction", "Trace", "load", "wrap"):
            raise AttributeError(f"module 'attnflow' has no attribute {name!r}")
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as e:
            raise ImportError(f"attnflow.{name} needs {e.name}: pip install 'attnflow[models]'") from e
        return getattr(importlib.import_module(f"attnflow.{room}"), name)
