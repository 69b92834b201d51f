"""Conditions that every flow must satisfy."""

from __future__ import annotations

import numpy as np

import attnflow as af


def check_certificate(layers: list[np.ndarray], mf: af.MaxFlow) -> None:
    layers = layers[: mf.layer + 1]
    tolerance = 1e-12 * max(mf.value, 1e-300)
    assert len(mf.edges) == len(layers)
    for capacity, carried in zip(layers, mf.edges, strict=True):
        assert carried.shape == capacity.shape
        assert (carried >= 0).all() and (carried <= capacity).all(), "more than the capacity"
    into = [np.zeros(mf.edges[0].shape[1]), *(e.sum(axis=1) * 0 for e in mf.edges)]
    out = [np.zeros(len(x)) for x in into]
    for k, carried in enumerate(mf.edges):
        into[k] = carried.sum(axis=0)
        out[k + 1] = carried.sum(axis=1)
    for k in range(1, len(layers)):
        assert np.allclose(into[k], out[k], rtol=0, atol=tolerance), f"something is lost or made at level {k}"
    assert abs(out[-1][mf.query] - mf.value) <= tolerance
    assert abs(into[0][mf.token] - mf.value) <= tolerance
    assert out[-1].sum() == out[-1][mf.query], "flow that starts elsewhere"
    assert into[0].sum() == into[0][mf.token], "flow that ends elsewhere"

    capacity = sum(e.capacity for e in mf.cut)
    assert abs(capacity - mf.value) <= 1e-9 * max(mf.value, 1e-300), "the cut does not prove the flow"
    assert mf.gap <= 1e-9 * max(mf.value, 1e-300)
    without = [layer.copy() for layer in layers]
    for e in mf.cut:
        assert layers[e.layer][e.query, e.key] == e.capacity
        without[e.layer][e.query, e.key] = 0
    reached = np.zeros(without[-1].shape[0])
    reached[mf.query] = 1
    for layer in reversed(without):
        reached = (reached > 0) @ (layer > 0)
    assert not reached[mf.token], "a path avoids the cut"
