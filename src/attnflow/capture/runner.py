"""A model with its processor, and the single forward pass that traces, edges, long inputs and jobs share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import encode, hub, inputs, routes, verify
from attnflow.capture.assemble import assemble
from attnflow.capture.changes import State, state_of
from attnflow.capture.check import Checked
from attnflow.capture.collect import Call, Collector, further_keys
from attnflow.capture.inputs import Encoded
from attnflow.capture.passes import Pass, Prediction
from attnflow.capture.pooling import Pooling
from attnflow.capture.predict import prediction
from attnflow.capture.quantised import check_gradients
from attnflow.capture.rotary import Stretching
from attnflow.capture.wiring import Wiring
from attnflow.capture.wrappers import adapters_of, eagerly, is_compiled, unwrapped
from attnflow.errors import InputError, ModelError
from attnflow.version import __version__

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ModelOutput = Any
"""The output of a model's forward: a mapping in transformers, tensors in plain PyTorch."""

WHOLE_BYTES = 8 << 20
"""Up to this size of a layer, the model's own code computes all heads at once; above it, blocks are used if
possible."""


CAPTURED = {"operands": ", queries and keys only", "layers": ", layer by layer"}
"""How results describe passes that kept no weights, by the collector's mode."""


@dataclass(frozen=True)
class Batch:
    """One forward pass of inputs that ran together.

    lengths: the number of tokens of each input.
    mode: how the weights were computed.
    calls: the attention calls of the whole batch.
    """

    runner: Runner
    checked: Checked
    encoded: Sequence[Encoded]
    out: ModelOutput
    calls: list[Call]
    lengths: list[int]
    mode: str
    reduce: str | list[int]

    def prediction(self, number: int) -> Prediction | None:
        return prediction(self.runner, self.out, self.encoded[number], number, self.lengths)

    def provenance(self, missing: str = "keep") -> dict[str, Any]:
        """Return where the weights come from, for any input of the batch."""
        return self.runner.provenance(self.checked, self.mode, self.reduce, missing)

    def passed(self, number: int, missing: str = "keep", provenance: Mapping[str, Any] | None = None) -> Pass:
        """Return the results of the pass for one input."""
        encoded = self.encoded[number]
        if provenance is None:
            unknown = inputs.unknown(self.runner.tokenizer, encoded)
            provenance = {**self.provenance(missing), **({"unknown": unknown} if unknown else {})}
        answer = self.prediction(number)
        return assemble(self.runner, self.calls, encoded, number, self.checked, missing, provenance, answer)


