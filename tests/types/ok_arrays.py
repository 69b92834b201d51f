"""Functions return the same kind of array that they are given."""

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import attnflow as af

weights = np.full((2, 1, 3, 3), 1 / 3)  # [layer, head, query, key]
graph: NDArray[Any] = af.attention_graph(weights, heads="mean", residual=0.5)
rolled: NDArray[Any] = af.rollout(graph, queries=[0], layers=-1)
merged: NDArray[Any] = af.merge(graph, [[0], [1, 2]])
assert_type(af.flow(graph, queries=0), NDArray[np.float64])

one_head: NDArray[Any] = af.single_head(weights, layer=1, head=0)
assert_type(af.single_head(weights, 1, 0, "flow"), NDArray[np.float64])

tensors = torch.full((2, 1, 3, 3), 1 / 3)
tensor_graph: torch.Tensor = af.attention_graph(tensors)
tensor_rolled: torch.Tensor = af.rollout(tensor_graph)
tensor_merged: torch.Tensor = af.merge(tensor_graph, [0, 1, 1])
assert_type(af.flow(tensor_graph), NDArray[np.float64])

tensor_head: torch.Tensor = af.single_head(tensors, layer=1, head=0)

attentions: tuple[torch.Tensor, ...] = tuple(tensors)  # as transformers returns them
of_transformers: torch.Tensor = af.attention_graph(attentions)

solved = af.max_flow(graph, query=0, token=2, layer=-1)
assert_type(solved, af.MaxFlow)
assert_type(solved.value, float)
