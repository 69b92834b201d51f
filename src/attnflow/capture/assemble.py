"""Assembly of attention graphs from the attention calls of a forward pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture.check import Checked, Stack
from attnflow.capture.collect import Call
from attnflow.capture.inputs import Encoded, labelled
from attnflow.capture.passes import Pass, Prediction, Step
from attnflow.capture.windows import is_windowed, merging_step, unwindowed
from attnflow.errors import ModelError

if TYPE_CHECKING:
    from attnflow.capture.runner import Runner

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers")


def layer_calls(model: Runner, calls: Sequence[Call], tensors: Mapping[str, Tensor]) -> Stack:
    """Return the calls of the stack that these inputs go through, one per layer of the model.

    The calls belong to one input, so a batch of more than one means windows, or something unknown.
    """
    sides: dict[str, list[int]] = {"encoder": [], "decoder": [], "cross": []}
    for number, call in enumerate(calls):
        side = next((part for part in call.path.split(".") if part in ("encoder", "decoder")), "encoder")
        sides["cross" if call.cross else side].append(number)
    ids = tensors.get("input_ids")
    if sides["cross"] and not _reads_image(model, [calls[i] for i in sides["cross"]], tensors):
        return _two_sides(model, calls, sides)
    n = None if ids is None else int(ids.shape[1])
    groups: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        groups.setdefault(re.sub(r"\d+", "#", call.path), []).append(number)
    fitting = {name: g for name, g in groups.items() if _fits(model, [calls[i] for i in g], n)}
    if not fitting:
        shapes = sorted({tuple(c.mean.shape) for c in calls if c.mean is not None})
        raise ModelError(
            (
                f"the attention has shapes {', '.join('×'.join(map(str, shape)) for shape in shapes)} ([items, "
                "queries, keys])"
            )
            + (f" for {n} tokens" if n is not None else "")
            + ": expected one square matrix over all positions per layer"
        )
    if model.config is None and len(fitting) > 1:
        raise ModelError(
            f"attention happens in several places ({', '.join(fitting)}), and nothing says how they are joined: wrap "
            "the part that you want to explain"
        )
    name, main = list(fitting.items())[-1]
    if n is None:  # choose the stack whose layers the configuration counts
        counted = {name: g for name, g in fitting.items() if len(g) == _expected(model, name)}
        if len(counted) > 1:
            raise ModelError(
                f"attention happens in several places ({', '.join(counted)}), and nothing says which one to explain: "
                "wrap the part that you want to explain"
            )
        name, main = next(iter(counted.items()), (name, main))
    _counted(len(main), _expected(model, name), "model", _others(model.model, [calls[i].path for i in main]))
    return Stack(tuple(main))


def _reads_image(model: Runner, cross: Sequence[Call], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether only query tokens that read the image use cross-attention, before the text sees it."""
    both = "pixel_values" in tensors and "input_ids" in tensors
    if not both or "decoder_input_ids" in tensors or getattr(model.config, "is_encoder_decoder", False):
        return False
    decoder = model.model.get_decoder() if hasattr(model.model, "get_decoder") else None
    inside = {name for name, module in model.model.named_modules() if module is decoder}
    if any(call.path.startswith(tuple(f"{name}." if name else "" for name in inside)) for call in cross):
        raise ModelError(
            "the text reads the image by cross-attention, so no position of the text represents a part of the image, "
            "and text and image do not form one graph: models that put the image into the text (LLaVA, Qwen2-VL, "
            "Idefics 3, PaliGemma) can be explained"
        )
    return True


