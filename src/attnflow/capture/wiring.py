"""Wiring of an image: which patch feeds which position of a text, found by gradients instead of rules for each family.

A vision tower cuts an image into patches, mixes them by attention, and a projector passes its states to positions of
the text, one by one or merged in squares. Gradients through everything but attention, from the states that enter the
text to the tower's last states and from its first states to the pixels, show which feeds which. Query tokens (a
Q-Former, a resampler) read every state of the tower, so none of their positions represents a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.capture.layer_calls import with_states

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

Numbers = NDArray[np.int64]

NOBODY, SEVERAL = -1, -2


@dataclass(frozen=True, eq=False)
class Wiring:
    """The wiring of one image.

    rows, columns: those of its patches.
    patch: for each position of the tower, the patch that it begins with, row by row, or -1 (class tokens, registers).
    place: the number of the image position in the text that each position of the tower feeds, or -1.
    path: the path of its layers in the model.
    """

    rows: int
    columns: int
    patch: Numbers
    place: Numbers
    path: str

    def down(self, places: Sequence[int]) -> dict[str, Any]:
        """Return the options of `run_frozen` that continue a pass down to the tower. places: of the image in the text."""
        seats = [places[n] if n >= 0 else -1 for n in self.place.tolist()]
        return {"tower": self.path, "image": places, "seats": seats}

    def squares(self, count: int) -> Numbers | None:
        """Return the places [row, column] of an image with ``count`` places, if each has its own square of patches."""
        side = round((self.rows * self.columns / count) ** 0.5)
        if side < 1 or side * side * count != self.rows * self.columns or self.rows % side or self.columns % side:
            return None
        of_patch = np.full(self.rows * self.columns, NOBODY)
        of_patch[self.patch[self.patch >= 0]] = self.place[self.patch >= 0]
        rows, columns = self.rows // side, self.columns // side
        squares: Numbers = of_patch.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(rows, columns, -1)
        firsts: Numbers = squares[:, :, 0]
        alike = bool((squares == firsts[:, :, None]).all())
        return firsts if alike and sorted(firsts.ravel().tolist()) == list(range(count)) else None


_finding: ContextVar[object] = ContextVar("attnflow_wiring", default=None)  # other threads may run the same model


class _Stop(Exception):
    """Ends a pass where the text begins."""


def wiring_of(
    model: Runner, tensors: Mapping[str, Tensor], places: Sequence[int], patch: tuple[int, int] | None
) -> Wiring | None:
    """Find how an image is wired to these positions of a text; None unless each gets a patch or a square of patches.

    This takes one pass through the tower, which ends where the text begins, and gradients before and after its layers.
    """
    pixels = tensors.get("pixel_values")
    parts = _tower(model.model)
    if pixels is None or not pixels.is_floating_point() or parts is None:
        return None
    path, layers, decoder = parts
    entering: list[Tensor] = []
    leaving: list[Tensor] = []
    embedded: list[Tensor | None] = []
    mine = object()

    def enter(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if _finding.get() is not mine:
            return None
        entering.append(args[0] if args else named["hidden_states"])
        return with_states(args, named, entering[-1].detach().requires_grad_())

    def leave(module: Any, args: Any, out: Any) -> None:
        if _finding.get() is mine:
            leaving.append(out[0] if isinstance(out, tuple) else out)

    def stop(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if _finding.get() is mine:
            embedded.append(named.get("inputs_embeds"))
            raise _Stop

    inputs = {**tensors, "pixel_values": pixels.detach().clone().requires_grad_()}
    with ExitStack() as stack, torch.inference_mode(False), torch.enable_grad():
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(leave).remove)
        stack.callback(decoder.register_forward_pre_hook(stop, with_kwargs=True).remove)
        placed = model.placed(inputs)
        token = _finding.set(mine)
        stack.callback(_finding.reset, token)
        try:
            model.model(**placed, **({"use_cache": False} if model.accepts("use_cache") else {}))
        except _Stop:
            pass
        except Exception:  # model files may raise anything; then the wiring is unknown
            return None
        if len(entering) != len(layers) or not embedded or embedded[0] is None:
            return None
        fed = [_feeding(embedded[0][0, list(places)], out) for out in leaving]
        below = _feeding(entering[0], placed["pixel_values"])
    passed = [place for place in fed if place is not None]  # usually by one layer
    if not passed or below is None or any((place != passed[-1]).any() for place in passed):
        return None
    place = passed[-1]
    grid = _patches(below, tensors, patch, getattr(model.config, "vision_config", None))
    if grid is None:
        return None
    positions, (rows, columns) = grid
    if (positions < 0).any() or len(set(positions.tolist())) != rows * columns or positions.max() >= len(place):
        return None
    patches = np.full(len(place), NOBODY)
    patches[positions] = np.arange(rows * columns)
    return Wiring(rows, columns, patches, place, path)


def _tower(model: Any) -> tuple[str, Sequence[Any], Any] | None:
    """Return the path of the vision tower's layers, these layers, and the language model."""
    try:
        tower, decoder = model.get_encoder(modality="image"), model.get_decoder()
    except (AttributeError, TypeError, ValueError):
        return None
    if tower is model or decoder is model or not isinstance(tower, torch.nn.Module):
        return None
    lists = [(path, m) for path, m in tower.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m)]
    if not lists:
        return None
    inner, layers = max(lists, key=lambda pair: len(pair[1]))
    own = next((path for path, m in model.named_modules() if m is tower), None)
    return None if own is None else (f"{own}.{inner}", list(layers), decoder)


