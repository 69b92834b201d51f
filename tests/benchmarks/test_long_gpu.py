"""The benchmark of long contexts, with a small model on the CPU in place of a large one on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark runs a model")

import numpy as np
import torch

import attnflow as af
from benchmarks.long_gpu import (
    TASKS,
    Setting,
    checkpointed_backward,
    goal_of,
    names_of,
    note_of,
    rows_of,
    run,
    setting,
    table_of,
    tasks_of,
)
from benchmarks.rival_core import core_of

SHORT = [name for name in TASKS if name != "flashtrace"]


def small(tokens: int = 24, span: int = 6) -> Setting:
    return setting("tiny", 2, tokens, span, None)


def test_every_task_runs_and_stands_beside_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.long_gpu.gc.collect", lambda: 0)  # slow when many tests have run
    said: list[str] = []
    rows = run([24], names_of(None, None), 2, 1, 6, said.append, "tiny")
    assert [row.what for row in rows] == SHORT
    for row in rows:
        assert row.seconds and row.seconds > 0 and row.peak_gib is not None, row
        assert row.times == pytest.approx(row.seconds / (rows[0].seconds or 0))
    notes = {row.what: row.note for row in rows}
    assert notes["rollout"] == notes["span"] == "sums to 1.00000"
    assert notes["rows"] == "rows sum to 1.00000 to 1.00000"
    assert notes["answer-pass"].startswith("parts add up to ") and notes["frozen"].startswith("parts add up to ")
    assert len([line for line in said if line.startswith("24 tokens, round 1: ")]) == len(SHORT)


def test_a_span_is_the_mean_of_its_rows_and_the_cache_changes_nothing() -> None:
    s = small()
    tasks = tasks_of(s, SHORT)
    last = list(range(18, 24))
    rows = s.wrapped.trace({"input_ids": s.ids}, memory="linear", queries=last, edges="head-norm").rollout()
    np.testing.assert_allclose(tasks["span"]().values[0, 0], rows.values[0].mean(0), atol=1e-6)
    answer, alone = tasks["answer"]().values, tasks["answer-alone"]().values
    np.testing.assert_allclose(answer, alone, atol=1e-5)


def test_the_baseline_of_gradients_runs_each_layer_twice_and_leaves_the_model_as_it_was() -> None:
    s = small()
    calls: list[int] = []
    s.model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    gradient, _ = checkpointed_backward(s)
    assert len(calls) == 2 and not s.model.training and not s.model.is_gradient_checkpointing
    states = s.model.get_input_embeddings()(s.ids).detach().requires_grad_()
    logits = s.model(inputs_embeds=states).logits[0, -1]
    torch.testing.assert_close(gradient, torch.autograd.grad(logits.max(), states)[0])


def test_the_baseline_of_gradients_says_where_cudnn_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(device: object) -> None:
        raise RuntimeError("No available kernel. Aborting execution.")

    s = small()
    gradient, _ = checkpointed_backward(s)
    monkeypatch.setattr("benchmarks.long_gpu.on_cudnn", refusing)
    again, by = checkpointed_backward(s)
    assert by == "torch, as cuDNN refuses" and note_of("backward", (again, by)) == f"attention by {by}"
    torch.testing.assert_close(again, gradient)


@pytest.mark.long
def test_a_task_that_fails_says_so_and_leaves_the_others_their_figures() -> None:
    rows = run([24], ["forward", "flashtrace"], 2, 2, 6, lambda _: None, "tiny")
    assert rows[0].seconds and rows[1].seconds is None and rows[1].times is None
    assert rows[1].note.startswith("AttributeError: 'NoneType' object has no attribute 'extract_model_metadata'")
    assert table_of(rows).row_count == 2


def test_figures_are_medians_of_seconds_and_the_largest_peak() -> None:
    figures = {"forward": [(1.0, 2.0), (3.0, 1.0), (2.0, 1.0)], "span": [(2.0, 1.0), (4.0, 3.0), (3.0, 2.0)]}
    forward, span, broken = rows_of(131072, 32, figures, {"forward": "", "span": "", "rows": "out of memory"})
    assert (forward.seconds, forward.peak_gib, span.times, span.peak_times) == (2.0, 2.0, 1.5, 1.5)
    assert (broken.seconds, broken.times, broken.note) == (None, None, "out of memory")
    assert [goal_of("span", n).times for n in (5120, 10240, 131072)] == [1.3, 1.3, 1.4]
    assert [goal_of("answer", n).times for n in (5120, 10240, 131072)] == [None, 0.1, 0.04]


def test_tasks_are_named_and_bring_what_they_are_compared_with() -> None:
    assert names_of("backward,rows", None) == ["forward", "rows", "backward"]
    assert names_of(None, "folder") == list(TASKS)
    with pytest.raises(af.InputError, match=r"^tasks 'all': expected some of forward, rollout, "):
        names_of("all", None)
    with pytest.raises(
        af.InputError, match=r"^the task flashtrace needs the folder of its package: give --flashtrace$"
    ):
        names_of("flashtrace", None)
    with pytest.raises(af.InputError, match=r"^7 tokens: expected more than the 6 that are explained"):
        run([7], ["forward"], 2, 1, 6, print, "tiny")


RIVAL = """
from types import SimpleNamespace
seen = {}
IFRParameters = SimpleNamespace
def extract_model_metadata(model):
    names = "n_layers n_heads_q n_kv_heads head_dim group_size d_model rotary_emb"
    return SimpleNamespace(layers=model.model.layers, **dict.fromkeys(names.split()))
def attach_hooks(layers, dtype):
    return seen, [layers[0].register_forward_hook(lambda m, x, y: seen.update(tokens=y.shape[1]))]
def build_weight_pack(metadata, dtype):
    return []
def compute_ifr_sentence_aggregate(**options):
    seen.update(options)
    return SimpleNamespace(token_importance_total=None)
"""


def test_the_rival_is_asked_for_the_last_tokens(tmp_path: Path) -> None:
    (tmp_path / "flashtrace").mkdir()
    (tmp_path / "flashtrace" / "core.py").write_text(RIVAL)
    s = setting("tiny", 2, 24, 6, str(tmp_path))
    tasks_of(s, ["flashtrace"])["flashtrace"]()
    assert s.rival is not None
    assert [s.rival.seen[k] for k in ("tokens", "sink_start", "sink_end", "attentions")] == [24, 18, 23, None]
    assert not s.model.model.layers[0]._forward_hooks
    with pytest.raises(af.InputError, match=r"^'nowhere' has no flashtrace/core.py: expected a folder"):
        core_of("nowhere")
