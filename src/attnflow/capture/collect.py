"""Collection of attention during a forward pass, by a `Collector` in a context variable.

Without a collector, every hook does what the model did before, so a wrapped model can serve other callers at the same
time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnflow.capture.scores import LazyMask, Scores, mixed, scores_of
from attnflow.capture.wrappers import eagerly
from attnflow.errors import InputError, ModelError

PREFIX = "attnflow_"
"""Prefix of our names in the attention interface; the name of the replaced implementation follows."""


@dataclass
class Call:
    """One attention call of the forward pass.

    mean: heads reduced, [batch, query, key].
    heads: all heads, [batch, head, query, key], if requested.
    scores: the operands, if only those are kept.
    value: the values, [batch, key head, key, size], if requested.
    lengths: the norms of the values, averaged over the reduced heads, [batch, key]; None if no values were seen.
    """

    path: str
    cross: bool
    head_count: int
    has_sinks: bool
    mean: Tensor | None = None
    heads: Tensor | None = None
    scores: Scores | None = None
    value: Tensor | None = None
    lengths: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and keys; (0, 0) for a call that kept nothing."""
        if self.mean is not None:
            return int(self.mean.shape[-2]), int(self.mean.shape[-1])
        return (0, 0) if self.scores is None else (self.scores.queries, self.scores.keys)


