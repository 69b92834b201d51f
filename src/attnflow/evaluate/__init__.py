"""Which method to believe: how well a method ranks tokens as their importance does, and what deleting tokens says.

evaluate   a model and labelled texts -> rank correlations with means, intervals and paired tests
spearman   one rank correlation
"""

from attnflow.evaluate.correlation import evaluate as evaluate
from attnflow.evaluate.evaluation import Evaluation as Evaluation
from attnflow.evaluate.statistics import Interval as Interval
from attnflow.evaluate.statistics import spearman as spearman

__all__ = ["Evaluation", "Interval", "evaluate", "spearman"]
