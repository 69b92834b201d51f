"""The training loop that all trainings share: it evaluates, averages weights, and keeps the best.

Each step depends only on the seed and the number of the step, so a training can be repeated (on the CPU to the bit; on
a GPU up to the order of its sums).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import device as Device
from torch.nn import Module
from torch.optim import Optimizer
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from attnflow import __version__
from attnflow.errors import InputError
from attnflow.files import make_folder, write_whole
from attnflow.paper.data_files import file_hash
from reproduction.quiet import silenced

Say = Callable[[str], None]
Record = dict[str, Any]
"""One evaluation: its stage, step, loss and scores."""
Indices = NDArray[np.int64]
Lengths = Sequence[int] | Indices
REPORT = "training.json"
PACKAGES = ("numpy", "torch", "transformers", "tokenizers")


def fit(
    stage: str,
    model: Module,
    optimizer: Optimizer,
    loss: Callable[[int], Tensor],
    evaluate: Callable[[Any], dict[str, float]],
    *,
    seed: int,
    say: Say,
    steps: int,
    rate: Callable[[int], float],
    every: int,
    averaging: float = 0.0,
) -> Record:
    """Minimize ``loss(step)`` over `steps` steps; leave the best weights in the model, and return their record.

    rate: the learning rate at a step.
    evaluate: called every `every` steps and at the end; a higher "score" is better.
    averaging: evaluate the running average ``w̄ ← a·w̄ + (1-a)·w`` instead of w itself; 0 is w.
    say: called with progress.
    """
    judged = copy.deepcopy(model) if averaging else model
    weights, averages = list(model.parameters()), list(judged.parameters())
    best: Record = {"score": -math.inf}
    best_weights: dict[str, Tensor] = {}
    started, total = time.perf_counter(), torch.zeros((), device=weights[0].device)
    with _fast():
        model.train()
        for step in range(steps):
            torch.manual_seed(_mixed(seed, stage, step))
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            optimizer.zero_grad(set_to_none=True)
            value = loss(step)
            value.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            total += value.detach()
            if averaging:
                # Early on, the average would be mostly the initial random weights.
                pull = 1 - min(averaging, (1 + step) / (10 + step))
                torch._foreach_lerp_([w.data for w in averages], [w.data for w in weights], pull)
            if (step + 1) % every and step + 1 < steps:
                continue
            mean = float(total) / ((step % every) + 1)
            if not math.isfinite(mean):
                raise InputError(f"{stage}: the loss is {mean} at step {step + 1}: give a lower rate, or another seed")
            total.zero_()
            judged.eval()
            with torch.no_grad():
                scores = evaluate(judged)
            model.train()
            seconds = time.perf_counter() - started
            record = {"stage": stage, "step": step + 1, "loss": mean, "rate": rate(step), **scores, "seconds": seconds}
            say(
                f"{stage}: step {step + 1} of {steps}, "
                + ", ".join(f"{k} {v:.4g}" for k, v in list(record.items())[2:])
            )
            if scores["score"] > best["score"]:
                best = record
                best_weights = {name: weight.detach().clone() for name, weight in judged.state_dict().items()}
    model.load_state_dict(best_weights)
    model.eval()
    return best


def fit_epochs(
    stage: str,
    model: Module,
    lengths: Lengths,
    loss: Callable[[Indices], Tensor],
    evaluate: Callable[[Any], dict[str, float]],
    *,
    seed: int,
    say: Say,
    epochs: int,
    rate: float,
    batch: int,
    every: float = 1.0,
    averaging: float = 0.0,
) -> Record:
    """Run `fit` over batches of examples: AdamW, with a warm-up and half a cosine.

    lengths: of the examples.
    loss: for the examples with these indices.
    every: epochs from one evaluation to the next.
    """
    indices, count = order(lengths, batch, seed)
    return fit(
        stage, model, adam(model, rate, 0.01), lambda step: loss(indices(step)), evaluate, seed=seed, say=say,
        steps=epochs * count, rate=warmup_cosine(rate, epochs * count), every=max(1, int(every * count)),
        averaging=averaging,
    )  # fmt: skip


@contextmanager
def _fast() -> Iterator[None]:
    """Enable TF32 on a GPU that has it; change nothing on the CPU."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


