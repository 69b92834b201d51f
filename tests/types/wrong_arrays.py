"""Errors that a type checker must report: each marked line fails with that code, and no other line fails."""

import numpy as np
import torch
from numpy.typing import NDArray

import attnflow as af

graph = af.attention_graph(np.full((2, 1, 3, 3), 1 / 3))
tensor_graph = af.attention_graph(torch.full((2, 1, 3, 3), 1 / 3))

a: torch.Tensor = af.attention_graph(np.ones((2, 1, 3, 3)))  # error: assignment
b: NDArray[np.float64] = af.rollout(tensor_graph)  # error: arg-type
c: torch.Tensor = af.merge(graph, [[0], [1, 2]])  # error: assignment
af.single_head(np.ones((2, 1, 3, 3)), 1, 0).cpu()  # error: attr-defined
graph.cpu()  # error: attr-defined
af.flow(tensor_graph).cpu()  # error: attr-defined
d: str = af.max_flow(graph, query=0, token=1).value  # error: assignment
af.max_flow(graph, query=0)  # error: call-arg
af.attention_graph(np.ones((2, 1, 3, 3)), residual="half")  # error: arg-type
af.rolout(graph)  # error: attr-defined