def _two_sides(model: Runner, calls: Sequence[Call], sides: Mapping[str, Sequence[int]]) -> Stack:
    """Return the calls of an encoder-decoder, after checking that their shapes fit together."""
    encoder, decoder, cross = sides["encoder"], sides["decoder"], sides["cross"]
    if getattr(model.config, "is_encoder_decoder", False) and not (encoder and decoder):
        side = "decoder" if encoder else "encoder"
        raise ModelError(f"the attention of the {side} was not seen: the {side} mixes positions in its own code")
    if not encoder or not decoder:
        raise ModelError(
            "the model attends to states that were passed in from outside (cross-attention), and where they come from "
            "is unknown: trace the whole encoder-decoder"
        )
    config = model.config
    above = _count(config, ("encoder_layers", "encoder_num_hidden_layers", "num_layers", "num_hidden_layers"))
    parts = {
        side: getattr(config, side, None) or getattr(config, f"{side}_config", None) for side in ("encoder", "decoder")
    }
    _counted(len(encoder), _count(parts["encoder"], ("num_hidden_layers",)) or above, "encoder")
    expected = _count(parts["decoder"], ("num_hidden_layers",)) or _count(
        config, ("decoder_layers", "decoder_num_hidden_layers", "num_decoder_layers", "num_hidden_layers")
    )
    _counted(len(decoder), expected, "decoder")
    _counted(len(cross), expected, "cross-attention of the decoder")
    shapes = [[tuple(calls[i].mean.shape) for i in side] for side in (encoder, decoder, cross)]  # type: ignore[union-attr]
    s, t = shapes[0][0][-1], shapes[1][0][-1]
    if set(shapes[0]) != {(1, s, s)} or set(shapes[1]) != {(1, t, t)} or set(shapes[2]) != {(1, t, s)}:
        listed = ", ".join("×".join(map(str, shape)) for shape in sorted({x for side in shapes for x in side}))
        raise ModelError(f"the attention has shapes {listed}: expected source×source, target×target and target×source")
    return Stack(tuple(encoder), tuple(decoder), tuple(cross))


def _fits(model: Runner, calls: Sequence[Call], tokens: int | None) -> bool:
    """Return whether these calls are layers over all positions of one input."""
    shapes = {tuple(call.mean.shape) for call in calls if call.mean is not None}
    if all(is_windowed(model.model, call) for call in calls):
        return all(q == k for _, q, k in shapes)
    if len(shapes) != 1:
        return False
    items, queries, keys = shapes.pop()
    return bool(items == 1 and queries == keys and (tokens is None or keys == tokens))


def _count(config: Any, names: Sequence[str]) -> int | None:
    for name in names:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > 0:
            return count
    return None


def _expected(model: Runner, path: str) -> int | None:
    """Return the number of layers at this path, from the configuration, or from the blocks in plain PyTorch."""
    config = model.config
    if config is None:
        before = path.split(".#")[0]
        blocks = model.model.get_submodule(before) if ".#" in path else None
        return len(blocks) if isinstance(blocks, torch.nn.ModuleList) else None
    for word, name in (
        ("vision", "vision_config"),
        ("text", "text_config"),
        ("language", "text_config"),
        ("audio", "audio_config"),
    ):
        if word in path and getattr(config, name, None) is not None:
            config = getattr(config, name)
            break
    depths = getattr(config, "depths", None)
    if depths is not None:
        return sum(int(d) for d in depths)
    # configurations of an encoder-decoder may call the layers of the encoder the model's
    own = ("decoder_layers",) if "decoder" in path.split(".") else ()
    return _count(config, (*own, *LAYERS))


def _counted(seen: int, expected: int | None, what: str, others: str = "the other layers") -> None:
    if expected is None or seen == expected:
        return
    calls = f"{seen} attention {'call was' if seen == 1 else 'calls were'} seen, but the {what} has {expected} layers"
    if seen > expected:
        raise ModelError(f"{calls}: a layer attends more than once, and nothing says how its matrices are joined")
    raise ModelError(f"{calls}: {others} mix positions without attention, or in code that cannot be observed")


def _others(model: torch.nn.Module, paths: Sequence[str]) -> str:
    """Describe the layers that do not attend at these paths: their numbers, and the modules that only they have."""
    names = paths[0].split(".")
    number = next((i for i, name in enumerate(names) if name.isdigit()), 0)
    stack = model.get_submodule(".".join(names[:number])) if number else None
    if not isinstance(stack, torch.nn.ModuleList):
        return "the other layers"
    attending = {id(model.get_submodule(path)) for path in paths}
    without = [i for i, layer in enumerate(stack) if attending.isdisjoint(map(id, layer.modules()))]
    usual = {type(part) for i, layer in enumerate(stack) if i not in without for part in layer.children()}
    parts = {type(part) for i in without for part in stack[i].children()} - usual
    mixers = sorted(kind.__name__ for kind in parts if not kind.__name__.endswith(("Norm", "MLP")))
    numbers = ", ".join(f"L{i + 1}" for i in without)
    return f"{numbers} ({', '.join(mixers)})" if mixers else "the other layers"


