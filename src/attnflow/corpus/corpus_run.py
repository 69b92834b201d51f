"""From an input to an output: what `attnflow corpus` does, for Python."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._arrays import indices, positions
from attnflow.cli.options import layer_given
from attnflow.corpus.folder import Folder, state
from attnflow.corpus.plan import plan
from attnflow.corpus.progress import Progress
from attnflow.corpus.sources import open_corpus
from attnflow.errors import InputError
from attnflow.graph import check_residual
from attnflow.receptive import check_mode

if TYPE_CHECKING:
    from attnflow.model import Model

METHODS = ("raw", "rollout", "flow")
PART_TEXTS = 1024
PART_TEXTS_GPU = 4096
"""Of a part, at most: a few seconds of work, which is what a kill loses."""


def explain_corpus(
    source: str | Path,
    output: str | Path,
    model: str | Path | Model | None = None,
    *,
    methods: Sequence[str] = ("rollout",),
    layers: str | int | Iterable[int] = "last",
    query: str | int | None = None,
    residual: float = 0.5,
    receptive_field: str | None = None,
    words: bool = False,
    truncate: bool = False,
    text: str | None = None,
    pair: str | None = None,
    id: str | None = None,
    whole_files: bool = False,
    split: str | None = None,
    samples: int | None = None,
    resume: bool = False,
    batch_tokens: int | None = None,
    part_texts: int | None = None,
    ray: bool = False,
    ray_address: str | None = None,
    workers: int | None = None,
    progress: str | Progress = "none",
    **loading: Any,
) -> dict[str, Any]:
    """Explains every text of an input, into a folder of Parquet files with a row for each; docs/corpus.md has the columns.

    source: a file or folder (.txt with a text a line, .csv, .tsv, .jsonl, .parquet, .arrow), a dataset that Hugging Face
        datasets saved, or ``hf://datasets/OWNER/NAME``. output: a folder; what is there already is kept.
    model: a folder or hub id, or, on one machine, a loaded `Model`; the embedded one by default.
    methods: some of "raw", "rollout", "flow". layers: "last", "all", "L1,L6", or numbers from 0.
    query: a token, wherever it stands in a text, or a position; "all"; None for the natural one.
    residual, receptive_field, words, truncate: as for `Trace.rollout`, `Trace.words` and `Model.trace`.
    text, pair, id: columns. whole_files: each .txt file is one text. split: of a dataset. samples: the first so many.
    resume: go on where a job with the same settings was cut off; the result is the same to the byte.
    batch_tokens: how many tokens run together. part_texts: texts of a part of the output, at most; what is in work when a
        job is killed is done again. By default 1,024, and 4,096 on a GPU.
    ray, ray_address, workers: on a Ray cluster, by default on one of this machine's cores.
    progress: "auto", "json" or "none". loading: more arguments for `attnflow.load`.

    Returns the last line of the manifest: texts, tokens, parts, and errors by kind; with how many were there before, and
    the seconds it took. A text that fails is a row with its error.
    """
    shown = Progress(progress) if isinstance(progress, str) else progress
    output = Path(output)
    asked_for = methods.split(",") if isinstance(methods, str) else list(methods)
    if not isinstance(source, str | Path):
        raise InputError(
            f"the input is a {type(source).__name__}: expected the path of a file or folder with the texts"
        )
    for name in asked_for or ("",):
        if name not in METHODS:
            raise InputError(f"method {name!r}: expected some of {', '.join(METHODS)}, with commas between them")
    methods = tuple(name for name in METHODS if name in asked_for)
    check_residual(residual)
    check_mode(receptive_field)
    if (ray_address is not None or workers is not None) and not ray:
        raise InputError(f"--{'workers' if ray_address is None else 'ray-address'} goes with --ray: give that too")
    if output.exists() and not output.is_dir():
        raise InputError(f"the output {str(output)!r} is a file: give a folder")
    there = state(output)
    if there is not None and not resume:
        raise InputError(
            f"the folder {str(output)!r} holds a job that is {there}: give --resume to "
            + ("go on with it" if there == "begun" else "check it")
            + ", or another folder"
        )
    if Path(source).is_dir() and output.resolve().is_relative_to(Path(source).resolve()):
        raise InputError(
            f"the output {str(output)!r} lies in the input {str(source)!r}, and would be read as a part of it: give a "
            "folder outside"
        )
    corpus = open_corpus(source, text=text, id=id, pair=pair, whole_files=whole_files, split=split)
    inside = [file for file in corpus.files if Path(file.path).resolve().is_relative_to(output.resolve())]
    if inside:
        raise InputError(
            f"the input {inside[0].name!r} lies in the output {str(output)!r}, which would write over it: give another "
            "folder"
        )
    next(plan(corpus, 1, 1, lambda size: 1, samples=1))  # columns and formats, before a model is loaded
    import attnflow
    from attnflow.corpus import explainer as explain
    from attnflow.corpus import job
    from attnflow.model import Model

    started = time.monotonic()
    with ExitStack() as stack:
        spread = None
        if ray:
            from attnflow.corpus import cluster

            if isinstance(model, Model):
                raise InputError("on Ray each worker loads its own model: give a folder or a hub id")
            connected = stack.enter_context(cluster.connected(ray_address))
            spread = cluster.shape(connected, workers, loading.get("device"))
            loading["device"] = "cuda" if spread.gpus else "cpu"  # of which a worker sees only its own
        given = {**loading, "model": model}
        if isinstance(model, Model):
            if loading:
                raise InputError(
                    f"{next(iter(loading))}: expected nothing of the kind with a model that is loaded already"
                )
            loaded = model
        else:
            loaded = attnflow.load(**(given if spread is None else {**given, "device": "cpu"}))
        device = loaded.device.type if spread is None else loading["device"]
        count = explain.layer_count(explain.checked(loaded))
        asked = None if query is None else str(query)
        wanted = explain.Wanted(
            methods, _layers(layers, count), asked, residual, receptive_field, words, truncate,
            batch_tokens or (explain.BATCH_TOKENS if device == "cpu" else explain.BATCH_TOKENS_GPU),
        )  # fmt: skip
        part_texts = part_texts or (PART_TEXTS if device == "cpu" else PART_TEXTS_GPU)
        parts = job.planned(corpus, wanted, loaded.limit(), part_texts, samples, shown.planned)
        gguf = loading.get("gguf_file") or (Path(str(model)).name if str(model).endswith(".gguf") else None)
        folder = Folder(output, job.settings(loaded, wanted, corpus, device, gguf, part_texts, samples), parts)
        stack.callback(folder.close)
        before = sum(record["texts"] for record in folder.done.values())
        spec = job.Spec(given, loaded.name, corpus, wanted, str(output))
        stack.callback(shown.close)
        if spread is None:
            last = job.run_here(folder, parts, spec, loaded, shown)
        else:
            del loaded  # the workers load their own
            last = cluster.run(folder, parts, cluster.anywhere(spec), shown, connected, spread)
    return {**last, "resumed": before, "seconds": round(time.monotonic() - started, 2), "output": str(output)}


def _layers(given: str | int | Iterable[int], count: int) -> tuple[int, ...]:
    if given == "all":
        return tuple(range(count))
    if isinstance(given, str):
        return tuple(sorted({layer_given(one.strip(), count, "last or all") for one in given.split(",")}))
    return tuple(sorted(set(indices(positions(given, "layer"), count, "layer"))))
