"""How much of each hidden state of a transformer comes from each input token (Abnar & Zuidema, 2020).

attention_graph   builds the attention graph from attention weights: heads reduced, residual connection added
rollout, flow     compute token attention [layer, query, input] from the graph
token_attention   raw attention, rollout or flow of weights as a labelled result, which draws and saves itself
max_flow          one pair, with the flow on every edge and the cut that proves it
single_head       token attention of one head
rank_heads        ranks heads by how well they match an alignment; aligned_pairs makes one from a name, tokens or an
                  array
merge             the graph over words, spans or regions
load, wrap        a model: trace(text) gives all of the above with tokens, words and prediction; blank_out(text) and
                  gradient(text) measure what each token is worth; load() without a name loads the embedded model
                  answer(prompt) returns an Answer: what a language model writes, and where it came from
                  similarity(first, second) returns a Similarity: how similar a sentence-embedding model finds two texts
evaluate          how well views agree with importance: evaluate.evaluate(model, texts, labels)
TokenAttention    a result: values with their labels; shows and saves itself
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnflow.errors import AttentionWarning, InputError, JobError, ModelError
from attnflow.flow import CutEdge, FlowPath, MaxFlow, flow, max_flow
from attnflow.graph import attention_graph, merge
from attnflow.heads import HeadScore, aligned_pairs, rank_heads, single_head
from attnflow.labelled import token_attention
from attnflow.result import Score, TokenAttention
from attnflow.rollout import rollout
from attnflow.version import __version__ as __version__

if TYPE_CHECKING:
    from attnflow import corpus as corpus
    from attnflow import evaluate as evaluate
    from attnflow import importance as importance
    from attnflow import view as view
    from attnflow.answer import Answer
    from attnflow.capture.passes import Prediction
    from attnflow.long import LinearTrace
    from attnflow.model import Model, load, wrap
    from attnflow.similarity import Similarity
    from attnflow.trace import Trace

__all__ = [
    "Answer",
    "AttentionWarning",
    "CutEdge",
    "FlowPath",
    "HeadScore",
    "InputError",
    "JobError",
    "LinearTrace",
    "MaxFlow",
    "Model",
    "ModelError",
    "Prediction",
    "Score",
    "Similarity",
    "TokenAttention",
    "Trace",
    "aligned_pairs",
    "attention_graph",
    "flow",
    "load",
    "max_flow",
    "merge",
    "rank_heads",
    "rollout",
    "single_head",
    "token_attention",
    "wrap",
]


if not TYPE_CHECKING:  # type checkers see only the names imported above
    MODEL_NAMES = ("Answer", "LinearTrace", "Model", "Prediction", "Similarity", "Trace", "load", "wrap")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> Any:
        """Load what needs torch on first use, so that the import is instant and the rest runs without torch."""
        if name in ("corpus", "evaluate", "importance", "view"):
            return importlib.import_module(f"attnflow.{name}")
        room = "capture.passes" if name == "Prediction" else "model"
        if name not in MODEL_NAMES:
            raise AttributeError(f"module 'attnflow' has no attribute {name!r}")
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as e:
            raise ImportError(f"attnflow.{name} needs {e.name}: pip install 'attnflow[models]'") from e
        return getattr(importlib.import_module(f"attnflow.{room}"), name)
