"""A batch of graphs on a GPU, and which of its flows are proven there (`flow_kernels`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.flow_kernels import ALIGNED, Paths, Proofs, prove

Tensor = Any


class Batch(NamedTuple):
    """Graphs on the GPU, and the proofs that it is working on.

    graphs: ``[2, layer, text, position, position]``, as `prove` takes them.
    """

    graphs: Tensor
    proofs: Proofs


def launch(
    layers: Sequence[Tensor],
    lengths: NDArray[np.int32],
    levels: Sequence[int],
    queries: NDArray[np.int32],
    tokens: NDArray[np.int32],
) -> Batch:
    """Starts to prove the flows of every text, level (from 1), query ``[text, query]`` of the text and token within it.

    The pairs stand in that order.
    """
    device = layers[0].device
    sizes = torch.as_tensor(lengths, device=device)
    levels_of, queries_of = torch.as_tensor(levels, device=device), torch.as_tensor(queries, device=device)
    tokens_of = torch.as_tensor(tokens, device=device)
    graphs, full = _graphs(layers, sizes)
    inside = (tokens_of < sizes[:, None])[:, None, None, :]
    text, level, query, token = inside.expand(-1, len(levels), queries.shape[1], -1).nonzero().unbind(1)
    pairs = torch.stack([text, levels_of[level], queries_of[text, query], tokens_of[token]], 1).to(torch.int32)
    paths = None
    if not full:
        source = (text * len(levels) + level) * queries.shape[1] + query
        paths = Paths(*_on_paths(graphs[0], levels, queries_of), source.to(torch.int32))
    return Batch(graphs, prove(graphs, pairs.contiguous(), paths))


def _graphs(layers: Sequence[Tensor], sizes: Tensor) -> tuple[Tensor, bool]:
    """Upright and transposed, zero beyond each text; and whether no capacity within a text is zero."""
    texts, n, _ = layers[0].shape
    width = -(-n // ALIGNED) * ALIGNED
    graphs = torch.zeros((2, len(layers), texts, width, width), dtype=layers[0].dtype, device=layers[0].device)
    within = torch.arange(n, device=sizes.device) < sizes[:, None]  # [text, position]
    inside = within[:, :, None] & within[:, None, :]
    zeros = torch.zeros((), dtype=torch.bool, device=sizes.device)
    for number, layer in enumerate(layers):
        upright = layer.detach().where(inside, 0.0)
        zeros |= ((upright == 0) & inside).any()
        graphs[0, number, :, :n, :n] = upright
        graphs[1, number, :, :n, :n] = upright.mT
    return graphs, not bool(zeros)


def _on_paths(layers: Tensor, levels: Sequence[int], queries: Tensor) -> tuple[Tensor, Tensor]:
    """What every query of every level reaches, ``[text × level × query, level, node]``, and what reaches every token."""
    depth, texts, n, _ = layers.shape
    edges = (layers > 0).float()
    reaching = torch.empty((texts, depth + 1, n, n), dtype=torch.uint8, device=layers.device)
    nodes = torch.eye(n, device=layers.device).expand(texts, n, n)  # [text, token, node]
    reaching[:, 0] = nodes
    for k in range(1, depth + 1):
        nodes = (nodes @ edges[k - 1].mT > 0).float()
        reaching[:, k] = nodes
    count = queries.shape[1]
    reached = torch.zeros((texts, len(levels) * count, depth + 1, n), dtype=torch.uint8, device=layers.device)
    first = torch.nn.functional.one_hot(queries.long(), n).float()  # [text, query, node]
    nodes = torch.zeros((texts, len(levels) * count, n), device=layers.device)
    for k in range(depth, -1, -1):
        for place in (place for place, level in enumerate(levels) if level == k):
            nodes[:, place * count : (place + 1) * count] = first
        reached[:, :, k] = nodes
        if k:
            nodes = (nodes @ edges[k - 1] > 0).float()
    return reached.flatten(0, 1), reaching


def collect(batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Values and steps of the pairs, once the GPU is done with them."""
    values, steps = to_host([batch.proofs.values, batch.proofs.steps])
    return values, steps


def graphs_of(batch: Batch, texts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """The layers of some texts, on the host: one array ``[text, position, position]`` a layer."""
    chosen = batch.graphs[0].index_select(1, torch.as_tensor(texts, device=batch.graphs.device))
    return list(to_host([chosen])[0])


def to_host(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Copies that wait for the GPU once, by way of memory that it can write to directly."""
    copies = [torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda).copy_(x, non_blocking=True) for x in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return [copy.numpy() for copy in copies]
