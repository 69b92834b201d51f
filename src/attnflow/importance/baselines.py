"""Two more attributions, through captum: integrated gradients and sampled Shapley values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import torch
from torch import Tensor

from attnflow.errors import InputError
from attnflow.importance.blank import blank_token
from attnflow.importance.gradients import embedding_layer, embeddings
from attnflow.importance.question import (
    Question,
    answer_scores,
    check_difference,
    check_of,
    is_saturated,
    logits_of,
    many,
    questions,
    result,
    warn_saturated,
)
from attnflow.importance.tiles import cover_of
from attnflow.result import TokenAttention

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

BATCH = 64
PIXELS = "pixel_values"


class IntegralOptions(TypedDict, total=False):
    """The options of `integrated_gradients`."""

    of: str
    by: str | int | None
    steps: int
    truncate: bool


@overload
def integrated_gradients(
    model: Runner, text: list[Any], answer: Any = None, **options: Unpack[IntegralOptions]
) -> list[TokenAttention]: ...
@overload
def integrated_gradients(
    model: Runner, text: Any, answer: Any = None, **options: Unpack[IntegralOptions]
) -> TokenAttention: ...
def integrated_gradients(
    model: Runner,
    text: Any,
    answer: Any = None,
    *,
    of: str = "probability",
    by: str | int | None = None,
    steps: int = 50,
    truncate: bool = False,
) -> TokenAttention | list[TokenAttention]:
    """Return ``Σ_d (x_d - x'_d) · ∫₀¹ ∂f(x' + a(x - x')) / ∂x_d da``, f the answer, x' the embeddings of a text of blanks.

    For an image, d goes over the pixels of a patch, and x' is the covered image. Its embeddings would give the same values
    if they are an affine map of the pixels, as in ViT.

    Special tokens are the same in both texts and so get 0. The values sum to f(x) - f(x'); `provenance` says how far they
    miss it (delta).

    text, answer, truncate: as in `blank_out`.
    of: as in `gradient`.
    by: the blank, except "remove"; or the cover of an image.
    steps: the number of steps of the integral.
    """
    _count(steps, "steps")
    captum = _captum()
    model.check_gradients()
    results = []
    for q in _questions(model, text, answer, of, truncate):
        options: dict[str, Any] = {"of": of, "by": _named(model, q, by), "integral_steps": steps}
        if q.tiles is not None:
            with torch.enable_grad():
                values, delta = captum.IntegratedGradients(_explained(model, q, of)).attribute(
                    model.placed(q.tensors)[PIXELS], baselines=_blank(model, q, by), n_steps=steps,
                    internal_batch_size=BATCH, return_convergence_delta=True,
                )  # fmt: skip
            summed = q.tiles.sums(values.detach().double())[0].cpu().numpy()
            results.append(result(model, q, summed, "integrated gradients", **options, delta=float(delta[0])))
            continue
        with embeddings(model, q.forced["input_ids"]) as read:
            logits_of(model, q.forced)
        if read.calls != 1 or len(read.leaves) != 1:
            raise InputError(
                f"integrated gradients need a model that embeds its tokens once, and {type(model.model).__name__} uses its "
                f"embedding layer {read.calls} times: use gradient or shapley"
            )
        method = captum.LayerIntegratedGradients(_explained(model, q, of), embedding_layer(model))
        with torch.enable_grad():
            values, delta = method.attribute(
                model.placed(q.forced)["input_ids"], baselines=_blank(model, q, by), n_steps=steps,
                internal_batch_size=BATCH, return_convergence_delta=True,
            )  # fmt: skip
        summed = values[0, : q.length].detach().double().sum(-1).cpu().numpy()
        results.append(result(model, q, summed, "integrated gradients", **options, delta=float(delta[0])))
    return results if isinstance(text, list) else results[0]


class ShapleyOptions(TypedDict, total=False):
    """The options of `shapley`."""

    of: str
    by: str | int | None
    samples: int
    seed: int
    truncate: bool


@overload
def shapley(
    model: Runner, text: list[Any], answer: Any = None, **options: Unpack[ShapleyOptions]
) -> list[TokenAttention]: ...
@overload
def shapley(model: Runner, text: Any, answer: Any = None, **options: Unpack[ShapleyOptions]) -> TokenAttention: ...
def shapley(
    model: Runner,
    text: Any,
    answer: Any = None,
    *,
    of: str = "probability",
    by: str | int | None = None,
    samples: int = 25,
    seed: int = 0,
    truncate: bool = False,
) -> TokenAttention | list[TokenAttention]:
    """Return each token's mean gain as tokens replace blanks one by one in random orders: sampled Shapley values.

    The values sum to f(x) - f(x'). Arguments as in `integrated_gradients`, and:

    samples: the number of orders.
    seed: the seed of the orders.
    """
    _count(samples, "samples")
    _count(seed, "seed", least=0)
    captum = _captum()
    results = []
    for q in _questions(model, text, answer, of, truncate):
        method = captum.ShapleyValueSampling(_explained(model, q, of))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            values = method.attribute(
                model.placed(q.forced)[_main(q)], baselines=_blank(model, q, by),
                feature_mask=_features(model, q), n_samples=samples, perturbations_per_eval=BATCH,
            )  # fmt: skip
        options: dict[str, Any] = {"of": of, "by": _named(model, q, by), "samples": samples, "seed": seed}
        if q.tiles is not None:  # all pixels of a patch have its value
            corners = values[:, 0, :: q.tiles.height, :: q.tiles.width][:, : q.tiles.rows, : q.tiles.columns]
            values = q.tiles.positions(corners.flatten(1))
        numbers = values[0, : q.length].double().cpu().numpy()
        numbers[list(q.encoded.special)] = 0
        results.append(result(model, q, numbers, "shapley", **options))
    return results if isinstance(text, list) else results[0]


def _questions(model: Runner, text: Any, answer: Any, of: str, truncate: bool) -> list[Question]:
    check_of(of)
    about = questions(model, *many(text, answer), truncate, several=True)
    check_difference(about, of)
    warn_saturated([question for question in about if is_saturated(question, of)], stacklevel=4)
    return about


def _count(number: int, name: str, least: int = 1) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number < 2**31:
        raise InputError(f"{name}={number!r}: expected a whole number of at least {least}")


def _captum() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from captum's own imports
            import captum.attr
    except ImportError:
        raise InputError("this needs captum: pip install 'attnflow[models]'") from None
    return captum.attr


def _main(question: Question) -> str:
    return "input_ids" if question.tiles is None else PIXELS


def _named(model: Runner, question: Question, by: str | int | None) -> str:
    """Return the name of the blank, for the provenance."""
    if question.tiles is not None:
        return cover_of(by).name
    token = blank_token(model, by)
    return str(model.tokenizer.convert_ids_to_tokens(token)) if model.tokenizer is not None else str(token)


def _kept(question: Question) -> Tensor:
    """Return which tokens stay as they are: special ones, which belong to every text, and those of a longer answer."""
    return torch.tensor([*question.encoded.special, *(True,) * len(question.rest)])


def _blank(model: Runner, question: Question, by: str | int | None) -> Tensor:
    """Return the text with a blank for every other token, or the image with all patches covered."""
    main = model.placed(question.forced)[_main(question)]
    if question.tiles is not None:
        return cover_of(by).over(main, question.tiles, range(question.tiles.before, question.length))
    ids = main.clone()
    ids[0, ~_kept(question)] = blank_token(model, by)
    return ids


def _features(model: Runner, question: Question) -> Tensor:
    """Return the feature of each token: those that stay share one, which changes nothing; every other token has its own.
    The pixels of a patch share one."""
    if question.tiles is not None:
        return question.tiles.numbers(model.placed(question.tensors)[PIXELS])
    kept = _kept(question)
    numbers = torch.where(kept, 0, torch.cumsum(~kept, 0))
    if not kept.any():
        numbers -= 1
    return numbers[None].to(model.device)


def _explained(model: Runner, question: Question, of: str) -> Callable[[Tensor], Tensor]:
    """Return the answer as a function of token ids ``[row, token]``, or of pixels ``[row, channel, height, width]``."""
    main = _main(question)

    def run(ids: Tensor) -> Tensor:
        rest = {k: x.repeat(len(ids), *[1] * (x.dim() - 1)) for k, x in question.forced.items() if k != main}
        count = len(question.answer)
        logits = logits_of(model, {main: ids, **rest}, grad=torch.is_grad_enabled(), keep=count)
        return answer_scores(model, [question] * len(ids), logits, of)

    return run
