"""Leave-one-out on the prompt's cache, against passes over shorter texts: ``python -m benchmarks.leave_out``."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from attnflow.capture.silence import silence
from attnflow.cli.options import AsJson, progress
from attnflow.errors import InputError
from benchmarks.command import run_command


def run(
    model: Any, tokens: int, answer_tokens: int, sentence: int, rounds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Leave out every sentence of a prompt in each way, in turn in every round.

    Returns a row for each way: ``way``, median ``seconds``, ``times_faster`` (than one by one) and ``difference``, the
    largest difference of log-probabilities from passes one by one. Tokens are random, because the times do not depend
    on them.
    """
    import torch

    from attnflow.importance.leave_out import leave_out
    from attnflow.importance.question import outputs

    generator = torch.Generator().manual_seed(0)
    ids, answer = (
        torch.randint(model.vocabulary(), (n,), generator=generator).tolist() for n in (tokens, answer_tokens)
    )
    groups = [list(range(start, min(start + sentence, tokens))) for start in range(0, tokens, sentence)]
    if len(groups) < 2:
        raise InputError(f"a prompt of {tokens} tokens is one sentence of {sentence}: expected several sentences")
    texts = [*([x for i, x in enumerate(ids) if i not in group] for group in groups), ids]
    with torch.no_grad():
        cache = model.model(input_ids=torch.tensor([ids]).to(model.device), use_cache=True).past_key_values

    rows = [{"input_ids": torch.tensor([text + answer[:-1]])} for text in texts]

    def scored(logits: Any) -> Any:
        return logits[-len(answer) :].double().log_softmax(-1)[range(len(answer)), answer].cpu().numpy()

    def one_by_one(keep: int = len(answer)) -> list[Any]:
        options = {"use_cache": False, "logits_to_keep": keep}  # 0 for all
        with torch.no_grad():
            return [
                scored(model.model(input_ids=row["input_ids"].to(model.device), **options).logits[0]) for row in rows
            ]

    def in_batches() -> list[Any]:
        pairs = [pair for at, logits in outputs(model, rows, keep=len(answer)) for pair in zip(at, logits, strict=True)]
        return [scored(logits) for _, logits in sorted(pairs, key=lambda pair: pair[0])]

    def ours(**options: Any) -> list[Any]:
        result = leave_out(model, ids, answer, groups, **options)
        if not result.shared_prefix:
            raise InputError(f"{model!r} does not run on a shortened cache: there is nothing to compare")
        return [*result.without, result.whole]

    ways: dict[str, Callable[[], list[Any]]] = {
        "passes one by one, all logits": lambda: one_by_one(0),
        "passes one by one": one_by_one,
        "passes in batches": in_batches,
        "leave_out": ours,
        "leave_out, cache at hand": lambda: ours(cache=cache),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    values: dict[str, Any] = {}
    for number in range(rounds + 1):  # the first round warms up and checks the model
        say(f"round {number} of {rounds}")
        for way, call in ways.items():
            began = time.perf_counter()
            values[way] = call()
            seconds[way].append(time.perf_counter() - began)
    expected = values["passes one by one"]
    medians = {way: statistics.median(times[1:]) for way, times in seconds.items()}
    return [
        {
            "way": way,
            "seconds": medians[way],
            "times_faster": medians["passes one by one"] / medians[way],
            "difference": max(abs(a - b).max() for a, b in zip(values[way], expected, strict=True)).item(),
        }
        for way in ways
    ]


def main(
    model: Annotated[str, typer.Option("-m", "--model", help="Folder or hub id of a decoder.")],
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the prompt.")] = 400,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of the answer.")] = 40,
    sentence: Annotated[int, typer.Option(min=1, help="Tokens of a sentence.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to take medians over.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Time leaving out every sentence of a prompt."""
    import attnflow as af

    silence()
    decoder = af.load(model)
    rows = run(decoder, tokens, answer, sentence, rounds, progress)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("way", "seconds", "times faster", "largest difference", box=None)
    for row in rows:
        table.add_row(row["way"], f"{row['seconds']:.2f}", f"{row['times_faster']:.2f}", f"{row['difference']:.1e}")
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
