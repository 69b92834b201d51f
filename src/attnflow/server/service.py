"""What requests ask for, as work for the queue."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.capture import inputs
from attnflow.errors import InputError
from attnflow.model import Model
from attnflow.server.answers import encoded
from attnflow.server.jobs import Limits, Refusal, Work
from attnflow.server.requests import ExplainRequest, Input, PathsRequest, RowsRequest
from attnflow.trace import Trace
from attnflow.view import document
from attnflow.view.explain import explain, traced


@dataclass(frozen=True, eq=False)
class Served:
    """A model under the name that requests call it by."""

    name: str
    model: Model
    kind: str


def served(name: str, model: Model) -> Served:
    """Checked as a request would use it, so that a model that cannot be explained says so when the server starts."""
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


class Traces:
    """The traces used last, within a number and a size: questions about the same input need no other forward pass.

    The computing thread alone uses it.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held: OrderedDict[Key, Trace] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Trace]) -> Trace:
        if key not in self.held:
            self.held[key] = make()
        self.held.move_to_end(key)
        found = self.held[key]
        while len(self.held) > self.limits.traces or sum(map(_bytes, self.held.values())) > self.limits.trace_bytes:
            self.held.popitem(last=False)
            if not self.held:
                break
        return found


def _bytes(trace: Trace) -> int:
    tensors = [*(step.weights for step in trace.steps), *trace.weights.values()]
    own = sum(int(x.numel()) * int(x.element_size()) for x in tensors)
    return own + (_bytes(trace.encoder) if trace.encoder else 0)


class Service:
    """What requests ask for, as work for the queue."""

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

    def explain(self, asked: ExplainRequest) -> Work:
        of = self._checked(asked)

        def work(progress: document.Progress) -> bytes:
            progress("model", 0, 1)
            given = self._given(of, asked)
            trace = self._trace(of, asked, given)
            found = explain(
                of.model, given, target=asked.target, query=asked.query, importance=asked.importance,
                truncate=asked.truncate, progress=progress, trace=trace,
            )  # fmt: skip
            return encoded(found.document)

        return work

    def rows(self, asked: RowsRequest) -> Work:
        of = self._checked(asked)

        def work(progress: document.Progress) -> bytes:
            progress("model", 0, 1)
            trace = self._trace(of, asked, self._given(of, asked))
            progress("rows", 0, 1)
            return encoded(document.rows(trace, asked.unit, asked.query))

        return work

    def paths(self, asked: PathsRequest) -> Work:
        of = self._checked(asked)

        def work(progress: document.Progress) -> bytes:
            progress("model", 0, 1)
            trace = self._trace(of, asked, self._given(of, asked))
            progress("paths", 0, 1)
            return encoded(document.paths(trace, asked.unit, asked.query, asked.layer, asked.token))

        return work

    def _checked(self, asked: Input) -> Served:
        """What can be told before it waits in the queue."""
        if asked.model not in self.models:
            names = ", ".join(map(repr, self.models))
            raise Refusal(404, f"there is no model {asked.model!r:.80} here: expected one of {names}")
        of = self.models[asked.model]
        if of.kind == "image":
            if asked.image is None or any(part is not None for part in (asked.text, asked.pair, asked.target)):
                raise Refusal(
                    422, f"the model {of.name!r} reads images: give image, a PNG or JPEG file in base64, and no text"
                )
            return of
        if asked.text is None or asked.image is not None:
            raise Refusal(422, f"the model {of.name!r} reads text: give text, and no image")
        count = sum(len(part) for part in (asked.text, asked.pair, asked.target) if part is not None)
        if count > self.limits.characters:
            raise Refusal(
                413, f"the text has {count:,} characters and this server takes {self.limits.characters:,}: shorten it"
            )
        return of

    def _given(self, of: Served, asked: Input) -> Any:
        """What the model is traced with, once it is known that it is not too much."""
        if of.kind == "image":
            return picture(asked.image or "", self.limits.pixels)
        text: Any = asked.text if asked.pair is None else (asked.text, asked.pair)
        tokenizer, most = of.model.tokenizer, of.model.limit()
        count = len(inputs.encode_text(tokenizer, text, most, asked.truncate).tokens)
        if of.kind == "encoder-decoder" and asked.target is not None:
            count += len(inputs.encode_text(tokenizer, asked.target, most, asked.truncate, target=True).tokens)
        if count > self.limits.tokens:
            raise Refusal(
                413,
                f"the text has {count:,} tokens and this server takes {self.limits.tokens:,}: shorten it, or start the "
                "server with a larger --max-tokens",
            )
        return text

    def _trace(self, of: Served, asked: Input, given: Any) -> Trace:
        image = None if asked.image is None else hashlib.sha256(asked.image.encode()).digest()
        key = (of.name, asked.text, asked.pair, asked.target, asked.truncate, image)

        return self.traces.get(key, lambda: traced(of.model, given, asked.target, asked.truncate))


def picture(data: str, pixels: int) -> Any:
    """The image of a request. Its size is read from its head, before anything is unpacked."""
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
