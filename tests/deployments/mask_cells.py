"""Positions and masks: padding, packed texts, user-defined masks, and scaled rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnflow as af
from deployments.cells import Cell, Numbers, Outcome, compared
from helpers.architectures import ids, text
from helpers.deployed import ANSWER, attentions, bert, expected, llama, rolled_out, traced

GROUP = "Positions and masks"

N = 11
LONGER, LONGEST = ids(24, 1), ids(50, 2)


def batch(build: Callable[..., Any], folder: Path) -> Outcome:
    """Compare texts of three lengths in a batch with each text alone."""
    texts = [{"input_ids": ids(n, n)} for n in (5, 11, 8)]

    def numbers() -> Numbers:
        traces = af.wrap(build()).trace(texts, keep_heads=True)
        return {str(i): np.stack([np.asarray(w) for w in t.weights.values()]) for i, t in enumerate(traces)}

    plain = build("eager")
    return compared(numbers, lambda: {str(i): attentions(plain, x) for i, x in enumerate(texts)})


def padded_alone(side: str, folder: Path) -> Outcome:
    mask = torch.ones(1, N, dtype=torch.long)
    mask[:, :3] = 0
    inputs = {"input_ids": ids(N), "attention_mask": mask if side == "left" else mask.flip(1)}
    return compared(lambda: traced(af.wrap(llama()), inputs), lambda: expected(llama("eager"), inputs))


def written_together(folder: Path) -> Outcome:
    """Prompts of three lengths are padded on the left and answered together."""
    prompts = [torch.tensor([ids(n, n)[0].tolist()]) for n in (5, 11, 8)]

    def numbers() -> Numbers:
        answers = af.wrap(llama()).answer(prompts, max_new_tokens=3)
        return {f"{i}: {what}": x for i, a in enumerate(answers) for what, x in _of_answer(a).items()}

    def truth() -> Numbers:
        one = af.wrap(llama("eager"))
        answers = [one.answer(prompt, max_new_tokens=3) for prompt in prompts]
        return {f"{i}: {what}": x for i, a in enumerate(answers) for what, x in _of_answer(a).items()}

    return compared(numbers, truth)


def _of_answer(answer: Any) -> Numbers:
    return {"tokens": np.array(answer.ids, float), "matrix": answer.matrix(signed=True).values}


SPLIT = 5
PACKED = {"input_ids": ids(N), "position_ids": torch.tensor([[*range(SPLIT), *range(N - SPLIT)]])}


def _apart() -> np.ndarray:
    """Return the attention of the two texts, each computed alone, at their positions."""
    plain, weights = llama("eager"), np.zeros((3, 4, N, N))
    for part in (slice(0, SPLIT), slice(SPLIT, N)):
        weights[:, :, part, part] = attentions(plain, {"input_ids": ids(N)[:, part]})
    return weights


def packed(more: dict[str, torch.Tensor], folder: Path) -> Outcome:
    def truth() -> Numbers:
        return {"weights": _apart(), "rollout": rolled_out(_apart())}

    return compared(lambda: traced(af.wrap(llama()), {**PACKED, **more}), truth)


def packed_list(folder: Path) -> Outcome:
    """The first text's positions do not restart, so it shows nothing about those that do."""
    plain = {"input_ids": ids(N), "position_ids": torch.arange(N)[None]}
    longer = {"input_ids": ids(N + 3, 4), "position_ids": torch.arange(N + 3)[None]}

    def numbers() -> Numbers:
        traces = af.wrap(llama()).trace([plain, PACKED, longer], keep_heads=True)
        return {str(i): np.stack([np.asarray(w) for w in t.weights.values()]) for i, t in enumerate(traces)}

    eager = llama("eager")
    return compared(numbers, lambda: {"0": attentions(eager, plain), "1": _apart(), "2": attentions(eager, longer)})