@dataclass
class Collector:
    """What to keep of the attention calls, and what was kept.

    mode: "whole" runs the model's own eager attention, with all heads of a layer at once; "blocks" runs our softmax for
        a few queries at a time; "operands" keeps queries and keys only; "compare" runs the first two and keeps only the
        ``worst`` gap; "alone" keeps nothing and makes every position attend only to itself; "alone, softmax" does the
        same through every softmax over a square; "inside" keeps the values and all heads, as part of the autograd
        graph; "without" keeps nothing, and item b of the batch takes nothing from position ``without[b]``; "frozen" and
        "frozen, whole" keep what ``attend(module, query, key, value, mask, …)`` keeps, which computes the attention's
        output; "layers" does the same when layers run one by one.
    reduce: "mean", "max", "min" or a list of heads.
    keep_heads: True for all calls, or the numbers of the calls.
    keep: for "operands", a function that takes each call with its values as soon as it is seen.
    measure: keep the norms of the values.
    names: whether the names of the attending modules are needed.
    """

    mode: str = "whole"
    reduce: str | list[int] = "mean"
    keep_heads: bool | frozenset[int] = False
    keep: Callable[[Call], None] | None = None
    measure: bool = True
    names: bool = True
    paths: dict[int, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    worst: float = 0.0
    seen: int = 0
    without: Tensor | None = None
    attend: Callable[..., Tensor] | None = None

    def wants_heads(self) -> bool:
        return self.keep_heads if isinstance(self.keep_heads, bool) else len(self.calls) in self.keep_heads

    def add(self, module: Any, weights: Tensor, value: Tensor | None, has_sinks: bool = False) -> None:
        """Add a whole layer: weights [batch, head, query, key], and values [batch, key head, key, size] if known."""
        heads = weights.detach().float() if self.wants_heads() else None
        mean = reduce_heads(weights.detach(), self.reduce)
        count = int(weights.shape[1])
        lengths = self._lengths(value, count)
        self.calls.append(Call(*self.named(module), count, has_sinks, mean, heads, lengths=lengths))

    def add_inside(self, module: Any, weights: Tensor, value: Tensor) -> None:
        """Add a whole layer with its values, such that gradients reach the weights."""
        mean = reduce_heads(weights.detach(), self.reduce)
        sinks, count = getattr(module, "sinks", None) is not None, int(weights.shape[1])
        lengths = self._lengths(value, count)
        self.calls.append(Call(*self.named(module), count, sinks, mean, weights, value=value, lengths=lengths))

    def add_blocks(self, module: Any, scores: Scores, value: Tensor, output: bool = True) -> Tensor | None:
        """Add a layer in blocks of queries; with ``output``, return its output, [batch, query, head, size]."""
        batch, heads, queries, _ = scores.query.shape
        mean = scores.query.new_zeros(batch, queries, scores.keys, dtype=torch.float32)
        all_heads = mean.new_zeros(batch, heads, queries, scores.keys) if self.wants_heads() else None
        out = value.new_empty(batch, queries, heads, value.shape[-1]) if output else None
        for start, stop in scores.blocks():
            weights = scores.weights(start, stop).detach()
            keys = weights.shape[-1]
            mean[:, start:stop, :keys] = reduce_heads(weights, self.reduce)
            if all_heads is not None:
                all_heads[:, :, start:stop, :keys] = weights
            if out is not None:
                out[:, start:stop] = mixed(weights, value)
        lengths = self._lengths(value, heads)
        self.calls.append(Call(*self.named(module), heads, scores.sinks is not None, mean, all_heads, lengths=lengths))
        return out

    def add_fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Add the weights behind a call of `scaled_dot_product_attention`."""
        q, k, v = (x if x.dim() == 4 else x.reshape(-1, 1, *x.shape[-2:]) for x in (query, key, value))
        # is_causal aligns the first query with the first key there, which differs from ours only if there are fewer
        # queries.
        mask = attn_mask
        if is_causal and q.shape[2] != k.shape[2]:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        if mask is not None and mask.dim() == 3:
            mask = mask[:, None]
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        scores = Scores(q, k, factor, mask, is_causal and mask is None)
        if self.mode == "operands":
            self.add_operands(None, scores, v)
        else:
            self.add_blocks(None, scores, v, output=False)

    def add_operands(self, module: Any, scores: Scores, value: Tensor) -> None:
        count = int(scores.query.shape[1])
        lengths = self._lengths(value, count)
        call = Call(*self.named(module), count, scores.sinks is not None, scores=scores, lengths=lengths)
        self.calls.append(call)
        if self.keep is not None:
            call.value = value
            self.keep(call)

    def _lengths(self, value: Tensor | None, heads: int) -> Tensor | None:
        """Return ``‖v_k‖`` of values [batch, key head, key, size], averaged over the reduced heads: [batch, key]."""
        if value is None or not self.measure:
            return None
        lengths = value.detach().norm(dim=-1).float()  # [batch, key head, key]
        if isinstance(self.reduce, list):  # several heads may share a key head
            lengths = lengths[:, [head * lengths.shape[1] // heads for head in self.reduce]]
        return lengths.mean(1)

    def named(self, module: Any) -> tuple[str, bool]:
        path = self.paths.get(id(module), "") if module is not None else (_path.get() or ("",))[-1]
        kind = f"{path} {type(module).__name__ if module is not None else ''}".lower()
        return path, any(word in kind for word in ("cross", "encoder_attn", "encdec", "enc_dec", "multihead_attn"))


_collector: ContextVar[Collector | None] = ContextVar("attnflow_collector", default=None)
_path: ContextVar[tuple[str, ...]] = ContextVar("attnflow_path", default=())


@contextmanager
def collecting(collector: Collector) -> Iterator[Collector]:
    token = _collector.set(collector)
    try:
        with eagerly():
            yield collector
    finally:
        _collector.reset(token)


def is_collecting(collector: Collector) -> bool:
    """Return whether this collector's pass is running: hooks on a shared model also see the passes of others."""
    return _collector.get() is collector


def reduce_heads(weights: Tensor, how: str | list[int]) -> Tensor:
    """Reduce [batch, head, query, key] -> [batch, query, key] in float32."""
    if how == "mean":
        return weights.mean(1, dtype=torch.float32)
    if isinstance(how, list):
        return weights[:, how].mean(1, dtype=torch.float32)
    extreme = (weights.amax(1) if how == "max" else weights.amin(1)).float()
    total = extreme.sum(-1, keepdim=True)
    return extreme / torch.where(total == 0, 1, total)


def eager_function(module: torch.nn.Module) -> Callable[..., Any]:
    """Return the eager attention of the model's own file. Files that name it differently are not supported."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise InputError(f"the module of {type(module).__name__} defines no eager_attention_forward")


def register(original: str) -> str:
    """Register our attention and mask functions in transformers' interfaces, in front of ``original``; return its
    name."""
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = PREFIX + original
    if name in ALL_ATTENTION_FUNCTIONS.valid_keys():
        return name

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> Any:
        collector = _collector.get()
        mask = _picked(module, attention_mask, key, **kwargs)  # some files pass it under this argument name
        if collector is None:
            function = eager_function(module) if original == "eager" else ALL_ATTENTION_FUNCTIONS[original]
            return function(module, query, key, value, mask, **kwargs)
        if collector.attend is not None:
            return collector.attend(module, query, key, value, mask, **kwargs).contiguous(), None
        if collector.mode == "alone":
            collector.seen += 1
            return eager_function(module)(module, query, key, value, itself_only(query, key), **kwargs)
        if collector.mode == "whole":
            out, weights = eager_function(module)(module, query, key, value, mask, **kwargs)
            collector.add(module, weights, value, getattr(module, "sinks", None) is not None)
            return out, None
        if collector.mode == "inside":
            out, weights = eager_function(module)(module, query, key, value, mask, **kwargs)
            collector.add_inside(module, weights, value)
            return out, None
        if collector.mode == "without" and collector.without is not None:
            collector.seen += 1
            left = torch.arange(value.shape[2], device=value.device) != collector.without.to(value.device)[:, None]
            return eager_function(module)(module, query, key, value * left[:, None, :, None], mask, **kwargs)[0], None
        if isinstance(mask, LazyMask) and mask.keys != key.shape[2]:
            raise further_keys(collector.named(module)[0], int(query.shape[2]), int(key.shape[2]))
        scores = scores_of(module, query, key, mask, **kwargs)
        if collector.mode == "compare":
            dense = mask.dense(query.dtype).to(query.device) if isinstance(mask, LazyMask) else mask
            out, weights = eager_function(module)(module, query, key, value, dense, **kwargs)
            ours = scores.weights(0, scores.queries)
            gap = (weights[..., : ours.shape[-1]] - ours).abs().max()
            collector.worst = max(collector.worst, float(gap))
            return out, None
        if collector.mode == "blocks":
            return collector.add_blocks(module, scores, value), None
        from attnflow.capture.fused import attention_output

        out, operands = attention_output(scores, value)
        collector.add_operands(module, operands, value)
        # contiguous, as from every function of the interface, because some files view it in another shape
        return out.contiguous(), None

    def mask(*args: Any, **kwargs: Any) -> Any:
        collector = _collector.get()
        if collector is None:
            function = ALL_MASK_ATTENTION_FUNCTIONS.get(original)
            return None if function is None else function(*args, **kwargs)
        if collector.mode in ("whole", "alone", "inside", "frozen, whole"):
            return masking_utils.eager_mask(*args, **kwargs)
        return lazy_mask(*args, **kwargs)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    return name


def further_keys(path: str, queries: int, keys: int) -> ModelError:
    """Return the refusal of a text with more keys than positions, unlike the text of the self-check."""
    return ModelError(
        f"{path} attends to {keys} keys from {queries} positions, although there was one key per position in the "
        "self-check on a shorter text: the additional keys represent several positions at once, so this text is too "
        "long to be explained by attention"
    )


def _picked(module: Any, mask: Any, key: Tensor, indices: Tensor | None = None, **kwargs: Any) -> Any:
    """Restrict the mask to the keys that an indexer picked for each query, [batch, query, picked].

    Model files (DeepSeek-V3.2 and later) do this themselves under "eager" and "sdpa", and pass the numbers of the keys
    to functions of any other name, such as ours.
    """
    if kwargs.get("block_indices") is not None or (indices is not None and not isinstance(mask, Tensor)):
        raise InputError(
            f"{type(module).__name__} uses an indexer to pick the keys that a query sees, and its choice is not passed "
            "on to other attention functions"
        )
    if indices is None:
        return mask
    left_out = torch.ones(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=indices.device)
    left_out = left_out.scatter(-1, indices.long(), False)[:, None]
    if mask.dtype == torch.bool:
        return mask & ~left_out
    return mask.masked_fill(left_out, torch.finfo(mask.dtype).min)


def itself_only(query: Tensor, key: Tensor) -> Tensor:
    """Return the additive mask [query, key] under which each position sees only itself."""
    lowest = torch.finfo(query.dtype).min
    seen = torch.eye(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
    return torch.where(seen, torch.zeros((), dtype=query.dtype, device=query.device), lowest)[None, None]


def lazy_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    **kwargs: Any,
) -> LazyMask:
    """Return the mask that transformers would make, as a rule. The arguments are those of its mask functions."""
    from transformers.masking_utils import and_masks, causal_mask_function, padding_mask_function, prepare_padding_mask

    rule = causal_mask_function if mask_function is None else mask_function
    plain, window = None, None
    local = local_size is not None and local_size < kv_length
    last = int(q_offset) + q_length == int(kv_offset) + kv_length  # the queries are the last positions
    if allow_is_causal_skip and last and (q_length == kv_length or not local):
        plain, window = (None, local_size) if local else ("causal", None)
    elif allow_is_bidirectional_skip and not local:
        plain = "full"
    mask = LazyMask(
        rule,
        batch_size,
        q_length,
        kv_length,
        int(q_offset),
        int(kv_offset),
        plain,
        window,
        torch.device(device),
        local_size,
    )
    if window is not None and not _slides(mask, window):
        mask = replace(mask, window=None)
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None or bool(padding.all()):
        return mask
    return replace(mask, rule=and_masks(rule, padding_mask_function(padding)), plain=None, window=None, unpadded=mask)


def _slides(mask: LazyMask, window: int) -> bool:
    """Return whether the mask really is a sliding window: chunked attention has a local size too."""
    keys = torch.arange(mask.keys, device=mask.device)
    for q in {0, window - 1, window, mask.queries // 2, (window * 3) // 2, mask.queries - 1}:
        if q < mask.queries and not bool((mask.block(q, q + 1)[0, 0, 0] == ((keys <= q) & (keys > q - window))).all()):
            return False
    return True


class Intercept(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Intercepts fused attention in plain PyTorch: `scaled_dot_product_attention`, `multi_head_attention_forward`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        collector = _collector.get()
        if collector is not None and collector.mode.startswith("alone"):
            return _alone(func, args, kwargs, collector)
        if collector is not None and func is torch.nn.functional.scaled_dot_product_attention:
            out = func(*args, **kwargs)
            collector.add_fused(*args, **kwargs)
            return out
        if collector is not None and func is torch.nn.functional.multi_head_attention_forward:
            needed, averaged = kwargs.get("need_weights", True), kwargs.get("average_attn_weights", True)
            out, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            collector.add(None, weights if weights.dim() == 4 else weights[None], None)
            return out, (weights.mean(-3) if averaged else weights) if needed else None
        return func(*args, **kwargs)


_FUSED = (torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.multi_head_attention_forward)


_SOFTMAX = (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax)


def _alone(func: Any, args: Any, kwargs: Any, collector: Collector) -> Any:
    """Run an attention function such that each position sees only itself; count in ``collector.seen``."""
    if collector.mode == "alone, softmax":
        out = func(*args, **kwargs)
        if func not in _SOFTMAX or out.dim() != 4 or out.shape[-1] != out.shape[-2]:
            return out
        collector.seen += 1
        return torch.eye(out.shape[-1], dtype=out.dtype, device=out.device).expand_as(out)
    if func not in _FUSED:
        return func(*args, **kwargs)
    collector.seen += 1
    arguments = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    query, key = arguments["query"], arguments["key"]
    if func is torch.nn.functional.scaled_dot_product_attention:
        options = {k: v for k, v in arguments.items() if k in ("query", "key", "value", "scale", "enable_gqa")}
        return func(**options, attn_mask=itself_only(query, key)[0, 0])
    # here positions always come first, whatever the order of the module
    hidden = ~torch.eye(query.shape[0], key.shape[0], dtype=torch.bool, device=query.device)
    return func(*args, **{**kwargs, "attn_mask": hidden, "key_padding_mask": None, "is_causal": False})


@contextmanager
def inside(model: torch.nn.Module) -> Iterator[None]:
    """Make `_path` name the innermost running module while active, which plain PyTorch's functions do not know."""

    def enter(path: str) -> Any:
        def hook(module: Any, args: Any) -> None:
            if _collector.get() is not None:
                _path.set((*_path.get(), path))

        return hook

    def leave(module: Any, args: Any, out: Any) -> None:
        if _collector.get() is not None:
            _path.set(_path.get()[:-1])

    token = _path.set(())
    with ExitStack() as stack:
        stack.callback(_path.reset, token)
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(path)).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        yield
