"""A model that can be traced: any attention model that transformers or plain PyTorch runs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnflow._arrays import indices, positions
from attnflow.capture import check, encode, inputs, routes
from attnflow.capture.assemble import assemble, layer_calls
from attnflow.capture.collect import Call, Collector
from attnflow.capture.inputs import Encoded
from attnflow.capture.predict import prediction
from attnflow.errors import InputError
from attnflow.trace import Trace

WHOLE_BYTES = 8 << 20
"""Up to this size all heads of a layer are computed at once by the model's own code; above it, in blocks where possible."""

BATCH = 16
"""Texts that run together, padded to the longest of them."""

PROBE_TOKENS = 96
"""The self-check runs on at most so many tokens of the first text."""

PROBE_LEAST = 12

MISSING = ("keep", "normalize", "self")


def wrap(model: Any, processor: Any = None, *, name: str | None = None) -> Model:
    """A model from transformers or plain PyTorch, ready to be traced.

    model: any module. It is put into evaluation mode; a transformers model gets our function in front of its attention
        implementation, which does nothing unless a trace is running.
    processor: its tokenizer, image processor or feature extractor, or a processor with several of these.
    name: how results name the model; by default its hub id, or the last part of its folder.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}: expected a torch module; load() takes a path or a hub id")
    return Model(model, processor, name)


def name_of(source: str) -> str:
    """How results name a model: a hub id as it is, a folder or a file by its last part. Where it lies is not for sharing.

    >>> name_of("org/model"), name_of("/home/me/run-7/checkpoint-1000")
    ('org/model', 'checkpoint-1000')
    """
    local = Path(source)
    if not source or not (local.exists() or local.is_absolute() or source[0] in ".~" or len(local.parts) > 2):
        return source
    return (local if local.name not in ("", "..") else local.resolve()).name or source


_checking = threading.RLock()  # a self-check changes the model's implementation and back: one at a time


@contextmanager
def running() -> Iterator[None]:
    """A model that fails on its input says so in its own words; we add whose words they are."""
    try:
        yield
    except InputError:
        raise
    except Exception as e:
        told = f"{type(e).__name__}: {str(e).splitlines()[0]}" if str(e) else type(e).__name__
        less = '; memory="linear", or fewer texts at a time, take less memory' if "memory" in told else ""
        raise InputError(f"the model does not run on this input ({told}){less}") from e


class Batch(NamedTuple):
    """What a forward pass of several inputs gave. lengths: tokens of each. mode: how the weights were computed."""

    out: Any
    calls: list[Call]
    lengths: list[int]
    mode: str


class Model:
    """A wrapped model. `trace` runs it once and returns what attention did; several threads may do so at a time."""

    def __init__(self, model: Any, processor: Any = None, name: str | None = None, revision: str | None = None) -> None:
        self.model = model.eval()
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", None) or (
            processor if hasattr(processor, "convert_ids_to_tokens") else None
        )
        self.config = getattr(model, "config", None)
        self.name = name or name_of(getattr(self.config, "_name_or_path", "")) or type(model).__name__
        self.revision = revision or getattr(self.config, "_commit_hash", None)
        self.checked: dict[str, check.Checked] = {}
        self.checked_linear: set[str] = set()

    def unwrap(self) -> Any:
        """The model as it was before: with its own attention implementation, for saving it whole or passing it on."""
        routes.restore(self.model)
        return self.model

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {type(self.model).__name__})"

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    def trace(
        self,
        text: Any,
        *,
        target: str | None = None,
        heads: str | Iterable[int] = "mean",
        keep_heads: bool | Iterable[int] = False,
        missing: str = "keep",
        truncate: bool = False,
        memory: str = "graph",
        queries: Sequence[int] | None = None,
        layers: Sequence[int] | None = None,
        offload: bool = False,
        sampling_rate: int | None = None,
        edges: str | None = None,
        normalize: str | None = None,
        answer: Any = None,
        of: str = "logit",
    ) -> Any:
        """Runs the model once and returns a `Trace`; for a list of texts, padded batches and a list of traces.

        text: a text; a pair of texts as a tuple; an image (PIL, array, path or pixel values) or a waveform for models
            that take those; or a dict of tensors, as the model's forward takes them.
        target: for encoder-decoders, the text that the decoder writes; if not given, the model's own greedy answer.
        heads: how heads are reduced: "mean", "max", "min" or a list of heads.
        keep_heads: True or a list of layers, for which all heads stay in ``trace.weights``.
        missing: for models with attention sinks, whose rows sum to less than one: "keep" them so, "normalize" divides
            by the sum, "self" gives the rest to the position itself.
        truncate: cut texts that are longer than the model takes, instead of refusing them.
        memory: "graph" keeps one matrix a layer. "linear" keeps queries and keys only, and explains ``queries`` at
            ``layers`` by raw attention and rollout: for contexts whose matrices would not fit.
        queries, layers: for memory="linear": which positions and layers to explain; the last of each by default.
        offload: for memory="linear" on a GPU: keep queries and keys in host memory.
        sampling_rate: of a waveform, in Hz.
        edges: what an edge weighs, other than its attention: "effective", "gradient", "attention-gradient", "value-norm",
            "block-norm", "alti", "value-zeroing"; `attnflow.edges` has them all. normalize: see `attnflow.edges.reweighed`.
        answer, of: for edges by gradients, what is differentiated, as in `gradient`, but the logit unless told otherwise.
        """
        if edges is not None:
            from attnflow.edges import traced

            others = {
                "target": target, "keep_heads": keep_heads, "queries": queries, "layers": layers, "offload": offload,
                "sampling_rate": sampling_rate, "heads": None if heads == "mean" else heads,
                "memory": None if memory == "graph" else memory,
            }  # fmt: skip
            for name, given in others.items():
                if given is not None and given is not False:
                    raise InputError(f"{name} does not go with edges={edges!r}: leave one of them out")
            return traced(self, text, edges, normalize, answer=answer, of=of, missing=missing, truncate=truncate)
        for name, given in (("normalize", normalize), ("answer", answer)):
            if given is not None:
                raise InputError(f"{name} goes with edges: say which, for example edges='attention-gradient'")
        if missing not in MISSING:
            raise InputError(f"missing={missing!r}: expected one of {', '.join(map(repr, MISSING))}")
        if memory not in ("graph", "linear"):
            raise InputError(f'memory={memory!r}: expected "graph" or "linear"')
        if memory == "graph" and (queries is not None or layers is not None or offload):
            raise InputError(
                'queries, layers and offload are for memory="linear"; here, give query= to raw(), rollout() or flow()'
            )
        if self.model.training:
            raise InputError(
                "the model is in training mode, where dropout changes the weights: call model.eval() first"
            )
        many = isinstance(text, list)
        if many and not text:
            return []
        items = text if many else [text]
        if many and target is not None:
            raise InputError("target goes with one text: trace encoder-decoders one text at a time")
        encoded = [encode.encode(self, item, target, truncate, sampling_rate) for item in items]
        reduce = heads if isinstance(heads, str) else positions(heads, "head")
        if isinstance(reduce, str) and reduce not in ("mean", "max", "min"):
            raise InputError(f'heads={heads!r}: expected "mean", "max", "min" or a list of heads')
        if isinstance(reduce, list):
            reduce = indices(reduce, self.verify(encoded[0]).heads, "head")
        if memory == "linear":
            from attnflow.long import trace_linear

            if many:
                raise InputError('memory="linear" takes one text at a time')
            return trace_linear(self, encoded[0], reduce, queries, layers, offload)
        keep = keep_heads if isinstance(keep_heads, bool) else frozenset(positions(keep_heads, "layer"))
        if not many:
            return self._trace(encoded, reduce, keep, missing)[0]
        batches = [encoded[i : i + BATCH] for i in range(0, len(encoded), BATCH)]
        return [trace for batch in batches for trace in self._trace(batch, reduce, keep, missing)]

    def _trace(
        self, encoded: list[Encoded], reduce: str | list[int], keep: bool | frozenset[int], missing: str
    ) -> list[Trace]:
        checked = self.verify(encoded[0])
        if len(encoded) > 1 and (
            checked.padding is False or "input_ids" not in encoded[0].tensors or encoded[0].target is not None
        ):
            return [t for e in encoded for t in self._trace([e], reduce, keep, missing)]
        done = self.run_batch(encoded, checked, reduce, keep)
        traces = []
        for number, e in enumerate(encoded):
            told = self._provenance(checked, done.mode, reduce, missing)
            if strange := inputs.unknown(self.tokenizer, e):
                told["unknown"] = strange
            said = prediction(self, done.out, e, number, done.lengths)
            traces.append(assemble(self, done.calls, e, number, checked, missing, told, said))
        return traces

    def run_batch(
        self,
        encoded: Sequence[Encoded],
        checked: check.Checked,
        reduce: str | list[int] = "mean",
        keep: bool | frozenset[int] = False,
        whole_bytes: int | None = None,
    ) -> Batch:
        """One forward pass of inputs that may run together, padded to the longest of them."""
        tensors = (
            inputs.batched([e.tensors for e in encoded], self._pad_id())
            if len(encoded) > 1
            else dict(encoded[0].tensors)
        )
        lengths = [e.tensors["input_ids"].shape[1] for e in encoded] if "input_ids" in tensors else []
        most = WHOLE_BYTES if whole_bytes is None else whole_bytes
        mode = "blocks" if checked.blocks and self._layer_bytes(tensors, checked) > most else "whole"
        collector = Collector(mode, reduce, keep if isinstance(keep, bool) else checked.stack.calls_of(keep))
        out = self._run(tensors, collector, checked, last=[] if checked.stack.cross else lengths)
        return Batch(out, collector.calls, lengths, mode)

    def blank_out(
        self,
        text: Any,
        answer: Any = None,
        *,
        by: str | int | None = None,
        signed: bool = False,
        truncate: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """What each token is worth to the answer, by blanking it: see `attnflow.importance.blank_out`."""
        from attnflow.importance import blank_out

        return blank_out(self, text, answer, by=by, signed=signed, truncate=truncate, progress=progress)

    def gradient(
        self, text: Any, answer: Any = None, *, reduce: str = "l2", of: str = "probability", truncate: bool = False
    ) -> Any:
        """What each token is worth to the answer, by the gradient: see `attnflow.importance.gradient`."""
        from attnflow.importance import gradient

        return gradient(self, text, answer, reduce=reduce, of=of, truncate=truncate)

    def integrated_gradients(
        self, text: Any, answer: Any = None, *, of: str = "probability", by: str | int | None = None, steps: int = 50,
        truncate: bool = False,
    ) -> Any:  # fmt: skip
        """The gradient along the way from a blank text, through captum: see `attnflow.importance.integrated_gradients`."""
        from attnflow.importance import integrated_gradients

        return integrated_gradients(self, text, answer, of=of, by=by, steps=steps, truncate=truncate)

    def shapley(
        self, text: Any, answer: Any = None, *, of: str = "probability", by: str | int | None = None, samples: int = 25,
        seed: int = 0, truncate: bool = False,
    ) -> Any:  # fmt: skip
        """The mean gain over random orders of adding tokens, through captum: see `attnflow.importance.shapley`."""
        from attnflow.importance import shapley

        return shapley(self, text, answer, of=of, by=by, samples=samples, seed=seed, truncate=truncate)

    def explain(
        self, text: Any, *, target: str | None = None, query: Any = None,
        importance: Sequence[str] = ("gradient", "blank-out"), truncate: bool = False, residual: float = 0.5,
    ) -> Any:  # fmt: skip
        """The interactive page of a text: in a notebook it shows itself, ``.save("page.html")`` makes a file that opens
        offline. See `attnflow.view.explain`."""
        from attnflow.view.explain import explain

        return explain(
            self, text, target=target, query=query, importance=importance, truncate=truncate, residual=residual
        )

    def verify(self, encoded: Encoded) -> check.Checked:
        """The self-check, on the first use of this kind of input; later calls return what it found."""
        kind = ",".join(sorted(encoded.tensors))
        if kind in self.checked:
            return self.checked[kind]
        with _checking:
            return self.checked.get(kind) or self._first_use(encoded, kind)

    def _first_use(self, encoded: Encoded, kind: str) -> check.Checked:
        tensors = self._probe(encoded.tensors)
        with running():
            expected = check.float_outputs(self._forward(tensors))
        refusals = []
        for route in routes.routes_for(self.model):
            try:
                self.checked[kind] = self._verify(tensors, expected, route)
                return self.checked[kind]
            except InputError as e:
                refusals.append(f"{route}: {e}")
            except Exception as e:  # whatever a model file does with what it was handed: not a way in
                refusals.append(f"{route}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
            except BaseException:  # interrupted
                routes.restore(self.model)
                raise
            routes.restore(self.model)
        raise InputError(f"{type(self.model).__name__} cannot be explained by its attention. " + "; ".join(refusals))

    def _verify(self, tensors: dict[str, Tensor], expected: list[Tensor], route: str) -> check.Checked:
        routes.prepare(self.model, route)
        asked = self._asked(route)
        whole = Collector("whole", "mean", True)
        out = routes.capture(self.model, route, lambda: self._forward(tensors, **asked), whole)
        outputs = check.float_outputs(out)
        reducers = self._reducers(tensors, whole, outputs) if route == routes.EAGER else {}
        difference = check.largest_difference(outputs, expected)
        if not difference <= check.tolerance(self.model, expected):
            raise InputError(f"the outputs of the hooked model differ from the model's own by {difference:.3g}")
        if not whole.calls:
            raise InputError("no attention was seen: the model mixes positions in another way, or in code of its own")
        check.check_rows(whole.calls, self.dtype)
        stack = layer_calls(self, whole.calls, tensors)
        causal = False
        own = [whole.calls[i] for i in stack.main]
        name = self._sequence(tensors, own)
        if name is not None and not stack.cross and "pixel_values" not in tensors:
            more = {"output_hidden_states": True} if self._accepts("output_hidden_states") else {}

            def run(given: Mapping[str, Tensor]) -> Any:
                return self._forward(given, **more)

            told = check.looks_back_only(run, tensors, name, self._vocabulary())
            if told:
                check.check_future(own)
            causal = told or (told is None and not check.sees_ahead(own))
            mode = "alone, softmax" if route == routes.EAGER else "alone"
            counted = Collector(mode)
            if route == routes.EAGER:  # only if every layer's softmax is seen can it be told to look at nothing else
                routes.capture(self.model, route, lambda: run(tensors), counted)
            if route != routes.EAGER or counted.seen == len(whole.calls):
                check.check_nothing_else_mixes(
                    lambda given: routes.capture(self.model, route, lambda: run(given), Collector(mode)),
                    tensors,
                    name,
                    self._vocabulary(),
                )
        blocks = route == routes.FUSED
        if route == routes.INTERFACE:
            blocks = self._blocks_agree(tensors, expected)
        padding = self._padding_agrees(tensors, route, reducers, whole)
        sinks = any(call.has_sinks for call in whole.calls)
        heads = max(call.head_count for call in whole.calls)
        positions = max(int(call.mean.shape[-1]) for call in whole.calls if call.mean is not None)
        paths = tuple(call.path for call in whole.calls)
        return check.Checked(
            route, difference, blocks, causal, sinks, padding, len(paths), reducers, stack, heads, positions, paths
        )

    def _reducers(self, tensors: Mapping[str, Tensor], whole: Collector, outputs: list[Tensor]) -> dict[str, int]:
        """Where heads can be reduced as soon as a layer is done, if that gives what reducing them at the end gives."""

        def run() -> Any:
            return self._forward(tensors, output_attentions=True)

        found = routes.find_reducers(self.model, run)
        reduced = Collector()
        out = routes.capture(self.model, routes.EAGER, run, reduced, found)
        same = len(reduced.calls) == len(whole.calls) and all(
            a.mean is not None and b.mean is not None and torch.equal(a.mean, b.mean)
            for a, b in zip(reduced.calls, whole.calls, strict=True)
        )
        return found if same and check.largest_difference(check.float_outputs(out), outputs) == 0 else {}

    def _sequence(self, tensors: Mapping[str, Tensor], calls: Sequence[Call]) -> str | None:
        """The input that has one entry a position: token ids, or states [1, position, size]."""
        n = calls[0].mean.shape[-1] if calls[0].mean is not None else 0
        for name in ("input_ids", "inputs_embeds", "input"):
            x = tensors.get(name)
            if x is not None and x.dim() == (2 if name == "input_ids" else 3) and x.shape[:2] == (1, n):
                return name
        return None

    def _blocks_agree(self, tensors: Mapping[str, Tensor], expected: list[Tensor]) -> bool:
        """Whether our softmax gives the model's own weights, from the same operands, in every call of one pass."""
        collector = Collector("compare")
        try:
            out = routes.capture(self.model, routes.INTERFACE, lambda: self._forward(tensors), collector)
        except Exception:  # whatever a model file does with a mask that is a rule: then it is not for blocks
            return False
        close = check.largest_difference(check.float_outputs(out), expected) <= check.tolerance(self.model, expected)
        return close and collector.worst <= (1e-2 if check.half(self.dtype) else 1e-5)

    def _padding_agrees(
        self, tensors: Mapping[str, Tensor], route: str, reducers: Mapping[str, int], whole: Collector
    ) -> bool | None:
        """Whether a text that is padded beside a longer one gives the same weights, and none to the padding."""
        if "input_ids" not in tensors or tensors["input_ids"].shape[1] < 2:
            return None
        n = tensors["input_ids"].shape[1]
        longer = {
            k: torch.cat([v, v[:, :1].repeat(1, 3)], 1) if v.dim() == 2 and v.shape[1] == n else v
            for k, v in tensors.items()
        }
        try:
            both = (
                inputs.batched([longer, dict(tensors)], self._pad_id()) if "decoder_input_ids" not in tensors else None
            )
            if both is None:
                return None
            collector = Collector("whole", "mean", False)
            asked = self._asked(route)
            routes.capture(self.model, route, lambda: self._forward(self._placed(both), **asked), collector, reducers)
        except (ValueError, RuntimeError, IndexError):
            return False
        slack = 2e-2 if check.half(self.dtype) else 1e-4
        for single, call in zip(whole.calls, collector.calls, strict=False):
            if single.mean is None or call.mean is None or call.mean.shape[0] != 2 or call.mean.shape[-1] != n + 3:
                continue
            leaked = float(call.mean[1, :n, n:].max())
            if leaked > 1e-6:
                raise InputError(
                    f"{call.path or 'a layer'} gives {leaked:.3g} to padding: the mask did not reach the attention"
                )
            if float((call.mean[1, :n, :n] - single.mean[0]).abs().max()) > slack:
                return False
        return True

    def _run(
        self,
        tensors: Mapping[str, Tensor],
        collector: Collector,
        checked: check.Checked,
        last: Sequence[int] = (),
        grad: bool = False,
    ) -> Any:
        routes.prepare(self.model, checked.route)  # in case somebody has set another implementation since
        asked = self._asked(checked.route)
        if last and self._accepts("logits_to_keep"):
            asked["logits_to_keep"] = torch.tensor(sorted({n - 1 for n in last}), device=self.device)
        with running():
            out = routes.capture(
                self.model,
                checked.route,
                lambda: self._forward(tensors, grad=grad, **asked),
                collector,
                checked.reducers,
            )
        if len(collector.calls) != checked.calls:
            raise InputError(
                f"the model made {len(collector.calls)} attention calls and {checked.calls} when it was checked: "
                "its layers depend on the input, and such a model cannot be explained"
            )
        return out

    def _forward(self, tensors: Mapping[str, Tensor], *, grad: bool = False, **more: Any) -> Any:
        placed = self._placed(tensors)
        if self._accepts("use_cache"):
            more.setdefault("use_cache", False)
        function = self._tower(placed)
        if function is not self.model:
            more = {}
        with torch.set_grad_enabled(grad):
            if "input" in placed and self.config is None:
                return function(placed.pop("input"), **placed)
            return function(**placed, **more)

    def _tower(self, tensors: Mapping[str, Tensor]) -> Any:
        """Of a two-tower model the one that takes these inputs, else the model."""
        if "pixel_values" in tensors and "input_ids" not in tensors and hasattr(self.model, "get_image_features"):
            return self.model.get_image_features
        if "input_ids" in tensors and "pixel_values" not in tensors and hasattr(self.model, "get_text_features"):
            return self.model.get_text_features
        return self.model

    def _placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        placed = {}
        for name, x in tensors.items():
            placed[name] = x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)
        return placed

    def _asked(self, route: str) -> dict[str, Any]:
        return {"output_attentions": True} if route == routes.EAGER else {}

    def _accepts(self, name: str) -> bool:
        return name in inspect.signature(self.model.forward).parameters

    def _probe(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the self-check runs on: the text, cut where it is long, repeated where it is too short to tell anything."""
        found = dict(tensors)
        for side, others in (("input_ids", True), ("decoder_input_ids", False)):
            ids = tensors.get(side)
            if ids is None:
                continue
            n = int(ids.shape[1])
            wanted = min(max(n, 1 if "position_ids" in tensors else PROBE_LEAST), PROBE_TOKENS)
            place = torch.arange(wanted) % n
            for name, x in tensors.items():
                along = x.dim() > 1 and x.shape[0] == 1 and x.shape[1] == n and "pixel" not in name
                if along and (name.startswith("decoder_") != others):
                    found[name] = x[:, place.to(x.device)]
        return found

    def _vocabulary(self) -> int:
        text = getattr(self.config, "text_config", None) or self.config
        return int(getattr(text, "vocab_size", 0) or 2)

    def _pad_id(self) -> int:
        for found in (getattr(self.tokenizer, "pad_token_id", None), getattr(self.config, "pad_token_id", None)):
            if isinstance(found, int) and found >= 0:
                return found
        return 0

    def _layer_bytes(self, tensors: Mapping[str, Tensor], checked: check.Checked) -> int:
        main = tensors.get("input_ids")
        rows, n = (1, checked.positions) if main is None else main.shape
        return int(rows) * checked.heads * int(n) ** 2 * 4

    def limit(self) -> int | None:
        """How many tokens the model takes, or None where nothing says so."""
        return encode.limit(self)

    def _provenance(self, checked: check.Checked, mode: str, reduce: str | list[int], missing: str) -> dict[str, Any]:
        import attnflow

        told: dict[str, Any] = {
            "model": self.name,
            "revision": self.revision,
            "class": type(self.model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "captured": checked.route
            + (", in blocks of queries" if mode == "blocks" or checked.route == routes.FUSED else ""),
            "heads": reduce,
            "torch": str(torch.__version__),
            "attnflow": attnflow.__version__,
        }
        if self.config is not None:
            import transformers

            told["transformers"] = transformers.__version__
        if checked.sinks:
            told["missing"] = missing
        return told