def packed_edges(folder: Path) -> Outcome:
    """Compare the second text's answer with that text alone: nothing may come from the first."""
    alone = {"input_ids": ids(N)[:, SPLIT:]}

    def numbers() -> Numbers:
        model = af.wrap(llama())
        rows = {
            "answer": model.trace(PACKED, edges="answer").rollout().values,
            "answer, linear": model.trace(PACKED, memory="linear", edges="answer").answer_inputs(signed=True).values,
            "head-norm": model.trace(PACKED, memory="linear", edges="head-norm").rollout().values,
        }
        return {what: x[..., SPLIT:] + np.abs(x[..., :SPLIT]).sum() for what, x in rows.items()}

    def truth() -> Numbers:
        model = af.wrap(llama("eager"))
        return {
            "answer": model.trace(alone, edges="answer").rollout().values,
            "answer, linear": model.trace(alone, memory="linear", edges="answer").answer_inputs(signed=True).values,
            "head-norm": model.trace(alone, memory="linear", edges="head-norm").rollout().values,
        }

    return compared(numbers, truth)


def _prefix() -> torch.Tensor:
    """The first four positions see one another; the others see what is before them."""
    seen = torch.ones(N, N, dtype=torch.bool).tril()
    seen[:4, :4] = True
    return seen[None, None]


def _band() -> torch.Tensor:
    """A mask of no known form: positions miss some in between."""
    seen = torch.ones(N, N, dtype=torch.bool).tril()
    seen[8:, :3] = False
    seen[6, 4:6] = False
    return seen[None, None]


def _added(seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)


def pairs(build: Callable[..., Any], mask: torch.Tensor, folder: Path) -> Outcome:
    """Also after a text without this mask, without matrices, and with edges."""
    inputs = {"input_ids": ids(N), "attention_mask": mask}
    added = {"input_ids": ids(N), "attention_mask": _added(mask) if mask.dtype == torch.bool else mask}

    def numbers() -> Numbers:
        model = af.wrap(build())
        model.trace(text())
        rows = model.trace(inputs, memory="linear", queries=range(N)).rollout().values[0]
        return {**traced(model, inputs), "linear": rows, "head-norm": _head_norm(model, inputs)}

    def truth() -> Numbers:
        weights = expected(build("eager"), added)
        return {**weights, "linear": weights["rollout"], "head-norm": _head_norm(af.wrap(build("eager")), added)}

    return compared(numbers, truth)


def _head_norm(model: af.Model, inputs: Any) -> np.ndarray:
    return model.trace(inputs, edges="head-norm").rollout(query=range(N), layer=-1).values


def pairs_of_numbers(folder: Path) -> Outcome:
    inputs = {"input_ids": ids(N), "attention_mask": _prefix().long()}
    return compared(lambda: traced(af.wrap(llama()), inputs), lambda: expected(llama("eager")))


SCALED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip


def scaled(kind: str, implementation: str | None = None) -> Any:
    """Return a model that was trained on 16 tokens."""
    most = 16 if kind == "dynamic" else 64
    return llama(implementation, max_position_embeddings=most, rope_parameters={"rope_theta": 10000.0, **SCALED[kind]})


def rope(kind: str, folder: Path) -> Outcome:
    """Trace a text longer than in training before and after an even longer one, then a short one."""
    short, longer, longest = ({"input_ids": x} for x in (ids(N), LONGER, LONGEST))

    def numbers() -> Numbers:
        model = af.wrap(scaled(kind))
        return {
            f"{i}: {what}": x
            for i, inputs in enumerate((longer, longest, longer, short))
            for what, x in traced(model, inputs).items()
        }

    def truth() -> Numbers:  # a fresh model for each, without state from an earlier text
        return {
            f"{i}: {what}": x
            for i, inputs in enumerate((longer, longest, longer, short))
            for what, x in expected(scaled(kind, "eager"), inputs).items()
        }

    return compared(numbers, truth)


