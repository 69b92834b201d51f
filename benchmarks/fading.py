"""What the log-probability of an answer loses when attention of any position to a prompt token begins to fade.

The package has this for the positions that decide the answer (`attnflow.capture.fading`), which needs only the prompt's
cache. This is an alternative whose gradients also go back through the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.capture.answer_pass import log_probability
from attnflow.capture.frozen import run_frozen
from attnflow.capture.inputs import labelled

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]


def fading_everywhere(model: Model, ids: Sequence[int], answer: Sequence[int]) -> Floats:
    """Return ``F[k] = Σ_q ∂ log p/∂s[q, k]`` over all positions q, for each token of the prompt, signed."""
    tokens = [*ids, *answer[:-1]]
    text = labelled({"input_ids": torch.tensor([tokens])}, [str(i) for i in tokens])
    everything = run_frozen(model, text.tensors, model.verify(text), freeze=False)
    score = log_probability(slice(len(ids) - 1, len(tokens)), answer, range(len(answer)))
    slopes = everything.slopes(score, slice(0, len(tokens)))["self"]
    return np.asarray(slopes.sum(0)[: len(ids)].cpu().numpy())