def assemble(
    model: Runner,
    calls: Sequence[Call],
    encoded: Encoded,
    number: int,
    checked: Checked,
    missing: str,
    provenance: Mapping[str, Any],
    prediction: Prediction | None,
) -> Pass:
    """Build the trace of text ``number`` of a batch."""
    stack = checked.stack
    if stack.cross:
        return _encoder_decoder(model, calls, stack, encoded, number, missing, provenance, prediction)
    first = calls[stack.main[0]]
    if is_windowed(model.model, first):
        steps, ends = _windowed(model.model, [calls[i] for i in stack.main], encoded)
        labels = label_positions(model, encoded, len(encoded.tokens))
    else:
        assert first.mean is not None
        n = int(encoded.tensors["input_ids"].shape[1]) if "input_ids" in encoded.tensors else int(first.mean.shape[-1])
        steps = [_step(calls[i], number, n, missing) for i in stack.main]
        ends = list(range(len(steps)))
        labels = label_positions(model, encoded, n)
    weights = {}
    for layer, i in enumerate(stack.main):
        heads = calls[i].heads
        if heads is not None:  # for windows, keep all of them: [window, head, query, key]
            n = len(labels.tokens)
            weights[layer] = heads if is_windowed(model.model, first) else heads[number, :, :n, :n]
    return Pass(
        tokens=labels.tokens,
        special=labels.special,
        word_ids=labels.word_ids,
        word_texts=labels.word_texts,
        text=labels.text,
        steps=tuple(steps),
        ends=tuple(ends),
        default_query=natural_query(checked, labels.special),
        provenance=provenance,
        prediction=prediction,
        patches=labels.patches,
        picture=labels.picture,
        weights=weights,
        pooled=None if model.pooling is None else model.pooling.row(len(labels.tokens)),
        image=encoded.image,
    )


def _step(call: Call, number: int, n: int, missing: str) -> Step:
    """Build the step of one text from its attention and measurements."""
    lengths = None if call.lengths is None else call.lengths[number, :n]
    return Step(_completed(call.mean, number, n, missing), lengths=lengths)


def natural_query(checked: Checked, special: Sequence[bool]) -> int | None:
    """Return the position to explain by default: a decoder's last, a class token at the start, or None."""
    return class_or_last(checked.causal, special)


def class_or_last(causal: bool, special: Sequence[bool]) -> int | None:
    """Return the default position, given whether the model looks back only."""
    return len(special) - 1 if causal else 0 if special and special[0] else None


def _completed(mean: Tensor | None, number: int, n: int, missing: str) -> Tensor:
    """Return the matrix of one text without padding; ``missing`` says what to do with the mass that went to a sink."""
    assert mean is not None
    matrix = mean[number, :n, :n].clone() if mean.shape[1] > n else mean[number]
    if missing == "keep":
        return matrix
    total = matrix.sum(-1, keepdim=True)
    if missing == "normalize":
        return matrix / torch.where(total == 0, 1, total)
    return matrix + torch.diag_embed((1 - total[:, 0]).clamp(min=0))


def label_positions(model: Runner, encoded: Encoded, n: int) -> Encoded:
    """Label positions that no tokenizer named: patches and the tokens before them, frames, or plain numbers."""
    if len(encoded.tokens) == n and encoded.word_ids:
        return encoded
    if encoded.patches is not None:
        extra = n - encoded.patches[0] * encoded.patches[1]
        if extra >= 0:
            registers = int(
                getattr(getattr(model.config, "vision_config", None) or model.config, "num_register_tokens", 0) or 0
            )
            names = (
                ["[CLS]", *(f"[REG{i}]" for i in range(1, extra))]
                if registers
                else ["[CLS]", "[DIST]", *map(str, range(extra))]
            )
            last = int(getattr(model.config, "num_detection_tokens", 0) or 0)
            if last:  # YOLOS puts them behind the patches, so no patch grid can skip them
                tail = [f"[DET{i}]" for i in range(1, last + 1)]
                marks = [True] * (extra - last) + [False] * (n - extra) + [True] * last
                return labelled(encoded.tensors, [*names[: extra - last], *encoded.tokens, *tail], marks)
            return replace(
                labelled(encoded.tensors, [*names[:extra], *encoded.tokens], [True] * extra + [False] * (n - extra)),
                patches=encoded.patches,
            )
    return labelled(encoded.tensors, [str(i) for i in range(n)])


