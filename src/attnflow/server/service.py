"""Requests become work for the queue."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.capture import inputs
from attnflow.errors import InputError
from attnflow.model import Model
from attnflow.server.limits import Limits, Refusal
from attnflow.server.queue import Work
from attnflow.server.wire import ExplainRequest, Input, PathsRequest, RowsRequest, encoded
from attnflow.trace import Trace
from attnflow.view import document
from attnflow.view.explain import explain, traced

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class Served:
    """A model under the name that requests call it by."""

    name: str
    model: Model
    kind: str


def served(name: str, model: Model) -> Served:
    """Trace a model once, so that one that cannot be explained says so when the server starts."""
    main = getattr(model.model, "main_input_name", "input")
    if main in ("input_values", "input_features"):
        raise InputError(f"the model {name!r} reads audio: the web app takes models of text and of images")
    if main == "pixel_values":
        try:
            from PIL import Image
        except ImportError:
            raise InputError("images need pillow: pip install 'attnflow[images]'") from None
        model.trace(Image.new("RGB", (64, 64), "grey"))
        return Served(name, model, "image")
    if getattr(model.config, "is_encoder_decoder", False):
        model.trace("a", target="a")
        return Served(name, model, "encoder-decoder")
    model.trace("a")
    return Served(name, model, "text")


Key = tuple[Any, ...]
Compute = Callable[[Model, Any, Trace, document.Progress], Mapping[str, Any]]
"""From a model, its input and its trace to an answer."""


class Traces:
    """The traces used last, within a number and a size: questions about the same input need no other forward pass.

    The computing thread alone uses it.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.by_key: OrderedDict[Key, Trace] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Trace]) -> Trace:
        traces = self.by_key
        trace = traces[key] if key in traces else traces.setdefault(key, make())
        traces.move_to_end(key)
        while traces and (len(traces) > self.limits.traces or _bytes(traces.values()) > self.limits.trace_bytes):
            traces.popitem(last=False)
        return trace


def _bytes(traces: Iterable[Trace]) -> int:
    whole = [part for trace in traces for part in (trace, trace.encoder) if part is not None]
    tensors = [x for trace in whole for x in (*(step.weights for step in trace.steps), *trace.weights.values())]
    return sum(x.numel() * x.element_size() for x in tensors)


class Service:
    """Makes work for the queue from requests."""

    def __init__(self, models: Sequence[Served], limits: Limits) -> None:
        self.models = {each.name: each for each in models}
        self.limits = limits
        self.traces = Traces(limits)

    def known(self) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "kind": each.kind,
                "tokens": None if each.kind == "image" else self.tokens(each),
                "characters": None if each.kind == "image" else self.limits.characters,
            }
            for each in self.models.values()
        ]

    def tokens(self, of: Served) -> int:
        own: int | None = of.model.limit()
        return self.limits.tokens if own is None else min(own, self.limits.tokens)

    def explain(self, request: ExplainRequest) -> Work:
        def compute(model: Model, source: Any, trace: Trace, progress: document.Progress) -> Mapping[str, Any]:
            return explain(
                model, source, target=request.target, query=request.query, importance=request.importance,
                truncate=request.truncate, progress=progress, trace=trace,
            ).document  # fmt: skip

        return self._work(request, compute)

    def rows(self, request: RowsRequest) -> Work:
        def compute(_: Model, source: Any, trace: Trace, progress: document.Progress) -> Mapping[str, Any]:
            progress("rows", 0, 1)
            return document.rows(trace, request.unit, request.query)

        return self._work(request, compute)

    def paths(self, request: PathsRequest) -> Work:
        def compute(_: Model, source: Any, trace: Trace, progress: document.Progress) -> Mapping[str, Any]:
            progress("paths", 0, 1)
            return document.paths(trace, request.unit, request.query, request.layer, request.token)

        return self._work(request, compute)

    def _work(self, request: Input, compute: Compute) -> Work:
        """Traces the input, or takes its trace where it is kept, and computes an answer from it."""
        of = self._checked(request)
        image = None if request.image is None else hashlib.sha256(request.image.encode()).digest()
        key = (of.name, request.text, request.pair, request.target, request.truncate, image)

        def work(progress: document.Progress) -> bytes:
            progress("model", 0, 1)
            source = self._input(of, request)
            trace = self.traces.get(key, lambda: traced(of.model, source, request.target, request.truncate))
            return encoded(compute(of.model, source, trace, progress))

        return work

    def _checked(self, request: Input) -> Served:
        """Refuses what can be refused before it waits in the queue."""
        if request.model not in self.models:
            names = ", ".join(map(repr, self.models))
            raise Refusal(404, f"there is no model {request.model!r:.80} here: expected one of {names}")
        of = self.models[request.model]
        if of.kind == "image":
            if request.image is None or any(part is not None for part in (request.text, request.pair, request.target)):
                raise Refusal(
                    422, f"the model {of.name!r} reads images: give image, a PNG or JPEG file in base64, and no text"
                )
            return of
        if request.text is None or request.image is not None:
            raise Refusal(422, f"the model {of.name!r} reads text: give text, and no image")
        count = sum(len(part) for part in (request.text, request.pair, request.target) if part is not None)
        if count > self.limits.characters:
            raise Refusal(
                413, f"the text has {count:,} characters and this server takes {self.limits.characters:,}: shorten it"
            )
        return of

    def _input(self, of: Served, request: Input) -> Any:
        """The model's input, once its size is checked."""
        if of.kind == "image":
            return picture(request.image or "", self.limits.pixels)
        text: Any = request.text if request.pair is None else (request.text, request.pair)
        tokenizer, most = of.model.tokenizer, of.model.limit()
        count = len(inputs.encode_text(tokenizer, text, most, request.truncate).tokens)
        if of.kind == "encoder-decoder" and request.target is not None:
            count += len(inputs.encode_text(tokenizer, request.target, most, request.truncate, target=True).tokens)
        if count > self.limits.tokens:
            raise Refusal(
                413,
                f"the text has {count:,} tokens and this server takes {self.limits.tokens:,}: shorten it, or have the "
                "server started with a higher limit",
            )
        return text


def picture(data: str, pixels: int) -> Image.Image:
    """Decode the image of a request. Its size is checked before its pixels are unpacked."""
    from PIL import Image, ImageOps

    if data[:5].lower() == "data:":
        data = data.partition(",")[2]
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)  # tools break it into lines
    except (binascii.Error, ValueError):
        raise InputError("the image is not base64: expected a PNG or JPEG file, encoded in base64") from None
    large = f"the image has more than {pixels:,} pixels: make it smaller, the model does too"
    try:
        image = Image.open(io.BytesIO(raw), formats=("PNG", "JPEG"))
        if image.width * image.height > pixels:
            raise InputError(large)
        return ImageOps.exif_transpose(image).convert("RGB")  # as browsers show it
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(large) from None
    except Exception:  # PIL's readers fail in many ways on what is no image, or a damaged one
        raise InputError("the image cannot be read: expected a whole PNG or JPEG file, encoded in base64") from None
