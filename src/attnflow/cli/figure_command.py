"""`attnflow figure`: figures for a paper, of texts, of arrays or of saved results."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnflow.cli.options import (
    STAGES,
    AllowPickle,
    Budget,
    Device,
    Dtype,
    Gguf,
    ModelName,
    Of,
    Residual,
    Revision,
    Special,
    Target,
    Truncate,
    TrustRemoteCode,
    Words,
    check_measure,
    check_output,
    check_reads_text,
    progress,
    read_importance,
    read_share,
    read_text,
    start,
)
from attnflow.errors import InputError
from attnflow.files import PICTURES
from attnflow.jobs.progress import Stages
from attnflow.labelled import VIEWS, token_attention
from attnflow.result import TokenAttention
from attnflow.result_files import READERS
from attnflow.selection import read_layers, read_query

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.model import Model

Results = dict[str, TokenAttention]
EXAMPLE = "the key to the cabinets"
ARRAYS = (".npy", ".npz")


class Kind(StrEnum):
    """The figures that can be drawn."""

    graph = "graph"
    layers = "layers"
    compare = "compare"


def figure(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="graph: Figure 1 of the paper, tokens and layers as nodes. layers: Figures 2 and 3, a map of layers and "
            "tokens. compare: the text once per method, shaded."
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="text",
            help="The text, or - to read it from standard input; files of weights (.npy, .npz) or of results that "
            "attnflow saved (.json, .npz). layers draws several texts below each other.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture: .pdf, .svg or .png.")] = Path(
        "figure.pdf"
    ),
    model: ModelName = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="raw, rollout and flow, or some of them, separated by commas; by default, all three. compare of a text "
            "draws all methods.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers to draw: a range such as 1-4, a list such as 1,3, last or all; by default, all, or the last for "
            "compare.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(help="Position or token to explain; by default, the class token, or the last token of a decoder."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            help="For arrays: the tokens, separated by spaces, or a text file with one per line. A .npz file may "
            "contain them as 'tokens'."
        ),
    ] = None,
    width: Annotated[float | None, typer.Option(help="Width of the figure in inches.", show_default=False)] = None,
    font: Annotated[
        str | None,
        typer.Option(
            help="Font family, such as Helvetica or serif; by default, that of your matplotlib settings.",
            show_default=False,
        ),
    ] = None,
    font_size: Annotated[
        float | None,
        typer.Option(
            help="Font size in points; by default, that of your matplotlib settings, or 7.", show_default=False
        ),
    ] = None,
    words: Words = False,
    special: Special = True,
    strongest: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="For graph: draw only the N strongest edges of each query and layer."),
    ] = None,
    residual: Residual = None,
    target: Target = None,
    of: Of = None,
    importance: Budget = None,
    truncate: Truncate = False,
    revision: Revision = None,
    gguf: Gguf = None,
    device: Device = None,
    dtype: Dtype = "auto",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
) -> None:
    """Draw a figure for a paper: the attention graph, layers by tokens, or the methods side by side.

    Examples: attnflow figure graph "the key to the cabinets" --layers 1-4 --width 3.3 -o fig.pdf;
    attnflow figure layers weights.npy --tokens "the old key" --methods rollout,flow -o fig.pdf
    """
    from attnflow.view import sheet

    check_output(output, PICTURES)
    names = VIEWS if methods is None else _methods(methods, kind)
    share = read_share(residual)
    budget = read_importance(importance)
    for option, is_set, its in (
        ("--strongest", strongest is not None, Kind.graph),
        ("--importance", budget is not None, Kind.compare),
        ("--of", of is not None, Kind.compare),
    ):
        if is_set and kind is not its:
            raise InputError(f"{option} belongs to attnflow figure {its.value}: leave it out for {kind.value}")
    texts_or_files = inputs or [EXAMPLE]
    files = [path for path in map(_file, texts_or_files) if path is not None]
    if files and len(files) < len(texts_or_files):
        raise InputError("texts and files together: give only texts, or only files")
    if len(texts_or_files) > 1 and kind is not Kind.layers and not files:
        raise InputError(
            f"{len(texts_or_files)} texts: attnflow figure {kind.value} draws one; quote a text that has spaces"
        )
    with sheet.style(font, font_size):
        if files:
            for option, is_set in (
                ("--model", model is not None),
                ("--target", target is not None),
                ("--of", of is not None),
            ):
                if is_set:
                    raise InputError(f"{option} cannot be combined with files: leave it out, or give a text")
            rows = _of_files(files, names, tokens, 0.5 if share is None else share, kind)
            if kind is Kind.compare:
                _one(layers, max(max(result.layers) for result in rows[0][1].values()) + 1)
            rows = [(label, _chosen(results, layers, words, special)) for label, results in rows]
            page = _draw(kind, rows, _place(query, rows[0][1]), width, strongest)
        else:
            if tokens is not None:
                raise InputError("--tokens names the positions of arrays: leave it out for a text")
            if methods is not None and kind is Kind.compare:
                raise InputError(
                    "attnflow figure compare draws all methods of a text: leave --methods out, or use attnflow figure "
                    "layers"
                )
            start()
            import attnflow

            check_measure(of)
            texts = [read_text(text) for text in texts_or_files]
            with Stages(STAGES) as stages:
                stages("load", 0, 1)
                loaded = attnflow.load(
                    model, revision=revision, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
                    allow_pickle=allow_pickle, gguf_file=gguf,
                )  # fmt: skip
                for text in texts:
                    check_reads_text(loaded, text)
                stages("model", 0, 1)
                options: dict[str, Any] = {"residual": 0.5 if share is None else share}
                if kind is Kind.compare:
                    from attnflow.view.comparison import compare

                    trace = loaded.trace(texts[0], target=target, truncate=truncate)
                    page = compare(
                        loaded, texts[0], query=read_query(query, len(trace.tokens)), layer=_one(layers, trace.layer_count),
                        words=words, special=special, truncate=truncate, trace=trace, importance=budget, of=of,
                        progress=stages, **options,
                    ).plot(width)  # fmt: skip
                else:
                    traced = [
                        _of_text(
                            loaded, text, kind, names, layers, query, words, special, target, truncate, options, stages
                        )
                        for text in texts
                    ]
                    rows = [
                        (text if len(texts) > 1 else "", results)
                        for text, (results, _) in zip(texts, traced, strict=True)
                    ]
                    page = _draw(kind, rows, traced[0][1], width, strongest)
        sheet.save(page, output)
    progress(f"wrote {output}")


def _methods(text: str, kind: Kind) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in VIEWS]
    if unknown:
        instead = "" if kind is Kind.compare else "; attnflow figure compare draws all methods"
        raise InputError(f"--methods {text!r}: expected some of {', '.join(VIEWS)}{instead}")
    return names


def _file(text: str) -> Path | None:
    """Return the path if the text is that of a file with weights or results."""
    path = Path(text)
    if path.suffix.lower() not in (*ARRAYS, *READERS) or any(c.isspace() for c in path.suffix):
        return None
    try:
        there = path.is_file()
    except OSError:  # too long for a path
        return None
    if not there and " " not in text:
        raise InputError(f"{text!r} does not exist: expected a file of weights or results, or a text")
    return path if there else None


def _of_files(
    files: Sequence[Path], names: Sequence[str], tokens: str | None, residual: float, kind: Kind
) -> list[tuple[str, Results]]:
    """Return the results of files: one row per file of weights, or one row of all results of a text."""
    rows: list[tuple[str, Results]] = []
    saved: Results = {}
    for path in files:
        weights, labels = _weights(path)
        if weights is None:
            result = TokenAttention.load(path)
            name = result.method if result.method not in saved else path.stem
            saved[name] = result
        else:
            labels = _tokens(tokens) if tokens is not None else labels
            of_array = {name: token_attention(weights, labels, name, query="all", residual=residual) for name in names}
            rows.append((path.stem if len(files) > 1 else "", of_array))
    if saved and tokens is not None:
        raise InputError("--tokens names the positions of arrays: saved results have their own, so leave it out")
    if saved:
        rows.append(("", saved))
    if len(rows) > 1 and kind is not Kind.layers:
        raise InputError(f"{len(rows)} arrays: attnflow figure {kind.value} draws one")
    return rows


def _weights(path: Path) -> tuple[Any, list[str] | None]:
    """Return the weights of a file of arrays and its tokens; (None, None) for a saved result."""
    if path.suffix.lower() not in ARRAYS:
        return None, None
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content, None
        with content:
            if {"meta", "values"} <= set(content.files):
                return None, None
            labels = [str(token) for token in content["tokens"]] if "tokens" in content.files else None
            arrays = {name: content[name] for name in content.files if name != "tokens"}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
        raise InputError(
            f"cannot read {str(path)!r} ({e}): expected numbers that numpy.save or numpy.savez wrote, no pickled objects"
        ) from None
    if len(arrays) == 1:
        return next(iter(arrays.values())), labels
    if "weights" in arrays:
        return arrays["weights"], labels
    raise InputError(
        f"{str(path)!r} has the arrays {', '.join(arrays) or 'none'}: expected one array, or one that is called weights"
    )


def _tokens(text: str) -> list[str]:
    try:
        path = Path(text)
        if path.is_file():
            return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        pass
    return text.split()


def _chosen(results: Mapping[str, TokenAttention], layers: str | None, words: bool, special: bool) -> Results:
    """Return results with the layers, words and special tokens that the options select."""
    from dataclasses import replace

    chosen: Results = {}
    for name, result in results.items():
        if layers is not None:
            numbers = [result.where(result.queries[0], l)[0] for l in read_layers(layers, max(result.layers) + 1)]
            result = replace(result, values=result.values[numbers], layers=tuple(result.layers[i] for i in numbers))
        result = result.words() if words else result
        chosen[name] = result if special else result.without_special()
    return chosen


def _place(query: str | None, results: Mapping[str, TokenAttention]) -> int | str | None:
    """Return the query of results: the one that the option names, the only one, or that of a decoder or encoder."""
    first = next(iter(results.values()))
    place = read_query(query, len(first.queries))
    if place is not None or len(first.queries) == 1:
        return first.queries[0] if place is None else place
    ahead = any(first.values[:, row, q + 1 :].any() for row, q in enumerate(first.queries))
    return first.queries[0] if ahead else first.queries[-1]


def _one(layers: str | None, depth: int) -> int:
    numbers = read_layers(layers or "last", depth)
    if len(numbers) > 1:
        raise InputError(
            f"--layers {layers!r}: attnflow figure compare draws one layer, such as --layers 3 or --layers last"
        )
    return numbers[0]


def _of_text(
    model: Model, text: str, kind: Kind, names: Sequence[str], layers: str | None, query: str | None, words: bool,
    special: bool, target: str | None, truncate: bool, options: Mapping[str, Any], stages: Stages,
) -> tuple[Results, int | str | None]:  # fmt: skip
    """Return the results of a text by method, and the query."""
    trace = model.trace(text, target=target, truncate=truncate)
    if trace.patches is not None:
        raise InputError(
            f"attnflow figure {kind.value} draws texts: for an image, use attnflow figure compare, or attnflow show "
            f"{text} -o {Path(text).stem}.pdf"
        )
    trace = trace.words() if words else trace
    numbers = read_layers(layers or "all", trace.layer_count)
    place = read_query(query, len(trace.tokens))
    results: Results = {}
    for name in names:
        stages("flow" if name == "flow" else "model", 0, 1)
        own = {key: value for key, value in options.items() if name != "raw"}
        result = getattr(trace, name)("all" if kind is Kind.graph else place, numbers, **own)
        results[name] = result if special else result.without_special()
    if kind is Kind.graph and place is None:
        place = trace.default_query
    return results, place


def _draw(
    kind: Kind, rows: Sequence[tuple[str, Results]], query: int | str | None, width: float | None,
    strongest: int | None,
) -> Figure:  # fmt: skip
    from attnflow.view import figure as pictures

    if kind is Kind.graph:
        return pictures.layered_graph(rows[0][1], query=query, edges=strongest, width=width)
    if kind is Kind.layers:
        one = all(len(result.queries) == 1 for _, results in rows for result in results.values())
        return pictures.layer_maps(rows, query=None if one else query, width=width)
    from attnflow.view.comparison import of_results

    return of_results(rows[0][1], query=query).plot(width)
