"""A sentence-embedding model with one text fixed: its answer to another text is how similar the two are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnflow.capture.check import TOLERANCE, Checked
from attnflow.capture.inputs import Encoded
from attnflow.capture.pooling import DISTANCES, Pooling
from attnflow.capture.routes import running
from attnflow.capture.runner import ModelOutput, Runner
from attnflow.errors import InputError, ModelError

NAME = "similarity"


def pooling_known(model: Runner) -> Pooling:
    """Return the model's pooling; refuse a model without one."""
    if model.pooling is None:
        raise InputError(
            f"{model!r} has no pooling, so it is unknown how the embedding of a text is computed: expected a "
            "sentence-transformers folder (with modules.json), or wrap(model, tokenizer, pooling='mean')"
        )
    model.pooling.check()
    return model.pooling


def embed(model: Runner, encoded: Encoded) -> Tensor:
    """Return the embedding of one text, [size]."""
    with torch.no_grad(), running():
        return _embeddings(model, encoded.tensors, model.forward(encoded.tensors))[0]


class SimilarTo(Runner):
    """A model that answers with one number: the similarity of its input to another text, by their embeddings.

    So it is explained like any model that answers with a score.

    embedding: that of the other text, a constant.
    """

    def __init__(self, model: Runner, embedding: Tensor) -> None:
        super().__init__(model.model, model.processor, model.name, model.revision, pooling_known(model))
        self.alone = model
        self.embedding = embedding.detach()
        self.checked, self.checked_linear = model.checked, model.checked_linear

    @property
    def class_names(self) -> dict[int, str]:
        return {0: NAME}

    def verify(self, encoded: Encoded) -> Checked:
        """Run the self-check of the model, which does not depend on the other text."""
        return self.alone.verify(encoded)

    def forward(self, tensors: Mapping[str, Tensor], *, grad: bool = False, **options: Any) -> ModelOutput:
        out = self.alone.forward(tensors, grad=grad, **options)
        with torch.set_grad_enabled(grad):
            own = _embeddings(self, tensors, out)
            if grad:
                self._check_apart(own)
            logits = pooling_known(self).compared(own, self.embedding.to(own))[:, None]  # [text, 1]
        return {**out, "logits": logits}

    def _check_apart(self, own: Tensor) -> None:
        """Refuse the gradient of a distance of 0: it has no direction, only rounding has."""
        measure = pooling_known(self).similarity
        other = self.embedding.to(own)
        same = TOLERANCE.get(self.dtype, TOLERANCE[torch.float32]) * float(other.norm())
        if measure in DISTANCES and bool(((own.detach() - other).norm(dim=-1) <= same).any()):
            raise InputError(
                f"the two texts have the same embedding, so their {measure} distance is 0, where it has no gradient: use "
                "blank_out, or compare different texts"
            )


def _embeddings(model: Runner, tensors: Mapping[str, Tensor], out: ModelOutput) -> Tensor:
    states = out.get("last_hidden_state") if hasattr(out, "get") else None
    if not isinstance(states, Tensor) or states.dim() != 3:
        raise ModelError(
            f"{type(model.model).__name__} does not return the states of its tokens (last_hidden_state), from which an "
            "embedding is computed: expected the bare transformer of a sentence-embedding model, such as BertModel"
        )
    return pooling_known(model).embedding(states, tensors.get("attention_mask"))
