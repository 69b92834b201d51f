"""Turning requests into work for the queue."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.answer import Answer
from attnflow.capture import inputs
from attnflow.errors import InputError
from attnflow.model import Model
from attnflow.server import edits, writing
from attnflow.server.limits import Limits, Refusal
from attnflow.server.queue import Job, Work
from attnflow.server.recent import Recent
from attnflow.server.wire import (
    AnswerRequest,
    EditRequest,
    ExplainRequest,
    Input,
    LeaveOutRequest,
    PathsRequest,
    RowsRequest,
    encoded,
)
from attnflow.trace import Trace
from attnflow.view import document
from attnflow.view.explain import explain, traced

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, eq=False)
class Served:
    """A model and its name in requests. writes: whether it answers prompts."""

    name: str
    model: Model
    kind: str
    writes: bool = False


def served(name: str, model: Model) -> Served:
    """Return a model to serve. It is traced once, so that a model that cannot be explained fails at startup."""
    main = getattr(model.model, "main_input_name", "input")
    if main in ("input_values", "input_features"):
        raise InputError(f"the model {name!r} reads audio: the web app supports text and image models only")
    if main == "pixel_values":
        try:
            from PIL import Image
        except ImportError:
            raise InputError("images need pillow: pip install 'attnflow[models]'") from None
        model.trace(Image.new("RGB", (64, 64), "grey"))
        return Served(name, model, "image")
    if getattr(model.config, "is_encoder_decoder", False):
        model.trace("a", target="a")
        return Served(name, model, "encoder-decoder", writing.can_answer(model))
    model.trace("a")
    return Served(name, model, "text", writing.can_answer(model))


Compute = Callable[[Model, Any, Trace, Job], Mapping[str, Any]]
"""Computes a response from a model, its input and its trace."""


def bytes_of(trace: Trace) -> int:
    """Return the size of a trace, which is nearly all weights."""
    both = [part for part in (trace, trace.encoder) if part is not None]
    tensors = [x for part in both for x in (*(step.weights for step in part.steps), *part.weights.values())]
    return sum(x.numel() * x.element_size() for x in tensors)


class Service:
    """Turns requests into work for the queue."""

    def __init__(self, models: Sequence[Served], limits: Limits) -> None:
        self.models = {each.name: each for each in models}
        self.limits = limits
        self.traces = Recent(limits.traces, limits.trace_bytes, bytes_of)
        self.answers: Recent[Answer] = Recent(limits.answers)

    def known(self) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "kind": each.kind,
                "writes": each.writes,
                "tokens": None if each.kind == "image" else self.tokens(each),
                "characters": None if each.kind == "image" else self.limits.characters,
            }
            for each in self.models.values()
        ]

    def tokens(self, of: Served) -> int:
        own: int | None = of.model.limit()
        return self.limits.tokens if own is None else min(own, self.limits.tokens)

    def explain(self, request: ExplainRequest) -> Work:
        def compute(model: Model, source: Any, trace: Trace, job: Job) -> Mapping[str, Any]:
            return explain(
                model, source, target=request.target, query=request.query, importance=request.importance,
                truncate=request.truncate, progress=job.progress, trace=trace,
                early=lambda page: job.publish(encoded(page.document)),
            ).document  # fmt: skip

        return self._work(request, compute)

    def rows(self, request: RowsRequest) -> Work:
        def compute(_: Model, source: Any, trace: Trace, job: Job) -> Mapping[str, Any]:
            job.progress("rows", 0, 1)
            return document.rows(trace, request.unit, request.query)

        return self._work(request, compute)

    def paths(self, request: PathsRequest) -> Work:
        def compute(_: Model, source: Any, trace: Trace, job: Job) -> Mapping[str, Any]:
            job.progress("paths", 0, 1)
            return document.paths(trace, request.unit, request.query, request.layer, request.token)

        return self._work(request, compute)

    def answer(self, request: AnswerRequest) -> Work:
        of = self._writer(request)
        return lambda job: encoded(writing.page_of(self._answered(of, request, job)))

    def leave_out(self, request: LeaveOutRequest) -> Work:
        of = self._writer(request)
        return lambda job: encoded(writing.without(self._answered(of, request, job), request))

    def edit(self, request: EditRequest) -> Work:
        of = self._checked(request)
        if of.kind != "text" or request.pair is not None:
            raise Refusal(
                422,
                f"the model {of.name!r} cannot edit this input: expected one text and a text model",
            )
        if request.target is not None:
            raise Refusal(422, f"the model {of.name!r} has no decoder: leave target out")
        self._check_characters((request.text, request.replacement))

        def work(job: Job) -> bytes:
            job.progress("model", 0, 1)
            text = self._input(of, request)
            edited = edits.changed(of.model, text, request.word, request.replacement, request.truncate)
            self._input(of, request.model_copy(update={"text": edited}))  # may be longer than the original
            return encoded(edits.edit(of.model, text, edited, request.word, request.truncate))

        return work

    def _answered(self, of: Served, request: AnswerRequest, job: Job) -> Answer:
        return writing.answered(of.model, request, self.limits.tokens, self.answers, job)

    def _work(self, request: Input, compute: Compute) -> Work:
        """Return work that traces the input, or reuses a cached trace, and computes a response from it."""
        of = self._checked(request)
        image = None if request.image is None else hashlib.sha256(request.image.encode()).digest()
        key = (of.name, request.text, request.pair, request.target, request.truncate, image)

        def work(job: Job) -> bytes:
            job.progress("model", 0, 1)
            source = self._input(of, request)
            trace = self.traces.get(key, lambda: traced(of.model, source, request.target, request.truncate))
            return encoded(compute(of.model, source, trace, job))

        return work

    def _checked(self, request: Input) -> Served:
        """Return the model of a request. Refuse invalid requests before they enter the queue."""
        of = self._named(request.model)
        if of.kind == "image":
            if request.image is None or any(part is not None for part in (request.text, request.pair, request.target)):
                raise Refusal(
                    422, f"the model {of.name!r} reads images: give image (a PNG or JPEG file in base64), and no text"
                )
            return of
        if request.text is None or request.image is not None:
            raise Refusal(422, f"the model {of.name!r} reads text: give text, and no image")
        self._check_characters((request.text, request.pair, request.target))
        return of

    def _writer(self, request: AnswerRequest) -> Served:
        """Return the language model of a request, as `_checked` does."""
        of = self._named(request.model)
        if not of.writes:
            raise Refusal(
                422,
                f"the model {of.name!r} does not answer prompts: use /api/explain, or a model that does (see /api/models)",
            )
        self._check_characters((request.text, request.answer))
        return of

    def _named(self, name: str) -> Served:
        if name not in self.models:
            names = ", ".join(map(repr, self.models))
            raise Refusal(404, f"unknown model {name!r:.80}: expected one of {names}")
        return self.models[name]

    def _check_characters(self, texts: Sequence[str | None]) -> None:
        count = sum(len(text) for text in texts if text is not None)
        if count > self.limits.characters:
            raise Refusal(
                413,
                f"the text has {count:,} characters, and this server accepts {self.limits.characters:,}: shorten it",
            )

    def _input(self, of: Served, request: Input) -> Any:
        """Check the size of the input and return it."""
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
                f"the text has {count:,} tokens, and this server accepts {self.limits.tokens:,}: shorten it, or restart "
                "the server with a higher limit",
            )
        return text


def picture(data: str, pixels: int) -> Image.Image:
    """Decode the image of a request. Check its size before unpacking its pixels."""
    from PIL import Image, ImageOps

    if data[:5].lower() == "data:":
        data = data.partition(",")[2]
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)  # some tools wrap lines
    except (binascii.Error, ValueError):
        raise InputError("the image is not base64: expected a PNG or JPEG file, encoded in base64") from None
    large = f"the image has more than {pixels:,} pixels: resize it"
    try:
        image = Image.open(io.BytesIO(raw), formats=("PNG", "JPEG"))
        if image.width * image.height > pixels:
            raise InputError(large)
        return ImageOps.exif_transpose(image).convert("RGB")  # as browsers show it
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InputError(large) from None
    except Exception:  # PIL raises many kinds of errors for damaged files
        raise InputError("the image cannot be read: expected a complete PNG or JPEG file, encoded in base64") from None
