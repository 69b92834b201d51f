"""Corpus jobs: from text files to a folder of Parquet shards, on one machine or on Ray."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from attnflow.corpus.corpus_options import Options, Request
from attnflow.corpus.plan import Shard, plan
from attnflow.errors import InputError, JobError, a_type
from attnflow.files import check_folder_name
from attnflow.jobs.progress import Progress
from attnflow.jobs.store import Record, Store, read_manifest
from attnflow.texts.sources import Corpus, open_corpus

if TYPE_CHECKING:
    from attnflow.corpus.worker import Spec
    from attnflow.model import Model

SHARD_TEXTS = 1024
SHARD_TEXTS_GPU = 4096
SHARD_TEXTS_BY_TEXT = 256
SHARD_PROMPTS = 64
"""The most texts in a shard. A shard takes a few seconds, which is how much work a kill loses."""

SHARD_CELLS = 1 << 24
"""The most scores in a shard, estimated from text lengths: shards in progress are held in memory."""

BYTES_A_TOKEN = 3


class CorpusSums(TypedDict):
    """The summary of a corpus job.

    parts: shards.
    errors: failed texts, by kind.
    resumed: texts finished in earlier runs.
    """

    finished: bool
    parts: int
    texts: int
    tokens: int
    errors: dict[str, int]
    resumed: int
    seconds: float
    output: str


STAGES = {"load": "loading the model", "try": "trying the model on a short text"}
"""Progress messages before the texts are counted."""


def explain_corpus(
    source: str | Path,
    output: str | Path,
    model: str | Path | Model | None = None,
    *,
    methods: str | Sequence[str] | None = None,
    layers: str | int | Iterable[int] = "last",
    query: str | int | None = None,
    residual: float | None = None,
    words: bool = False,
    truncate: bool = False,
    edges: str | None = None,
    normalize: str | None = None,
    answer: int | str | None = None,
    answer_column: str | None = None,
    of: str | None = None,
    answers: bool = False,
    max_new_tokens: int | None = None,
    unit: str | None = None,
    span: str | None = None,
    occurrence: int | None = None,
    chat: bool | None = None,
    text: str | None = None,
    pair: str | None = None,
    id: str | None = None,
    whole_files: bool = False,
    samples: int | None = None,
    resume: bool = False,
    batch_tokens: int | None = None,
    shard_texts: int | None = None,
    ray: bool = False,
    ray_address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    progress: str | Progress = "none",
    **loading: Any,
) -> CorpusSums:
    """Explain every text of an input, and write a folder of Parquet files with one row per text.

    source: a file or folder (.txt with one text per line, .csv, .tsv, .jsonl, .parquet).
    output: the folder to write; files that are already there are kept.
    model: a folder or hub id, or, on one machine, a loaded `Model`; the embedded model by default.
    methods: some of `attnflow.method_table.TEXT_METHODS`; "rollout" by default. With answers=True, some of
        `attnflow.source_methods.METHODS`; by default the one that `Answer.sources` chooses.
    layers: "last", "all", "L1,L6", or numbers from 0, for methods that have layers.
    query: a token (every occurrence is a query), a position, or "all"; None for the natural one.
    residual, words, truncate: as for `Trace.rollout`, `Trace.words` and `Model.trace`. The
        residual weight is 0.5 by default.
    edges, normalize, of: as for `Model.trace` and `Model.gradient`.
    answer: the class or token that methods and edges are about, for all texts; the model's own answer by default.
    answer_column: an input column that has the answer for each text.
    answers: treat texts as prompts, and explain what a language model answers to each.
    max_new_tokens: the most tokens the model writes (40), unless answer or answer_column gives the answer.
    unit: what the values cover in the prompt: "token", "word", "sentence" or "paragraph".
    span, occurrence: the text of a part of the answer to explain, and which of its occurrences, from 1.
    chat: whether prompts go through the chat template; by default if the tokenizer has one.
    text, pair, id: column names.
    whole_files: treat each .txt file as one text.
    samples: use only the first N texts.
    resume: continue an interrupted job that had the same settings; the result is identical to the byte.
    batch_tokens: how many tokens run together.
    shard_texts: the most texts in a shard, which is one output file; a killed job repeats the shards in progress. The
        default is 1,024, or 4,096 on a GPU; 256 if each text needs its own passes, and 64 for prompts.
    ray, ray_address, workers: run on a Ray cluster; by default on a local one with this machine's cores.
    gpus_per_worker: the fraction of a GPU each worker takes, such as 0.25, or the number of GPUs; by default the
        workers share all.
    progress: "auto", "json" or "none".
    loading: more arguments for `attnflow.load`.

    docs/corpus.md lists the columns. A text that fails becomes a row with its error. Returns the last line of the
    manifest, with more about this run.
    """
    progress = Progress(progress) if isinstance(progress, str) else progress
    output = Path(output)
    if not isinstance(source, str | Path):
        raise InputError(f"the input is {a_type(source)}: expected the path of a file or folder with texts")
    request = Request(
        methods, layers, query, residual, words, truncate, edges, normalize, answer,
        answer_column, of, answers, max_new_tokens, unit, span, occurrence, chat, pair,
    )  # fmt: skip
    request.check()
    for name, value in (("ray_address", ray_address), ("workers", workers), ("gpus_per_worker", gpus_per_worker)):
        if value is not None and not ray:
            raise InputError(f"{name}={value!r} requires ray=True: give that too")
    _check_output(output, resume)
    corpus = _opened(source, output, text=text, id=id, pair=pair, whole_files=whole_files, answer=answer_column)
    import attnflow
    from attnflow.corpus import explainer as explain
    from attnflow.corpus import worker as work
    from attnflow.corpus.trial import tried
    from attnflow.model import Model

    started = time.monotonic()
    with ExitStack() as stack:
        stages = stack.enter_context(progress.stages(STAGES))
        place = None
        if ray:
            from attnflow.jobs import cluster

            if isinstance(model, Model):
                raise InputError(
                    "every worker on Ray loads the model itself: give a folder or a hub id instead of a loaded model"
                )
            cluster.check_gpus(gpus_per_worker)
            connection = stack.enter_context(cluster.connected(ray_address))
            place = cluster.placement(connection, workers, loading.get("device"), gpus_per_worker)
            loading["device"] = place.device
        if isinstance(model, Model):
            if loading:
                raise InputError(f"{next(iter(loading))} has no effect on a model that is already loaded: leave it out")
            loaded = model
        else:
            stages("load", 0, 1)
            loaded = attnflow.load(model, **(loading if place is None else {**loading, "device": "cpu"}))
        device = loaded.device.type if place is None else loading["device"]
        checks = explain.checked(loaded)
        together = batch_tokens or (explain.BATCH_TOKENS if device == "cpu" else explain.BATCH_TOKENS_GPU)
        stages("try", 0, 1)
        options = tried(loaded, checks, request.options(explain.layer_count(checks), together), explain.PROBE)
        explain.check_pooled(loaded, options, checks)
        stages.clear()
        most = shard_texts or shard_size(device, options)
        shards = planned(corpus, options, loaded.limit(), most, samples, progress.count)
        gguf = loading.get("gguf_file") or (Path(str(model)).name if str(model).endswith(".gguf") else None)
        settings = _settings(loaded, options, corpus, device, gguf, most, samples)
        if place is not None:
            group = cluster.reserve(connection, place)  # before the store makes a folder: there may be no room
        store = stack.enter_context(_store(output, settings, shards))
        before = sum(record["texts"] for record in store.records.values())
        left = {shard.number: shard for shard in shards.values() if shard.file not in store.records}
        spec = work.Spec({**loading, "model": model}, loaded.name, corpus, options, str(output))
        stack.callback(progress.close)
        if place is None:
            worker = work.Worker(spec, loaded)
            stack.callback(worker.close)
            records = worker.do(left.values(), progress.advance)
        else:
            del loaded
            start = partial(work.on_cluster, _anywhere(spec))
            results = cluster.run(connection, place, group, start, left, progress.warn)
            records = _seen(results, {number: output / shard.file for number, shard in left.items()}, progress)
        try:
            sums = _run(store, shards, records, progress)
        except JobError as e:
            raise JobError(f"{e} with resume=True") from e
    more = {"resumed": before, "seconds": round(time.monotonic() - started, 2), "output": str(output)}
    return cast("CorpusSums", {**sums, **more})


def _check_output(output: Path, resume: bool) -> None:
    if output.exists() and not output.is_dir():
        raise InputError(f"the output {str(output)!r} is a file: give a folder")
    folder = str(output.with_suffix(""))
    check_folder_name(
        output,
        "Parquet files",
        f"pandas.read_parquet({folder!r}) reads it, and export_corpus({folder!r}, 'table.csv') makes one CSV of it",
    )
    lines = read_manifest(output)
    if lines and not resume:
        state, todo = ("finished", "check it") if lines[-1].get("finished") is True else ("begun", "continue it")
        raise InputError(
            f"the folder {str(output)!r} contains a job that is {state}: give resume=True to {todo}, or give another "
            "folder"
        )


def _opened(source: str | Path, output: Path, **options: Any) -> Corpus:
    """Open the input and check it before a model is loaded: columns, formats, no overlap with the output."""
    if Path(source).is_dir() and output.resolve().is_relative_to(Path(source).resolve()):
        raise InputError(
            f"the output {str(output)!r} is inside the input {str(source)!r} and would be read as part of the input: "
            "give a folder outside"
        )
    corpus = open_corpus(source, **options)
    inside = [file for file in corpus.files if Path(file.path).resolve().is_relative_to(output.resolve())]
    if inside:
        raise InputError(
            f"the input {inside[0].name!r} is inside the output {str(output)!r}, which would overwrite it: give "
            "another folder"
        )
    next(plan(corpus, 1, 1, lambda size: 1, samples=1))
    return corpus


def planned(
    corpus: Corpus,
    options: Options,
    limit: int | None,
    shard_texts: int,
    samples: int | None = None,
    count: Callable[[int], None] = lambda texts: None,
) -> dict[int, Shard]:
    """Return the shards of a corpus by number. They depend only on the texts and the settings.

    limit: the most tokens the model takes.
    count: called with the number of texts counted so far.
    """
    columns = len(options.columns)
    many = options.query is not None and not options.query.lstrip("-").isdecimal()  # "all", or a token

    def cells(size: int) -> int:
        tokens = size // BYTES_A_TOKEN + 2
        tokens = tokens if limit is None else min(tokens, limit)
        return columns * tokens * (tokens if many else 1)

    shards = {}
    for shard in plan(corpus, shard_texts, SHARD_CELLS, cells, samples):
        shards[shard.number] = shard
        count(shard.row + shard.count)
    return shards


def shard_size(device: str, options: Options) -> int:
    """Return the default for the most texts in a shard."""
    if options.writing is not None:
        return SHARD_PROMPTS
    if options.is_by_text and not (options.is_together and device != "cpu"):
        return SHARD_TEXTS_BY_TEXT
    return SHARD_TEXTS if device == "cpu" else SHARD_TEXTS_GPU


def _settings(
    model: Model,
    options: Options,
    corpus: Corpus,
    device: str,
    gguf_file: str | None,
    shard_texts: int,
    samples: int | None,
) -> dict[str, Any]:
    """Return the first line of the manifest: the settings that must not change when a job is resumed."""
    import attnflow
    from attnflow.jobs.identity import fingerprint, weights_hash

    return {
        "attnflow": attnflow.__version__,
        "model": model.name,
        "revision": model.revision,
        "gguf_file": gguf_file,
        "class": type(model.model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": device,
        "weights": weights_hash(model),
        "configuration": fingerprint(model),
        "input": corpus.path,
        **{name: getattr(corpus, name) for name in ("text", "id", "pair", "whole_files")},
        **options.settings(),
        "layers": [layer + 1 for layer in options.layers],
        "part_texts": shard_texts,
        "samples": samples,
    }


def _store(output: Path, settings: Mapping[str, Any], shards: Mapping[int, Shard]) -> Store:
    plans = {
        shard.file: {"part": shard.number, "row": shard.row, "texts": shard.count, "digest": shard.digest}
        for shard in shards.values()
    }
    store = Store(output, settings, plans)
    if store.changed:
        store.close()
        raise InputError(
            f"the texts of shard {store.changed[0]} of {str(output)!r} have changed since it was written: give "
            "another folder"
        )
    return store


def _run(store: Store, shards: Mapping[int, Shard], records: Iterator[Record], progress: Progress) -> Record:
    """Record the shards that were missing, and finish the manifest."""

    def sums() -> tuple[int, int, Counter[str]]:
        errors: Counter[str] = Counter()
        for record in store.records.values():
            errors.update(record["errors"])
        return *(sum(record[name] for record in store.records.values()) for name in ("texts", "tokens")), errors

    texts, tokens, errors = sums()
    progress.start(sum(shard.count for shard in shards.values()), texts, tokens, errors.total())
    for record in records:
        failed = sum(record["errors"].values())
        if not store.records and failed == record["texts"]:
            progress.warn(
                f"{f'all {failed:,} texts' if failed != 1 else 'the only text'} of the first shard failed "
                f"({', '.join(record['errors'])}): see its column message"
            )
        store.add(shards[record["part"]].file, record)
        progress.errors += failed
    texts, tokens, errors = sums()
    parts = len(store.records)
    return store.finish({"parts": parts, "texts": texts, "tokens": tokens, "errors": dict(sorted(errors.items()))})


def _anywhere(spec: Spec) -> Spec:
    """Return the spec with absolute paths, which work in any working directory."""
    model = spec.loading["model"]
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())
    return replace(spec, loading={**spec.loading, "model": model}, folder=str(Path(spec.folder).resolve()))


def _seen(records: Iterator[Record], paths: Mapping[int, Path], progress: Progress) -> Iterator[Record]:
    """Yield the records of shards that other machines wrote, after checking that this machine sees their files."""
    for record in records:
        path = paths[record["part"]]
        if not path.exists() or path.stat().st_size != record["bytes"]:
            raise InputError(
                f"a worker wrote {str(path)!r}, but this machine cannot see it: give a folder that all machines of "
                "the cluster share"
            )
        progress.advance(record["texts"], record["tokens"])
        yield record