def adam(model: Module, rate: float, decay: float, *, coupled: bool = False) -> Optimizer:
    """Return AdamW; or, if coupled, Adam with the decay as an L2 term of the loss."""
    kind = torch.optim.Adam if coupled else torch.optim.AdamW
    fused = next(model.parameters()).device.type == "cuda"
    return kind(model.parameters(), lr=rate, weight_decay=decay, fused=fused)


def _mixed(seed: int, stage: str, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {stage} {step}".encode()).digest()[:7], "big")


def claim(out: Path) -> None:
    """Create the folder of a training; a finished training is not overwritten."""
    make_folder(out)
    if (out / REPORT).is_file():
        raise InputError(f"the folder {str(out)!r} contains a finished training: give another folder, or delete it")


def finish(out: Path, report: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """Write training.json: the training is done."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = {"attnflow": __version__, "python": platform.python_version(), **{n: version(n) for n in PACKAGES}}
    whole = {**report, "device": name, "versions": versions}
    text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    write_whole(out / REPORT, lambda part: part.write_text(text, encoding="utf-8"))
    return whole


def order(lengths: Lengths, batch: int, seed: int) -> tuple[Callable[[int], Indices], int]:
    """Return a function from a step to its examples, and the number of steps in an epoch.

    Every epoch is a new shuffle. Within each 16 batches, examples of similar length go together, to keep padding small.
    """
    sizes = np.asarray(lengths)
    if not len(sizes):
        raise InputError("there is nothing to train on: expected at least one example")
    count = math.ceil(len(sizes) / batch)

    @lru_cache(maxsize=2)
    def epoch(number: int) -> list[NDArray[np.int64]]:
        draw = np.random.default_rng((seed, number))
        shuffled = draw.permutation(len(sizes))
        pools = [shuffled[i : i + 16 * batch] for i in range(0, len(sizes), 16 * batch)]
        batches = [
            pool[i : i + batch]
            for pool in (pool[np.argsort(sizes[pool], kind="stable")] for pool in pools)
            for i in range(0, len(pool), batch)
        ]
        return [batches[i] for i in draw.permutation(len(batches))]

    return lambda step: epoch(step // count)[step % count], count


def warmup_cosine(peak: float, steps: int, warmup: float = 0.06) -> Callable[[int], float]:
    """Return a rate that rises linearly over the first `warmup` of the steps, then falls along half a cosine to 0."""
    up = max(1, round(steps * warmup))
    return lambda step: (
        peak * min((step + 1) / up, 0.5 + 0.5 * math.cos(math.pi * max(0, step - up) / (steps - up + 1)))
    )


def cosine_restarts(peak: float, first: int, factor: float = 2.0) -> Callable[[int], float]:
    """Return half cosines from the peak to 0, over `first` steps, then each `factor` times as long (SGDR)."""

    def rate(step: int) -> float:
        at, length = float(step), float(first)
        while at >= length:
            at, length = at - length, length * factor
        return peak * (0.5 + 0.5 * math.cos(math.pi * at / length))

    return rate


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share.

    >>> [round(x, 3) for x in wilson(95, 100)]
    [0.888, 0.978]
    """
    if not n:
        return 0.0, 1.0
    z = 1.959963984540054
    p = hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def share(right: Iterable[bool]) -> dict[str, Any]:
    """Return accuracy, count and 95 % interval; the accuracy of nothing is None."""
    flags = list(right)
    hits = sum(flags)
    if not flags:
        return {"accuracy": None, "count": 0, "interval": None}
    return {"accuracy": hits / len(flags), "count": len(flags), "interval": list(wilson(hits, len(flags)))}


class Texts:
    """Token ids of many texts, padded, on the device; ``batch(indices)`` is no wider than its longest text."""

    def __init__(self, rows: Sequence[Sequence[int]], pad: int, device: Device) -> None:
        self.lengths = np.array([len(row) for row in rows], np.int64)
        table = np.full((len(rows), int(self.lengths.max(initial=1))), pad, np.int32)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        self.ids, self.pad, self.device = torch.from_numpy(table).to(device), pad, device

    def batch(self, index: Indices) -> tuple[Tensor, Tensor]:
        """Return ids and attention mask, [text, token]."""
        width = int(self.lengths[index].max())
        ids = self.ids[torch.as_tensor(index, device=self.device), :width].long()
        return ids, (ids != self.pad).long()


def probabilities(model: Module, texts: Texts, size: int = 512, *, exact: bool = False) -> Tensor:
    """Return probabilities [text, class] on the CPU; for a model that labels tokens, those of the first token.

    exact: single precision on a GPU too.
    """
    was = model.training
    model.eval()
    by_length = np.argsort(texts.lengths, kind="stable")
    parts = []
    with torch.no_grad(), nullcontext() if exact else autocast(texts.device):
        for i in range(0, len(by_length), size):
            ids, mask = texts.batch(by_length[i : i + size])
            logits = model(input_ids=ids, attention_mask=mask).logits.float()
            parts.append((logits[:, 0] if logits.ndim == 3 else logits).softmax(-1).cpu())
    model.train(was)
    return torch.cat(parts)[torch.as_tensor(np.argsort(by_length))]


def score(model: Module, texts: Texts, truth: Tensor, *, by: str = "accuracy") -> dict[str, float]:
    """Return accuracy and mean loss; the score is the accuracy, or the negative loss for ``by="loss"``."""
    chances = probabilities(model, texts)
    lost = torch.nn.functional.nll_loss(chances.clamp(min=1e-9).log(), truth)
    right = (chances.argmax(-1) == truth).float().mean()
    return {
        "score": float(right if by == "accuracy" else -lost),
        "accuracy": float(right),
        "held_out_loss": float(lost),
    }


def autocast(device: Device) -> AbstractContextManager[None]:
    """Use bfloat16 products on a GPU; on the CPU everything stays in single precision."""
    context: AbstractContextManager[None] = torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")
    return context


def pretrained(cls: type[AutoModel], base: str | Path, **options: Any) -> tuple[PreTrainedModel, Tokenizer]:
    """Load a model of a class and its tokenizer, in single precision, with one clear message for any error."""
    try:
        with silenced():
            tokenizer = AutoTokenizer.from_pretrained(str(base))
            return cls.from_pretrained(str(base), dtype=torch.float32, **options), tokenizer
    except (OSError, ValueError, KeyError, ImportError) as e:
        why = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise InputError(
            f"the base {str(base)!r} cannot be loaded ({why}): expected a model's folder, or its id on the hub"
        ) from e


def weights_hash(base: str | Path) -> str | None:
    """Return the SHA-256 of a model folder's weights; None if there is no such file, as for a hub id."""
    file = Path(base) / "model.safetensors"
    return file_hash(file) if file.is_file() else None


def recipe_of(
    task: str, base: str | Path, files: Mapping[str, str | Path], *, seed: int, epochs: int, rate: float, batch: int
) -> dict[str, Any]:
    """Return the settings of fine-tuning `base` on these files, for training.json and checkpoints."""
    return {
        "task": task, "base": Path(base).name, "seed": seed, "epochs": epochs, "rate": rate, "batch": batch,
        "base weights": weights_hash(base), "data": {name: file_hash(file) for name, file in files.items()},
    }  # fmt: skip


def save(model: PreTrainedModel, tokenizer: Tokenizer, out: Path, half: bool = False) -> None:
    """Write a folder for ``from_pretrained``. half: in half precision, which halves the file."""
    with silenced():
        (model.to(torch.float16) if half else model).save_pretrained(out)
        tokenizer.save_pretrained(out)
    model.float()