class Runner:
    """A model in evaluation mode, with its tokenizer or processor. Several threads may run it at a time.

    given: the model as it was given, with its wrappers.
    stretching: rotary positions that depend on a text's length.
    state: how the model was put together at its self-check.
    checked: results of the self-check, by the kind of input.
    checked_linear: kinds that were also checked without matrices.
    covered: the size of the largest input of each name that was compared with the bare model.
    reads_cache: whether the model gives the same with a key-value cache; None if not tested yet.
    reads_in_place: whether a frozen pass may read the cache in place; None if not tested yet.
    cache_forms: the form of the layers of its own cache.
    wirings: how images feed positions of texts, by their sizes.
    pooling: how a sentence-embedding model makes one vector from a text.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        processor: Any = None,
        name: str | None = None,
        revision: str | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        self.given = model
        self.model = model = unwrapped(model)
        self.stretching = Stretching(model)
        self.processor = processor
        self.pooling = pooling
        self.tokenizer = getattr(processor, "tokenizer", None) or (
            processor if hasattr(processor, "convert_ids_to_tokens") else None
        )
        self.config: PretrainedConfig | None = getattr(model, "config", None)
        self.name: str = name or hub.name_of(getattr(self.config, "_name_or_path", "")) or type(model).__name__
        self.revision: str | None = revision or getattr(self.config, "_commit_hash", None)
        self.state: State | None = None
        self.checked: dict[str, Checked] = {}
        self.checked_linear: set[str] = set()
        self.covered: dict[str, int] = {}
        self.reads_cache: bool | None = None
        self.cache_forms: dict[tuple[torch.device, torch.dtype], tuple[str, ...]] = {}
        self.reads_in_place: bool | None = None
        self.passes_gradients = False
        self.wirings: dict[str, Wiring | None] = {}
        self._arguments: tuple[Any, frozenset[str]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {type(self.model).__name__})"

    def unwrap(self) -> torch.nn.Module:
        """Return the model as it was given, with its own attention implementation, to save it or pass it on."""
        routes.restore(self.model)
        return self.given

    def forget(self) -> None:
        """Drop everything that is known about the model, because it was changed."""
        for results in (self.checked, self.checked_linear, self.covered, self.cache_forms, self.wirings):
            results.clear()
        self.reads_cache = self.reads_in_place = None
        self.passes_gradients = False

    def accept_hooks(self) -> None:
        """Keep what is known about the model although its hooks have changed, because they only observe.

        Without this, the next trace after a hook was added or removed checks the model again.
        """
        if self.state is not None:
            self.state = state_of(self.model)

    @property
    def device(self) -> torch.device:
        """The device of inputs and results; for offloaded weights, the device on which they run."""
        place = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        if place.type != "meta":
            return place
        runs_at = (getattr(getattr(m, "_hf_hook", None), "execution_device", None) for m in self.model.modules())
        return next((torch.device(d) for d in runs_at if d is not None), place)

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def text_config(self) -> PretrainedConfig | None:
        """The text part of the configuration, or all of it."""
        return getattr(self.config, "text_config", None) or self.config

    @property
    def class_names(self) -> dict[int, str]:
        """The names of the model's classes, as far as its configuration has them."""
        return {int(i): str(name) for i, name in (getattr(self.config, "id2label", None) or {}).items()}

    def accepts(self, name: str) -> bool:
        """Return whether the model's forward has this argument."""
        forward = getattr(self.model.forward, "__func__", self.model.forward)
        if self._arguments is None or self._arguments[0] is not forward:  # reading a signature is slow
            self._arguments = forward, frozenset(inspect.signature(self.model.forward).parameters)
        return name in self._arguments[1]

    def vocabulary(self) -> int:
        return int(getattr(self.text_config, "vocab_size", 0) or 2)

    def pad_id(self) -> int:
        for number in (getattr(self.tokenizer, "pad_token_id", None), getattr(self.config, "pad_token_id", None)):
            if isinstance(number, int) and number >= 0:
                return number
        return 0

    def limit(self) -> int | None:
        """Return how many tokens the model takes, or None if unknown."""
        return encode.limit(self)

    def check_evaluating(self) -> None:
        if any(module.training for module in self.model.modules()):
            path = next(path for path, module in self.model.named_modules() if module.training)
            raise InputError(
                f"{path or 'the model'} is in training mode, where dropout changes what it computes: call model.eval() "
                "first"
            )

    def check_default_device(self) -> None:
        if torch.get_default_device().type == "meta":
            raise InputError(
                "torch.set_default_device('meta') is active, so new tensors have no values: call "
                "torch.set_default_device(None) first"
            )

    def check_gradients(self) -> None:
        """Check on first use that gradients pass through all layers."""
        if not self.passes_gradients:
            check_gradients(self.model)
            self.passes_gradients = True

    def encode(self, item: Any, target: str | None = None, truncate: bool = False) -> Encoded:
        """Encode one input into tensors and labels."""
        self.check_default_device()
        return encode.encode(self, item, target, truncate)

    def verify(self, encoded: Encoded) -> Checked:
        """Run the self-check on first use of this kind of input; later calls return its results."""
        return verify.verify(self, encoded)

    def run_batch(
        self,
        encoded: Sequence[Encoded],
        checked: Checked | None = None,
        reduce: str | list[int] = "mean",
        keep: bool | frozenset[int] = False,
        whole_bytes: int | None = None,
        *,
        collector: Collector | None = None,
        grad: bool = False,
        measure: bool = True,
        every_logit: bool = False,
    ) -> Batch:
        """Run one forward pass of inputs that may run together, padded to the longest.

        reduce: how to reduce heads.
        keep: layers whose heads are kept.
        whole_bytes: the size of a layer up to which all heads are computed at once.
        collector: replaces the one that reduces heads.
        grad: keep the autograd graph.
        measure: measure the norms of the values.
        every_logit: compute the logits of all positions, even if the last would do for a language model.
        """
        checked = self.verify(encoded[0]) if checked is None else checked
        tensors = (
            inputs.batched([e.tensors for e in encoded], self.pad_id())
            if len(encoded) > 1
            else dict(encoded[0].tensors)
        )
        lengths = [int(e.tensors["input_ids"].shape[1]) for e in encoded] if "input_ids" in tensors else []
        batch = self.run_tensors(
            tensors, lengths, checked, reduce, keep, whole_bytes, collector=collector, grad=grad, measure=measure,
            every_logit=every_logit,
        )  # fmt: skip
        return replace(batch, encoded=encoded)

    def run_tensors(
        self,
        tensors: Mapping[str, Tensor],
        lengths: list[int],
        checked: Checked,
        reduce: str | list[int] = "mean",
        keep: bool | frozenset[int] = False,
        whole_bytes: int | None = None,
        *,
        collector: Collector | None = None,
        grad: bool = False,
        measure: bool = True,
        every_logit: bool = False,
    ) -> Batch:
        """Run one forward pass of a batch that is already padded, with texts of these lengths and no labels."""
        if len(set(lengths)) > 1 and self.stretching.changes(lengths):
            raise InputError(
                f"texts of {max(lengths):,} tokens are longer than {self.stretching.length:,}, beyond which this "
                "model's rotary positions depend on the length: run texts of one length together, or one at a time"
            )
        if collector is None:
            layer_bytes = verify.layer_bytes(tensors, checked)
            mode = (
                "blocks"
                if checked.blocks and layer_bytes > (WHOLE_BYTES if whole_bytes is None else whole_bytes)
                else "whole"
            )
            kept = keep if isinstance(keep, bool) else checked.stack.calls_of(keep)
            collector = Collector(mode, reduce, kept, measure=measure)
        last = [] if checked.stack.cross or every_logit else lengths
        out = self.run(tensors, collector, checked, last=last, grad=grad)
        return Batch(self, checked, (), out, collector.calls, lengths, collector.mode, reduce)

    def run(
        self,
        tensors: Mapping[str, Tensor],
        collector: Collector,
        checked: Checked,
        last: Sequence[int] = (),
        grad: bool = False,
    ) -> ModelOutput:
        """Return the model's output, with the collector listening.

        last: lengths, if only the last logits are needed.
        """
        verify.cover(self, tensors, checked)
        routes.prepare(self.model, checked.route)  # in case it was unwrapped since
        options = {**routes.forward_options(checked.route), **self.last_logits(last)}
        with routes.running():
            out = routes.capture(
                self.model,
                checked.route,
                lambda: self.forward(tensors, grad=grad, **options),
                collector,
                checked.reducers,
            )
        check_calls(collector.calls, checked)
        return out

    def last_logits(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Return arguments that make a language model compute only the last logits of texts of these lengths."""
        if not lengths or not self.accepts("logits_to_keep"):
            return {}
        return {"logits_to_keep": torch.tensor(sorted({n - 1 for n in lengths}), device=self.device)}

    def forward(self, tensors: Mapping[str, Tensor], *, grad: bool = False, **options: Any) -> ModelOutput:
        """Run the model's own forward pass; for a two-tower model, through the tower that takes these inputs."""
        self.check_evaluating()
        if torch.is_autocast_enabled(self.device.type):
            raise InputError(
                "torch.autocast is active, so some parts of the model round their numbers and others do not: turn it "
                "off, or convert the model to the precision that you want, for example with model.to(torch.bfloat16)"
            )
        placed = self.placed(tensors)
        if self.accepts("use_cache"):
            options.setdefault("use_cache", False)
        function = self._tower(placed)
        if function is not self.model:
            options = {}
        with torch.set_grad_enabled(grad), self.eagerly(), self.stretching.fresh():
            if "input" in placed and self.config is None:
                return function(placed.pop("input"), **placed)
            return function(**placed, **options)

    def eagerly(self) -> AbstractContextManager[None]:
        """Run compiled parts of the model uncompiled while active."""
        return eagerly() if is_compiled(self.model) else nullcontext()

    def _tower(self, tensors: Mapping[str, Tensor]) -> Any:
        if "pixel_values" in tensors and "input_ids" not in tensors and hasattr(self.model, "get_image_features"):
            return self.model.get_image_features
        if "input_ids" in tensors and "pixel_values" not in tensors and hasattr(self.model, "get_text_features"):
            return self.model.get_text_features
        return self.model

    def placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors on the model's device, floating-point ones in its precision."""
        return {
            name: x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)
            for name, x in tensors.items()
        }

    def identity(self) -> dict[str, Any]:
        """Return the identity of the model, as every result records it."""
        adapters = adapters_of(self.model)
        return {
            "model": self.name,
            "revision": self.revision,
            "class": type(self.model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            **({} if self.pooling is None else {"pooling": self.pooling.name}),
            **({"adapters": adapters} if adapters else {}),
        }

    def provenance(self, checked: Checked, mode: str, reduce: str | list[int], missing: str) -> dict[str, Any]:
        """Return the model, how its attention was captured, and the versions used."""
        blocks = mode == "blocks" or checked.route == routes.FUSED
        record: dict[str, Any] = {
            **self.identity(),
            "captured": checked.route + CAPTURED.get(mode, ", in blocks of queries" if blocks else ""),
            "heads": reduce,
            "torch": str(torch.__version__),
            "attnflow": __version__,
        }
        if self.config is not None:
            import transformers

            record["transformers"] = transformers.__version__
        if checked.sinks:
            record["missing"] = missing
        return record


def check_calls(calls: Sequence[Call], checked: Checked) -> None:
    if len(calls) != checked.calls:
        raise ModelError(
            f"the model made {len(calls)} attention calls, but {checked.calls} in the self-check: its layers depend on "
            "the input, so it cannot be explained"
        )
    for call in (calls[i] for i in checked.stack.main):
        if call.shape[0] != call.shape[1]:
            raise further_keys(call.path, *call.shape)
