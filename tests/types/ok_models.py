"""A model, its traces and their results."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import attnflow as af
from attnflow.view.page import Page

model = af.load("bert-base-uncased")
assert_type(model, af.Model)

trace = model.trace("the key to the cabinets")
assert_type(trace, af.Trace)
assert_type(model.trace(["the key", "the keys"]), list[af.Trace])
assert_type(model.trace("the key", keep_heads=True, edges="alti"), af.Trace)
linear = model.trace("the key to the cabinets", memory="linear", queries=[-1])
assert_type(linear, af.LinearTrace)
assert_type(linear.rollout(), af.TokenAttention)
assert_type(model.trace(["the key", "the keys"], memory="linear", queries={-1: 0.5, -2: 0.5}), list[af.LinearTrace])

result = trace.flow(query="[CLS]")
assert_type(result, af.TokenAttention)
assert_type(result.values, NDArray[np.floating[Any]])
assert_type(result.words().without_special(), af.TokenAttention)
assert_type(result.top(3), list[af.Score])
result.show()
result.save(Path("result.json"))
result.save("result.html")
result.to_pandas()
assert_type(af.TokenAttention.load("result.json"), af.TokenAttention)

assert_type(model.blank_out("the key"), af.TokenAttention)
assert_type(model.blank_out(["the key", "the keys"]), list[af.TokenAttention])
assert_type(model.gradient("the key"), af.TokenAttention)
assert_type(model.explain("the key"), Page)
assert_type(af.evaluate.evaluate(model, ["the key", "the keys"], ["singular", "plural"]), af.evaluate.Evaluation)

graph: torch.Tensor = af.attention_graph(model.trace("the key", keep_heads=True).weights)
