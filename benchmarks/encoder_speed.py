"""The cost of answer inputs: `python -m benchmarks.encoder_speed`.

The cost is compared with a classifier's own forward and backward pass. All run in turn; times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import attnflow as af
from attnflow.model import Model

TEXT = "the key to the cabinets near the old doors of the house "


def measured(model: Model, text: str, rounds: int) -> dict[str, float]:
    """Return median seconds of each, on one text."""
    tensors = model.encode(text, truncate=True).tensors

    def back() -> None:
        """Run backward to the embeddings, without parameter gradients, as answer edges do."""
        entered: list[torch.Tensor] = []

        def enter(module: object, args: object, out: torch.Tensor) -> torch.Tensor:
            entered.append(out.detach().requires_grad_())
            return entered[0]

        handle = model.model.get_input_embeddings().register_forward_hook(enter)
        try:
            torch.autograd.grad(model.forward(tensors, grad=True)["logits"].max(), entered)
        finally:
            handle.remove()

    work: dict[str, Callable[[], object]] = {
        "forward": lambda: model.forward(tensors),
        "forward and backward": back,
        "answer inputs": lambda: model.trace(text, edges="answer", truncate=True).answer_inputs(signed=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_number in range(rounds + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if round_number:  # the first round checks the model
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", help="a folder or a hub id; the embedded model by default")
    parser.add_argument("--words", type=int, nargs="+", default=[12, 120], help="how many words each text has")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    model = af.load(arguments.model)
    for words in arguments.words:
        text = " ".join((TEXT.split() * (words // len(TEXT.split()) + 1))[:words])
        seconds = measured(model, text, arguments.rounds)
        plain = seconds["forward and backward"]
        tokens = model.encode(text, truncate=True).tensors["input_ids"].shape[1]
        times = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in seconds.items())
        print(f"{tokens} tokens: {times}; {seconds['answer inputs'] / plain:.2f} x forward and backward")


if __name__ == "__main__":
    main()
