"""A model that can be explained: any attention model of transformers or plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

import torch

from attnflow._arrays import indices, positions
from attnflow.answer import Answer
from attnflow.answering import TOKENS, Messages, Reading, answer_many, answer_one, is_several
from attnflow.capture import hub
from attnflow.capture.generate import Progress
from attnflow.capture.inputs import Encoded, runs_alone
from attnflow.capture.pooling import Pooling
from attnflow.capture.runner import Runner
from attnflow.capture.sentence_folder import is_sentence_transformer, pooling_of
from attnflow.edges import BY_LAYERS, traced
from attnflow.errors import InputError, a_type
from attnflow.importance import blank_out, gradient, integrated_gradients, shapley
from attnflow.importance.question import many
from attnflow.long import LINEAR, LinearTrace, trace_linear
from attnflow.selection import Queries, Query
from attnflow.similarity import Similarity, similarity_of
from attnflow.trace import Trace
from attnflow.version import __version__

if TYPE_CHECKING:
    from attnflow.view.page import Page

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

BATCH = 16
"""The number of texts that run together, padded to the longest of them."""

MISSING = ("keep", "normalize", "self")

EMBEDDED = "verb-number"


def load(
    model: str | Path | None = None,
    *,
    revision: str | None = None,
    device: str | hub.DeviceMap | None = None,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    gguf_file: str | None = None,
) -> Model:
    """Load a model from the Hugging Face hub or a folder, with its tokenizer or processor, ready to be traced.

    model: a folder written by ``save_pretrained``, or the id of a model on the hub; caches and ``HF_HUB_OFFLINE`` are
        respected. The class is the one named in the configuration, so classification and language-model heads are loaded
        too. For a sentence-transformers folder (modules.json) it is the bare transformer with its pooling. The default is a
        verb-number model of the paper's architecture, which is part of the package.
    revision: branch, tag or commit on the hub.
    device: for example "cpu", "cuda", "cuda:1" or "mps"; the default is the first GPU if there is one. "auto" spreads the
        layers over all GPUs, then memory, then disk, like ``device_map="auto"`` of transformers. A device map such as
        {"model.layers.0": 0, …, "lm_head": "cpu"} says where each part goes. Both need accelerate.
    dtype: "auto" uses the dtype of the checkpoint; or "float32", "float16", "bfloat16", "float64".
    trust_remote_code: run code that comes with the model. Keep it False unless you have read that code.
    allow_pickle: also accept PyTorch files (pytorch_model.bin), through torch's weights-only reader, which runs no code in
        them. False accepts only safetensors.
    gguf_file: the name of a GGUF file in the folder or repository; ``model`` may also be the path of one.
    """
    source = model
    if source is None:
        if revision is not None or gguf_file is not None:
            raise InputError("revision and gguf_file need a model: the embedded one has neither")
        source = embedded_folder()
    loaded = hub.fetch(source, revision, device, dtype, trust_remote_code, allow_pickle, gguf_file)
    if model is None:
        return Model(loaded.model, loaded.processor, EMBEDDED, f"attnflow {__version__}")
    return Model(loaded.model, loaded.processor, loaded.name, loaded.revision, loaded.pooling)


def embedded_folder() -> Path:
    return Path(__file__).parent / "paper" / EMBEDDED


def wrap(
    model: torch.nn.Module, processor: Any = None, *, name: str | None = None, pooling: str | None = None
) -> Model:
    """Wrap a model from transformers or plain PyTorch, ready to be traced.

    model: any module. It is put into evaluation mode. The attention implementation of a transformers model is wrapped in a
        function that does nothing unless a trace is running.
    processor: the model's tokenizer, image processor or feature extractor, or a processor with several of these.
    name: the name of the model in results; by default its hub id, or the last part of its folder.
    pooling: how states are pooled to the embedding of a text, for models that do so: "mean", "cls", "lasttoken",
        "weightedmean", "mean_sqrt_len_tokens" or "max". A SentenceTransformer brings its own pooling and tokenizer.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is {a_type(model)}: expected a torch module; load() takes a path or a hub id")
    if processor is not None and not callable(processor):
        raise InputError(
            f"processor is {a_type(processor)}: expected a tokenizer or processor object, such as "
            "AutoTokenizer.from_pretrained(…); load() loads both by name"
        )
    if is_sentence_transformer(model):
        if processor is not None or pooling is not None:
            raise InputError(
                "a SentenceTransformer brings its own tokenizer and pooling: leave processor and pooling out"
            )
        inner, tokenizer, own = pooling_of(model)
        return Model(inner, tokenizer, name, pooling=own)
    return Model(model, processor, name, pooling=None if pooling is None else Pooling((pooling,)))