def rope_batch(kind: str, folder: Path) -> Outcome:
    """Trace a short text with a long one; then answer edges and log-probabilities after reading the prompt once."""
    texts = [{"input_ids": x} for x in (ids(N), LONGEST, LONGER)]
    prompt = LONGER[0].tolist()

    def numbers() -> Numbers:
        model = af.wrap(scaled(kind))
        rows = [t.rollout(layer=-1).values[0, 0] for t in model.trace(texts)]
        lines = [t.rollout().values[0, 0] for t in model.trace(texts, memory="linear")]
        answer = model.answer(prompt, answer=ANSWER)
        return {
            **{str(i): x for i, x in enumerate(rows)}, **{f"{i}, linear": x for i, x in enumerate(lines)},
            "log-probabilities": np.asarray(answer.log_probabilities),
        }  # fmt: skip

    def truth() -> Numbers:
        rows = [rolled_out(attentions(scaled(kind, "eager"), x))[-1] for x in texts]
        return {
            **{str(i): x for i, x in enumerate(rows)}, **{f"{i}, linear": x for i, x in enumerate(rows)},
            "log-probabilities": _log_probabilities(scaled(kind, "eager"), prompt),
        }  # fmt: skip

    return compared(numbers, truth)


def _log_probabilities(plain: Any, prompt: list[int]) -> np.ndarray:
    """Return those of the answer, from one pass of the plain model over prompt and answer."""
    with torch.no_grad():
        out = plain(torch.tensor([prompt + ANSWER[:-1]]), use_cache=False)
    rows = out.logits[0, len(prompt) - 1 :].double().log_softmax(-1)
    return np.array([float(row[token]) for row, token in zip(rows, ANSWER, strict=True)])


_SIDE_BY_SIDE = "compared with each text alone"

CELLS = [
    Cell(GROUP, "a batch of a decoder, padded on the right", partial(batch, llama), note="compared with each text alone"),
    Cell(GROUP, "a batch of an encoder, padded on the right", partial(batch, bert), note="compared with each text alone"),
    Cell(GROUP, "prompts answered in a batch, padded on the left", written_together, note="compared with each alone"),
    Cell(
        GROUP, "one text with padding on its left", partial(padded_alone, "left"),
        refusal="give one text without padding; a list of texts is padded for you",
    ),
    Cell(
        GROUP, "one text with padding on its right", partial(padded_alone, "right"),
        refusal="give one text without padding; a list of texts is padded for you",
    ),
    Cell(GROUP, "two texts packed by `position_ids` that restart", partial(packed, {}), note=_SIDE_BY_SIDE),
    Cell(
        GROUP, "two texts packed, with `cu_seq_lens`",
        partial(packed, {f"cu_seq_lens_{x}": torch.tensor([0, SPLIT, N], dtype=torch.int32) for x in "qk"}),
        note=_SIDE_BY_SIDE,
    ),
    Cell(GROUP, "packed texts in a list with others", packed_list, note=_SIDE_BY_SIDE),
    Cell(GROUP, "edges of packed texts", packed_edges, note="compared with the second text alone"),
    Cell(GROUP, "a prefix-LM mask, True and False", partial(pairs, llama, _prefix())),
    Cell(GROUP, "a prefix-LM mask, numbers to add", partial(pairs, llama, _added(_prefix()))),
    Cell(GROUP, "any mask of pairs", partial(pairs, llama, _band())),
    Cell(GROUP, "a mask of pairs in an encoder", partial(pairs, bert, _band())),
    Cell(
        GROUP, "a mask of pairs as integers", pairs_of_numbers,
        refusal="True where a query sees a key, or numbers to add to the scores",
    ),
    *(
        Cell(GROUP, f"RoPE scaling: {name}", partial(rope, kind), note="beyond the trained length, and after longer texts")
        for kind, name in (
            ("linear", "linear"), ("dynamic", "dynamic NTK"), ("yarn", "YaRN"), ("longrope", "LongRoPE"),
            ("llama3", "Llama 3"),
        )
    ),
    Cell(GROUP, "RoPE scaling: dynamic NTK, short and long texts in a batch", partial(rope_batch, "dynamic")),
    Cell(GROUP, "RoPE scaling: LongRoPE, short and long texts in a batch", partial(rope_batch, "longrope")),
]  # fmt: skip