def _feeding(above: Tensor, below: Tensor) -> Numbers | None:
    """Find by gradients which position of ``above`` [position, …] each element of ``below`` feeds: [element].

    Elements are positions of states, or pixels with their channels together. Positions are numbered in binary, and each
    digit takes one gradient for positions that have it and one for the others. Return None if ``above`` does not depend
    on ``below``.
    """
    above = above.reshape(-1, above.shape[-1])
    count = len(above)
    weights = torch.randn(above.shape, generator=torch.Generator().manual_seed(0)).to(above)

    def fed(chosen: Tensor) -> NDArray[np.bool_] | None:
        total = (above * weights)[chosen].sum()
        (gradient,) = torch.autograd.grad(total, [below], retain_graph=True, allow_unused=True)
        if gradient is None:
            return None
        moved = gradient != 0
        # pixels [..., channel, row, column], or states [..., position, size]
        elements: NDArray[np.bool_] = moved.any(-3 if _is_picture(below) else -1).reshape(-1).cpu().numpy()
        return elements

    if not above.requires_grad:
        return None
    everyone = torch.ones(count, dtype=torch.bool, device=above.device)
    any_at_all = fed(everyone)
    if any_at_all is None or not any_at_all.any():
        return None
    numbers = torch.arange(count, device=above.device)
    result = np.zeros(any_at_all.shape, np.int64)
    several = np.zeros(any_at_all.shape, bool)
    for digit in range(max(count - 1, 1).bit_length()):
        having = (numbers >> digit) & 1 == 1
        with_it, without = (fed(some) if bool(some.any()) else np.zeros_like(several) for some in (having, ~having))
        if with_it is None or without is None:
            return None
        several |= with_it & without
        result += with_it.astype(np.int64) << digit
    return np.where(~any_at_all, NOBODY, np.where(several, SEVERAL, result))


def _is_picture(below: Tensor) -> bool:
    return below.dim() >= 4 and below.shape[-3] in (1, 3)


def _patches(
    below: Numbers, tensors: Mapping[str, Tensor], patch: tuple[int, int] | None, vision: Any
) -> tuple[Numbers, tuple[int, int]] | None:
    """Return the position of the tower that begins with each patch, row by row, and the number of rows and columns."""
    pixels, sizes = tensors["pixel_values"], tensors.get("image_grid_thw")
    if sizes is not None:  # [image, (frames, rows, columns)]; a row of pixel values for each patch
        frames, rows, columns = (int(n) for n in sizes[0].tolist())
        side = int(getattr(vision, "spatial_merge_size", 1) or 1)
        if len(sizes) != 1 or frames != 1 or rows * columns != len(below) or rows % side or columns % side:
            return None
        # processors write square after square, so that merged patches are together
        order = np.arange(len(below)).reshape(rows // side, columns // side, side, side).transpose(0, 2, 1, 3)
        return below[order.ravel()], (rows, columns)
    if patch is None or pixels.dim() not in (4, 5) or int(np.prod(pixels.shape[:-3])) != 1:
        return None
    high, wide = (int(n) for n in pixels.shape[-2:])
    rows, columns = high // patch[0], wide // patch[1]
    laid = below.reshape(high, wide)[: rows * patch[0], : columns * patch[1]]
    tiles = laid.reshape(rows, patch[0], columns, patch[1]).transpose(0, 2, 1, 3).reshape(rows * columns, -1)
    if (tiles != tiles[:, :1]).any():  # patches overlap, or have another size than in the configuration
        return None
    return tiles[:, 0], (rows, columns)