def _refuse(options: Mapping[str, Any], sentence: str) -> None:
    """Refuse the first of these options that was given."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise InputError(sentence.format(name=name))


def _with_autograd(function: CallableT) -> CallableT:
    """Return the same function with autograd on, even in inference mode, whose tensors cannot be differentiated."""

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return cast(CallableT, inside)


def _read_once(queries: Any) -> Any:
    """Return an iterator as a list, so that all texts can use it."""
    return list(queries) if isinstance(queries, Iterator) else queries


class TraceOptions(TypedDict, total=False):
    """The options of `Model.trace` that do not change the type of its result."""

    target: str | None
    heads: str | Iterable[int]
    keep_heads: bool | Iterable[int]
    missing: str
    truncate: bool
    queries: Queries | None
    layers: Sequence[int] | None
    edges: str | None
    normalize: str | None
    answer: Any
    of: str


class AnswerOptions(TypedDict, total=False):
    """The options of `Model.answer` that do not change the type of its result."""

    max_new_tokens: int
    documents: Mapping[str, str] | None
    system: str | None
    cache: Any
    interpret_special: bool
    image: Any
    progress: Progress | None
    streamer: Any


class Model(Runner):
    """A wrapped model. `trace` runs it once and returns what attention did; several threads may call it at once."""

    @overload
    def trace(
        self, text: list[Any], *, memory: Literal["graph"] = "graph", **options: Unpack[TraceOptions]
    ) -> list[Trace]: ...
    @overload
    def trace(
        self, text: list[Any], *, memory: Literal["linear"], **options: Unpack[TraceOptions]
    ) -> list[LinearTrace]: ...
    @overload
    def trace(self, text: Any, *, memory: Literal["linear"], **options: Unpack[TraceOptions]) -> LinearTrace: ...
    @overload
    def trace(self, text: Any, *, memory: Literal["graph"] = "graph", **options: Unpack[TraceOptions]) -> Trace: ...
    @_with_autograd
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
        queries: Queries | None = None,
        layers: Sequence[int] | None = None,
        edges: str | None = None,
        normalize: str | None = None,
        answer: Any = None,
        of: str = "logit",
    ) -> Trace | LinearTrace | list[Trace] | list[LinearTrace]:
        """Run the model once and return a `Trace`; for a list of texts, run padded batches and return a list of traces.

        text: a text; a pair of texts as a tuple; for a vision-language model a pair of a text and an image (PIL, array or a
            Path); an image (PIL, array, path or pixel values) for models that take one; or a dict of tensors, as the
            model's forward takes them, for example {"input_features": …, "decoder_input_ids": …} of a sound.
        target: for encoder-decoders, the text that the decoder writes; the default is the model's own greedy answer.
        heads: how to reduce heads: "mean", "max", "min" or a list of heads.
        keep_heads: True or a list of layers, for which all heads are kept in ``trace.weights``.
        missing: for models with attention sinks, whose rows sum to less than one: "keep" keeps them so, "normalize" divides
            by the sum, "self" gives the rest to the position itself.
        truncate: cut texts that are longer than the model takes, instead of refusing them.
        memory: "graph" keeps one matrix per layer. "linear" keeps only queries and keys, and explains ``queries`` at
            ``layers`` by raw attention and rollout, for contexts whose matrices would not fit. It takes the edges "mean",
            "head-norm" and "projection", and by gradients "attention-gradient" and "answer". For the last two, layers run
            again one by one.
        queries, layers: for memory="linear": the positions and layers to explain; by default the last of each. An item of
            ``queries`` may be a mapping {position: weight}, one row of several positions, used as given: a span at the cost
            of one position.
        edges: what an edge weighs instead of its attention, for example "value-norm", "alti" or "attention-gradient":
            `attnflow.edges.EDGES` lists them all.
        normalize: see `attnflow.edges.reweighed`.
        answer, of: for edges by gradients, what is differentiated, as in `gradient`, with the logit as the default.
        """
        if memory not in ("graph", "linear"):
            raise InputError(f'memory={memory!r}: expected "graph" or "linear"')
        about = {"answer": answer, "of": None if of == "logit" else of}
        if edges is not None:
            others: dict[str, Any] = {"target": target, "keep_heads": keep_heads}
            others["heads"] = None if heads == "mean" else heads
            if memory == "linear":
                others["missing"] = None if missing == "keep" else missing
            else:
                others |= {"queries": queries, "layers": layers}
            _refuse(others, f"{{name}} does not work with edges={edges!r}: leave one of them out")
            if memory == "linear" and edges in LINEAR and edges not in BY_LAYERS:
                _refuse(
                    about,
                    f'{{name}} does not work with edges={edges!r} and memory="linear", which are about no answer: '
                    'leave it out, or trace with memory="graph"',
                )
        else:
            _refuse(
                {"normalize": normalize, **about},
                "{name} needs edges, for example edges='attention-gradient'",
            )
        if edges is not None and memory == "graph":
            options: dict[str, Any] = {"of": of, "missing": missing, "truncate": truncate}
            traces = [
                Trace.of(traced(self, item, edges, normalize, answer=label, **options))
                for item, label in zip(*many(text, answer), strict=True)
            ]
            return traces if isinstance(text, list) else traces[0]
        if missing not in MISSING:
            raise InputError(f"missing={missing!r}: expected one of {', '.join(map(repr, MISSING))}")
        if memory == "linear":
            matrices = {"target": target, "keep_heads": keep_heads}
            matrices["missing"] = None if missing == "keep" else missing
            _refuse(matrices, '{name} does not work with memory="linear": leave it out, or trace with memory="graph"')
        if memory == "graph" and (queries is not None or layers is not None):
            raise InputError('queries and layers need memory="linear"; here, give query= to raw(), rollout() or flow()')
        self.check_evaluating()
        many_texts = isinstance(text, list)
        if many_texts and not text:
            return []
        if many_texts and target is not None:
            raise InputError("target needs a single text: trace encoder-decoders one text at a time")
        items = text if many_texts else [text]
        encoded = [self.encode(item, target, truncate) for item in items]
        reduce = self._head_reduction(heads, encoded[0])
        batches = [encoded[i : i + BATCH] for i in range(0, len(encoded), BATCH)]
        if memory == "linear":
            queries = queries if queries is None or isinstance(queries, Mapping) else _read_once(queries)
            layers = None if layers is None else positions(layers, "layer")
            together = [some for batch in batches for some in self._together(batch)]
            labels: list[Any] = [None] * len(together)
            if edges in BY_LAYERS:
                together, labels = [[one] for one in encoded], many(text, answer)[1]
            linear = [
                trace
                for some, label in zip(together, labels, strict=True)
                for trace in trace_linear(self, some, reduce, queries, layers, edges, normalize, answer=label, of=of)
            ]
            return linear if many_texts else linear[0]
        keep = keep_heads if isinstance(keep_heads, bool) else frozenset(positions(keep_heads, "layer"))
        traces = [trace for batch in batches for trace in self._trace(batch, reduce, keep, missing)]
        return traces if many_texts else traces[0]

    def _head_reduction(self, heads: str | Iterable[int], encoded: Encoded) -> str | list[int]:
        reduce = heads if isinstance(heads, str) else positions(heads, "head")
        if isinstance(reduce, str) and reduce not in ("mean", "max", "min"):
            raise InputError(f'heads={heads!r}: expected "mean", "max", "min" or a list of heads')
        return reduce if isinstance(reduce, str) else indices(reduce, self.verify(encoded).heads, "head")

    def _trace(
        self, encoded: list[Encoded], reduce: str | list[int], keep: bool | frozenset[int], missing: str
    ) -> list[Trace]:
        traces = []
        for some in self._together(encoded):
            batch = self.run_batch(some, self.verify(some[0]), reduce, keep)
            traces += [Trace.of(batch.passed(number, missing)) for number in range(len(some))]
        return traces

    def _together(self, encoded: list[Encoded]) -> list[list[Encoded]]:
        """Return these inputs as batches: all together, or one by one if padding would change what the model does."""
        checked = self.verify(encoded[0])
        alone = checked.padding is False or "input_ids" not in encoded[0].tensors or bool(checked.stack.cross)
        alone = alone or any(runs_alone(one.tensors) for one in encoded)
        alone = alone or self.stretching.changes([len(one.tokens) for one in encoded])
        return [[one] for one in encoded] if alone else [encoded]

    @overload
    def answer(
        self, prompt: str | Messages | Sequence[int] | torch.Tensor, *, answer: str | Sequence[int] | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer: ...  # fmt: skip
    @overload
    def answer(
        self, prompt: list[str] | list[Messages] | list[torch.Tensor], *,
        answer: Sequence[str | Sequence[int]] | None = None, **options: Unpack[AnswerOptions],
    ) -> list[Answer]: ...  # fmt: skip
    @_with_autograd
    def answer(
        self,
        prompt: Any,
        *,
        answer: Any = None,
        max_new_tokens: int = TOKENS,
        documents: Mapping[str, str] | None = None,
        system: str | None = None,
        cache: Any = None,
        interpret_special: bool = False,
        image: Any = None,
        progress: Progress | None = None,
        streamer: Any = None,
    ) -> Answer | list[Answer]:
        """Return the answer of a language model to a prompt, ready to be explained: which parts of the prompt it came from.

        prompt: a text; messages, such as [{"role": "user", "content": "…"}], for the chat template; or token numbers. A
            list of texts, or of lists of messages, means several prompts and returns a list of answers.
        answer: the answer to explain, as a text or as token numbers; by default the model writes it, greedily.
        max_new_tokens: the most tokens that the model writes.
        documents: texts by name, put in front of a text, or of the user's last message.
        system: a system message, put in front of the others.
        cache: the key-value cache of the generation that wrote ``answer``, given as token numbers, after this prompt; it is
            only read. A cache of transformers, or the keys and values of each layer.
        interpret_special: whether special tokens written out in a text ("<|im_start|>") act as special tokens; otherwise
            such texts are refused.
        image: for a vision-language model, an image that goes with the prompt: PIL, array, or the path of a file. It is put
            in front of the text, or of the user's last message; `Answer.patches` shows what its parts gave.
        progress: called with a stage, the amount done and the total.
        streamer: passed to the model's ``generate``, such as a ``transformers.TextStreamer``, to show the text as it is
            written.
        """
        reading = Reading(documents, system, interpret_special, image)
        if is_several(prompt):
            for name, value in (("cache", cache), ("streamer", streamer), ("image", image)):
                if value is not None:
                    raise InputError(f"{name} needs a single prompt: give one at a time")
            return answer_many(self, prompt, answer, max_new_tokens, reading, progress)
        return answer_one(self, prompt, answer, max_new_tokens, reading, cache, progress, streamer)

    # What a token is worth to the answer: functions of `attnflow.importance`, whose first argument is this model.
    blank_out = blank_out
    gradient = gradient
    integrated_gradients = integrated_gradients
    shapley = shapley

    def similarity(self, first: str, second: str, *, truncate: bool = False) -> Similarity:
        """Return how similar a sentence-embedding model finds two texts, ready to be explained: which words make them so.

        first, second: the texts.
        truncate: cut texts that are longer than the model takes.

        The embeddings are compared by the measure named in the model's files, or by the cosine. See `Similarity`.
        """
        return similarity_of(self, first, second, truncate)

    def explain(
        self, text: Any, *, target: str | None = None, query: Query = None,
        importance: str | float | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        truncate: bool = False, residual: float = 0.5, progress: Progress | None = None,
    ) -> Page:  # fmt: skip
        """Return the interactive page of a text: notebooks display it, and ``.save("page.html")`` writes a file that opens
        offline. See `attnflow.view.explain`."""
        from attnflow.view.explain import explain

        return explain(
            self,
            text,
            target=target,
            query=query,
            importance=importance,
            truncate=truncate,
            residual=residual,
            progress=progress,
        )
