"""Models whose heads are split over two processes (tensor parallelism): each gets the numbers of a single process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attnflow as af
from attnflow.capture.collect import Call
from attnflow.capture.ranks import ranks_of, sharing_heads
from attnflow.errors import ModelError
from benchmarks.large_model import computed_bytes
from helpers.ranks import MODELS, REFUSED, RESULTS, built, results_of, run_ranks

TOLERANCE = 1e-5
"""Relative to the largest value of a result, in float32: the sums over heads have another order."""

distributed = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch has no processes that talk by gloo",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    try:
        return run_ranks(tmp_path_factory.mktemp("ranks"), list(MODELS))
    except PermissionError as e:
        pytest.skip(f"this place lets no process open a socket on loopback: {e}")


@distributed
@pytest.mark.parametrize("name", MODELS)
def test_every_process_has_the_numbers_of_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    alone = af.wrap(built(name), name=name)
    for what in results_of(name):
        expected = RESULTS[what](alone).values
        for rank, got in enumerate(ranks):
            np.testing.assert_allclose(
                got["values"][f"{name}: {what}"], expected, rtol=0, atol=TOLERANCE * np.abs(expected).max(),
                err_msg=f"{what} of process {rank}",
            )  # fmt: skip


@distributed
def test_what_needs_all_heads_in_one_place_is_refused_by_every_process(ranks: list[dict[str, Any]]) -> None:
    for got in ranks:
        for words in REFUSED:
            assert got["refusals"][words].startswith(words), words
            assert "several processes (tensor parallelism)" in got["refusals"][words]
        assert got["provenance"]["processes"] == 2


@distributed
def test_as_many_bytes_are_added_up_as_the_documentation_computes(ranks: list[dict[str, Any]]) -> None:
    for got in ranks:
        assert got["bytes"] == {name: size for name, (_, size) in computed_bytes().items()}


def _mesh(**sizes: int) -> Any:
    class Mesh(dict[str, Any]):
        mesh_dim_names = tuple(sizes)

    return Mesh({name: SimpleNamespace(size=lambda n=n: n, get_group=lambda: None) for name, n in sizes.items()})


def test_a_model_in_one_process_has_no_others() -> None:
    assert ranks_of(torch.nn.Linear(2, 2)) is None
    assert ranks_of(SimpleNamespace(_device_mesh=_mesh(tp=1), _tp_size=1)) is None


def test_layers_or_positions_on_several_processes_are_refused() -> None:
    layers = SimpleNamespace(_device_mesh=_mesh(pp=2, tp=2), _tp_size=2, tp_plan={})
    with pytest.raises(
        ModelError, match=r"layers of this model are split over several processes .* load it with device_map='auto'"
    ):
        ranks_of(layers)
    positions = SimpleNamespace(_device_mesh=_mesh(tp=2), _tp_size=2, tp_plan={"norm": "sequence_parallel"})
    with pytest.raises(ModelError, match=r"splits positions over the processes .* load it with the plan 'auto'"):
        ranks_of(positions)


@pytest.mark.parametrize(("seen", "shared"), [(8, False), (4, True)])
def test_heads_are_told_by_their_number(seen: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    model, config = torch.nn.Linear(2, 2), SimpleNamespace(num_attention_heads=8)
    model._device_mesh, model._tp_size, model.tp_plan = _mesh(tp=2), 2, {}
    assert (sharing_heads(model, config, [Call("", False, seen, False)]) is not None) == shared


@pytest.mark.parametrize("mesh", [True, False])
def test_heads_that_nobody_knows_of_are_refused(mesh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    model, config = torch.nn.Linear(2, 2), SimpleNamespace(num_attention_heads=8)
    if mesh:
        model._device_mesh, model._tp_size, model.tp_plan = _mesh(tp=2), 2, {}
    with pytest.raises(
        ModelError, match=r"sees 3 heads per layer, but the configuration says 8: .* Load the model through"
    ):
        sharing_heads(model, config, [Call("", False, 3, False)])
