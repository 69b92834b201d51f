"""Evaluation of methods: how well a method ranks tokens by importance, and what deleting tokens shows.

evaluate   a model and labelled texts -> rank correlations with means, intervals and paired tests
spearman   one rank correlation
"""

from attnflow.evaluate.correlation import evaluate as evaluate
from attnflow.evaluate.evaluation import Evaluation as Evaluation
from attnflow.evaluate.statistics import Interval as Interval
from attnflow.evaluate.statistics import spearman as spearman

__all__ = ["Evaluation", "Interval", "evaluate", "spearman"]
