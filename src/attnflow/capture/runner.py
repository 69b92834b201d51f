"""A model and its processor as one thing that runs: the one forward pass that traces, edges, long inputs and jobs share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnflow.capture import encode, hub, inputs, routes, verify
from attnflow.capture.assemble import assemble
from attnflow.capture.check import Checked
from attnflow.capture.collect import Call, Collector
from attnflow.capture.inputs import Encoded
from attnflow.capture.passes import Pass, Prediction
from attnflow.capture.predict import prediction
from attnflow.capture.shares import Form, forms_of, measuring
from attnflow.errors import InputError, ModelError
from attnflow.version import __version__

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ModelOutput = Any
"""Whatever a model's forward returns: a mapping in transformers, tensors in plain PyTorch."""

WHOLE_BYTES = 8 << 20
"""Up to this size all heads of a layer are computed at once by the model's own code; above it, in blocks where possible."""


CAPTURED = {"operands": ", queries and keys only", "layers": ", layer by layer"}
"""What results say of passes that kept no weights, by the collector's mode."""


@dataclass(frozen=True)
class Batch:
    """One forward pass of inputs that ran together.

    lengths: tokens of each input. mode: how the weights were computed. calls: the attention calls, of the whole batch.
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
        """Where the weights come from, for any input of the batch."""
        return self.runner.provenance(self.checked, self.mode, self.reduce, missing)

    def passed(self, number: int, missing: str = "keep", provenance: Mapping[str, Any] | None = None) -> Pass:
        """What the pass left of one input."""
        encoded = self.encoded[number]
        if provenance is None:
            unknown = inputs.unknown(self.runner.tokenizer, encoded)
            provenance = {**self.provenance(missing), **({"unknown": unknown} if unknown else {})}
        answer = self.prediction(number)
        return assemble(self.runner, self.calls, encoded, number, self.checked, missing, provenance, answer)


class Runner:
    """A model in evaluation mode, with its tokenizer or processor. Several threads may run it at a time.

    checked: what the self-check found, by the kind of input. checked_linear: kinds checked without matrices too.
    reads_cache: whether the model gives the same on a key-value cache; reads_in_place: whether a frozen pass may take it
    where it lies; None before anybody wanted to know. cache_forms: what the layers of its own cache are like.
    """

    def __init__(
        self, model: torch.nn.Module, processor: Any = None, name: str | None = None, revision: str | None = None
    ) -> None:
        self.model = model.eval()
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", None) or (
            processor if hasattr(processor, "convert_ids_to_tokens") else None
        )
        self.config: PretrainedConfig | None = getattr(model, "config", None)
        self.name: str = name or hub.name_of(getattr(self.config, "_name_or_path", "")) or type(model).__name__
        self.revision: str | None = revision or getattr(self.config, "_commit_hash", None)
        self.checked: dict[str, Checked] = {}
        self.checked_linear: set[str] = set()
        self.reads_cache: bool | None = None
        self.cache_forms: dict[tuple[torch.device, torch.dtype], tuple[str, ...]] = {}
        self.reads_in_place: bool | None = None
        self._forms: dict[tuple[str, ...], tuple[Form, ...]] = {}
        self._arguments: tuple[Any, frozenset[str]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {type(self.model).__name__})"

    def unwrap(self) -> torch.nn.Module:
        """The model as it was before: with its own attention implementation, for saving it whole or passing it on."""
        routes.restore(self.model)
        return self.model

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def text_config(self) -> PretrainedConfig | None:
        """The part of the configuration that is about text, or all of it."""
        return getattr(self.config, "text_config", None) or self.config

    def accepts(self, name: str) -> bool:
        """Whether the model's forward has this argument."""
        forward = getattr(self.model.forward, "__func__", self.model.forward)
        if self._arguments is None or self._arguments[0] is not forward:  # reading a signature takes a while
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
        """How many tokens the model takes, or None where nothing says so."""
        return encode.limit(self)

    def check_evaluating(self) -> None:
        if self.model.training:
            raise InputError(
                "the model is in training mode, where dropout changes what it computes: call model.eval() first"
            )

    def encode(
        self, item: Any, target: str | None = None, truncate: bool = False, sampling_rate: int | None = None
    ) -> Encoded:
        """One input as tensors and labels."""
        return encode.encode(self, item, target, truncate, sampling_rate)

    def verify(self, encoded: Encoded) -> Checked:
        """The self-check, on the first use of this kind of input; later calls return what it found."""
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
        """One forward pass of inputs that may run together, padded to the longest of them.

        reduce: how heads are reduced. keep: layers whose heads stay. whole_bytes: up to this size of a layer, all heads are
        computed at once. collector: what listens instead of one that reduces heads. grad: keep the graph of autograd.
        measure: see how long the values are and, where the form of the layers is known, how much of a state is its own.
        every_logit: the logits of all positions, where a language model could do with the last.
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
        """The same of a batch that is padded already, of texts of these lengths, which nobody has labelled."""
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
        if measure:
            with measuring(self.forms(checked), checked, collector) as write:
                out = self.run(tensors, collector, checked, last=last, grad=grad)
            write(collector.calls)
        else:
            out = self.run(tensors, collector, checked, last=last, grad=grad)
        return Batch(self, checked, (), out, collector.calls, lengths, collector.mode, reduce)

    def forms(self, checked: Checked) -> tuple[Form, ...]:
        """The layers whose additions can be measured, which takes a while to find out."""
        if checked.paths not in self._forms:
            self._forms[checked.paths] = forms_of(self.model, checked)
        return self._forms[checked.paths]

    def run(
        self,
        tensors: Mapping[str, Tensor],
        collector: Collector,
        checked: Checked,
        last: Sequence[int] = (),
        grad: bool = False,
    ) -> ModelOutput:
        """The model's output, while the collector listens. last: lengths, where only the last logits are needed."""
        routes.prepare(self.model, checked.route)  # in case somebody has set another implementation since
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
        """Arguments with which a language model computes no logits but the last ones of texts of these lengths."""
        if not lengths or not self.accepts("logits_to_keep"):
            return {}
        return {"logits_to_keep": torch.tensor(sorted({n - 1 for n in lengths}), device=self.device)}

    def forward(self, tensors: Mapping[str, Tensor], *, grad: bool = False, **options: Any) -> ModelOutput:
        """The model's own forward pass. Of a two-tower model, through the tower that takes these inputs."""
        self.check_evaluating()
        placed = self.placed(tensors)
        if self.accepts("use_cache"):
            options.setdefault("use_cache", False)
        function = self._tower(placed)
        if function is not self.model:
            options = {}
        with torch.set_grad_enabled(grad):
            if "input" in placed and self.config is None:
                return function(placed.pop("input"), **placed)
            return function(**placed, **options)

    def _tower(self, tensors: Mapping[str, Tensor]) -> Any:
        if "pixel_values" in tensors and "input_ids" not in tensors and hasattr(self.model, "get_image_features"):
            return self.model.get_image_features
        if "input_ids" in tensors and "pixel_values" not in tensors and hasattr(self.model, "get_text_features"):
            return self.model.get_text_features
        return self.model

    def placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors on the model's device, floating-point ones in its precision."""
        return {
            name: x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)
            for name, x in tensors.items()
        }

    def identity(self) -> dict[str, Any]:
        """Which model this is, as every result records it."""
        return {
            "model": self.name,
            "revision": self.revision,
            "class": type(self.model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
        }

    def provenance(self, checked: Checked, mode: str, reduce: str | list[int], missing: str) -> dict[str, Any]:
        """Which model, how its attention was captured, by which versions."""
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
            f"the model made {len(calls)} attention calls and {checked.calls} when it was checked: its layers depend on "
            "the input, and such a model cannot be explained"
        )
