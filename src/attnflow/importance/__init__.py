"""What a token is worth to the model's answer: by removing it, or by the gradient at its embedding.

blank_out              the change of the answer's probability without the token
gradient               the gradient of the answer with respect to the token's embedding
integrated_gradients   the same along the path from a blank text to this one (captum)
shapley                the mean change over random orders of adding tokens (captum)

leave_out              the log-probabilities of an answer's tokens without groups of the prompt's tokens
fit                    estimates for groups that were not left out, from those that were
"""

from attnflow.importance.baselines import integrated_gradients as integrated_gradients
from attnflow.importance.baselines import shapley as shapley
from attnflow.importance.blank import blank_out as blank_out
from attnflow.importance.gradients import gradient as gradient
from attnflow.importance.leave_out import LeaveOneOut as LeaveOneOut
from attnflow.importance.leave_out import leave_out as leave_out
from attnflow.importance.verified import fit as fit

__all__ = ["LeaveOneOut", "blank_out", "fit", "gradient", "integrated_gradients", "leave_out", "shapley"]
