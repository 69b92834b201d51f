"""A batch of graphs on a GPU, and which of its flows are proven there (`flow_kernels`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.flow_kernels import ALIGNED, Paths, prove

Tensor = Any


class Batch(NamedTuple):
    """Graphs on the GPU.

    graphs: ``[2, layer, text, position, position]``, as `prove` takes them.
    full: whether no capacity within a text is zero.
    """

    graphs: Tensor
    full: bool


class Proving(NamedTuple):
    """Values and steps of pairs; they are on the host once the GPU has reached `done`."""

    values: Tensor
    steps: Tensor
    done: Any


def are_full(layers: Sequence[Tensor], lengths: NDArray[np.int32]) -> bool:
    """Return whether no capacity within a text is zero. Waits for the GPU."""
    inside = _inside(layers[0], lengths)
    zeros = torch.zeros((), dtype=torch.bool, device=layers[0].device)
    for layer in layers:
        zeros |= ((layer == 0) & inside).any()
    return not bool(zeros)


def prepare(layers: Sequence[Tensor], lengths: NDArray[np.int32], full: bool) -> Batch:
    """Return the layers as they are and transposed, zero beyond each text."""
    texts, n, _ = layers[0].shape
    width = -(-n // ALIGNED) * ALIGNED
    inside = _inside(layers[0], lengths)
    graphs = torch.zeros((2, len(layers), texts, width, width), dtype=layers[0].dtype, device=layers[0].device)
    for number, layer in enumerate(layers):
        upright = layer.detach().where(inside, 0.0)
        graphs[0, number, :, :n, :n] = upright
        graphs[1, number, :, :n, :n] = upright.mT
    return Batch(graphs, full)


def launch(
    batch: Batch, pairs: NDArray[np.int32], levels: Sequence[int], queries: NDArray[np.int32], source: NDArray[np.int32]
) -> Proving:
    """Start to prove the flows of pairs ``[pair, 4]`` (text, level from 1, query, token), without waiting.

    queries: ``[text, query]``. source: for each pair, the index of its text, level and query among all of these.
    """
    device, paths = batch.graphs.device, None
    if not batch.full:
        paths = Paths(*_on_paths(batch.graphs[0], levels, _to_device(queries, device)), _to_device(source, device))
    proofs = prove(batch.graphs, _to_device(pairs, device), paths)
    values, steps = _to_host(proofs.values), _to_host(proofs.steps)
    done = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
    return Proving(values, steps, done)


def collect(proving: Proving) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return values and steps of the pairs; waits for the GPU."""
    if proving.done is not None:
        proving.done.synchronize()
    return proving.values.numpy(), proving.steps.numpy()


def graphs_of(batch: Batch, texts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the layers of some texts on the host: one array ``[text, position, position]`` per layer.

    It uses a separate stream, so that it does not wait for proofs that were started in the meantime.
    """
    graphs = batch.graphs[0]
    with torch.cuda.stream(torch.cuda.Stream(graphs.device) if graphs.is_cuda else None):
        chosen = graphs
        if len(texts) < graphs.shape[1]:
            chosen = graphs.index_select(1, _to_device(texts, graphs.device))
        copy = _to_host(chosen)
        if graphs.is_cuda:
            torch.cuda.current_stream(graphs.device).synchronize()
    return list(copy.numpy())


def _inside(layer: Tensor, lengths: NDArray[np.int32]) -> Tensor:
    sizes = _to_device(lengths, layer.device)
    within = torch.arange(layer.shape[-1], device=layer.device) < sizes[:, None]  # [text, position]
    return within[:, :, None] & within[:, None, :]


def _to_device(array: NDArray[Any], device: Any) -> Tensor:
    """Copy through pinned memory: an ordinary copy would wait for all the work that was started."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _to_host(tensor: Tensor) -> Tensor:
    """Return a copy that is ready once the GPU has reached it."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)


def _on_paths(layers: Tensor, levels: Sequence[int], queries: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each query of each level reaches, ``[text × level × query, level, node]``, and what reaches tokens."""
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