def _windowed(model: torch.nn.Module, calls: Sequence[Call], encoded: Encoded) -> tuple[list[Step], list[int]]:
    if encoded.patches is None:
        raise ModelError("the patches of this windowed model are unknown: its configuration has no patch_size")
    patches, stage = encoded.patches, None
    steps: list[Step] = []
    ends: list[int] = []
    for call in calls:
        here = next(int(part) for part in call.path.split(".") if part.isdigit())
        if stage is not None and here != stage:
            step, patches = merging_step(patches, call.mean)
            steps.append(step)
        stage = here
        steps.append(Step(unwindowed(model, call, patches)))
        ends.append(len(steps) - 1)
    return steps, ends


def _encoder_decoder(
    model: Runner,
    calls: Sequence[Call],
    stack: Stack,
    encoded: Encoded,
    number: int,
    missing: str,
    provenance: Mapping[str, Any],
    prediction: Prediction | None,
) -> Pass:
    """Build one graph over source and target: encoder layers, then self- and cross-attention of each decoder layer.

    While one side is computed, the other is carried along unchanged. All decoder layers attend to the last encoder
    states. Kept heads are [head, target, source and target], the mean of both attentions as in `Trace.raw`.
    """
    first, above = calls[stack.main[0]].mean, calls[stack.decoder[0]].mean
    assert first is not None and above is not None
    ids = encoded.tensors.get("input_ids")
    s, t = int(ids.shape[1]) if ids is not None else int(first.shape[-1]), int(above.shape[-1])
    source = label_positions(model, encoded, s) if ids is None else encoded
    target = encoded.target
    n = s + t

    def over_both(block: Tensor, rows: slice, columns: slice, carried: range) -> Step:
        matrix = torch.eye(n, dtype=block.dtype, device=block.device)
        matrix[rows] = 0
        matrix[rows, columns] = block
        return Step(matrix, carried)

    sources, targets = slice(0, s), slice(s, n)
    alone = [_completed(calls[i].mean, number, s, missing) for i in stack.main]
    steps = [over_both(block, sources, sources, range(s, n)) for block in alone]
    ends: list[int] = []
    weights: dict[int, Tensor] = {}
    for own, other in zip(stack.decoder, stack.cross, strict=True):
        cross = calls[other].mean
        assert cross is not None
        steps.append(over_both(_completed(calls[own].mean, number, t, missing), targets, targets, range(s)))
        steps.append(over_both(cross[number][:t, :s], targets, sources, range(s)))
        ends.append(len(steps) - 1)
        self_heads, cross_heads = calls[own].heads, calls[other].heads
        if self_heads is not None and cross_heads is not None:
            weights[len(ends) - 1] = torch.cat([cross_heads[number, :, :, :s], self_heads[number]], -1) / 2
    named = target if target is not None and len(target.tokens) == t else None
    tokens = named.tokens if named else tuple(str(i) for i in range(t))
    special = named.special if named else (False,) * t
    word_ids = named.word_ids if named else tuple(range(t))
    texts = named.word_texts if named else tokens
    shifted = tuple(None if w is None else w + len(source.word_texts) for w in word_ids)
    lone = Pass(
        tokens=source.tokens,
        special=source.special,
        word_ids=source.word_ids,
        word_texts=source.word_texts,
        text=source.text,
        steps=tuple(Step(block) for block in alone),
        ends=tuple(range(len(alone))),
        default_query=None,
        provenance=provenance,
    )
    return Pass(
        tokens=(*source.tokens, *tokens),
        special=(*source.special, *special),
        word_ids=(*source.word_ids, *shifted),
        word_texts=(*source.word_texts, *texts),
        text=source.text,
        steps=tuple(steps),
        ends=tuple(ends),
        default_query=t - 1,
        provenance=provenance,
        prediction=prediction,
        parts=("source",) * s + ("target",) * t,
        first_query=s,
        weights=weights,
        encoder=lone,
    )
