"""What a token is worth to the model's answer: by taking it away, or by the gradient at its embedding.

blank_out              the change of the answer's probability without the token
gradient               the gradient of the answer with respect to the token's embedding
integrated_gradients   the same along the way from a blank text to this one (captum)
shapley                the mean change over random orders of adding tokens (captum)

And, of an answer of many tokens, without groups of the prompt's tokens: `attnflow.importance.leave_out`.
"""

from attnflow.importance.baselines import integrated_gradients as integrated_gradients
from attnflow.importance.baselines import shapley as shapley
from attnflow.importance.blank import blank_out as blank_out
from attnflow.importance.gradients import gradient as gradient

__all__ = ["blank_out", "gradient", "integrated_gradients", "shapley"]
