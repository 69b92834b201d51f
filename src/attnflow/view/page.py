"""The interactive page: one self-contained HTML file with its document, style and script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError
from attnflow.files import write_whole
from attnflow.method_table import LAYERED
from attnflow.view import document

if TYPE_CHECKING:
    from attnflow.result import TokenAttention
    from attnflow.selection import Query
    from attnflow.trace import Trace

WEB = Path(__file__).parent / "web"
"""A script and a style sheet for each kind of page; `make web` bundles them from the sources in web/."""

HEIGHT = 760
"""Height of a page in a notebook cell, in pixels; users can resize it."""


@dataclass(frozen=True, eq=False)
class Page:
    """The interactive page of one text. It displays itself in a notebook; `save` writes a self-contained file.

    document: the contents of the page, as JSON.
    """

    document: Mapping[str, Any]

    def __repr__(self) -> str:
        text = self.document["text"]
        shown = text if len(text) <= 40 else text[:39] + "…"
        tokens = len(self.document["units"]["subwords"]["tokens"])
        return f"Page({len(self.document['layers'])} layers, {tokens} tokens, {shown!r})"

    def html(self) -> str:
        """Return the HTML file."""
        return file_of(f"{title_of(self.document['text'], 60)} · attnflow", self.document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .html file. The write is atomic."""
        write_file(path, self.html())

    def notebook_html(self) -> str:
        """Return the page in a frame for a notebook cell."""
        return framed(self.html())

    _repr_html_ = notebook_html


def of_trace(trace: Trace, **options: Any) -> Page:
    """Return the page of a trace, without importance. options: as in `attnflow.view.document.of_trace`."""
    reason = "Gradient and blank-out need the model: use model.explain(text)."
    return Page(document.of_trace(trace, **{"missing": reason, **options}))


def of_result(result: TokenAttention) -> Page:
    """Return the page of the trace that a result came from, opened at the result; without a trace, of its values only.

    The page also has only the values if it would compute different ones from the trace: if they are normalised, start above
    the input, use a receptive field, or are of layers with other positions than the last.
    """
    recipe, trace = result.recipe, result.source
    other = "normalized" in result.provenance.get("steps", ()) or recipe.get("normalize") or recipe.get("start")
    other = other or recipe.get("receptive_field") or result.method not in LAYERED
    if trace is None or other or not set(result.layers) <= set(document.shown_layers(trace)):
        return Page(document.of_result(result))
    selected = {
        "layer": result.layers[-1],
        "method": result.method,
        "unit": "subwords",
        "special": "without_special" not in result.provenance.get("steps", ()),
    }
    query = None if "query_weights" in result.provenance else list(result.queries[:1])
    return of_trace(trace, query=query, residual=recipe.get("residual", 0.5), state=selected)


def of_weights(
    weights: Any,
    tokens: Sequence[str] | None = None,
    *,
    text: str | None = None,
    query: Query = None,
    residual: float = 0.5,
) -> Page:
    """Return the page of attention weights ``[layer, head, query, key]`` of one text, or of transformers' tuple for it.

    tokens: names of the positions; by default, numbers.
    text: the text that they come from.
    query: the position to explain first; by default, the last if no position attends to a later one, otherwise the first.
    """
    try:
        import torch
    except ImportError:
        raise InputError("the page of arrays needs torch: pip install 'attnflow[models]'") from None
    from attnflow._arrays import to_numpy
    from attnflow.capture.passes import Step
    from attnflow.graph import weight_layers
    from attnflow.trace import Trace

    layers = [to_numpy(layer) for layer in weight_layers(weights)]
    layers = [layer[0] if layer.ndim == 4 and len(layer) == 1 else layer for layer in layers]  # a batch of one
    sizes = {layer.shape[-2:] for layer in layers}
    if len(sizes) > 1 or any(layer.ndim != 3 for layer in layers) or len(set(next(iter(sizes)))) > 1:
        raise InputError(
            f"weights have shapes {', '.join(str(layer.shape) for layer in layers[:3])}: expected [head, query, key] in "
            "every layer, with as many queries as keys, for one text"
        )
    n = layers[0].shape[-1]
    names = [str(i) for i in range(n)] if tokens is None else [str(token) for token in tokens]
    if len(names) != n:
        raise InputError(f"{len(names)} tokens for weights of {n} positions: expected one token per position")
    heads = [torch.as_tensor(layer.astype("float32")) for layer in layers]
    ahead = any(float(layer.triu(1).max()) > 0 for layer in heads)
    trace = Trace(
        tokens=tuple(names),
        special=(False,) * n,
        word_ids=tuple(range(n)),
        word_texts=tuple(names),
        text=" ".join(names) if text is None else text,
        steps=tuple(Step(layer.mean(0)) for layer in heads),
        ends=tuple(range(len(heads))),
        default_query=0 if ahead else n - 1,
        provenance={"model": "attention weights", "captured": "given as arrays", "heads": "mean"},
        weights=dict(enumerate(heads)),
    )
    reason = "Gradient and blank-out need the model, and this page was made from attention weights only."
    return Page(document.of_trace(trace, query=query, residual=residual, missing=reason))


def application(models: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of the web app: a form for texts and models."""
    return file_of("attnflow", {"format": "attnflow-app", "models": list(models)}, "app", connect="'self'")


def title_of(text: str, most: int) -> str:
    """Return the beginning of a text in one line, as valid UTF-8."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()[:most]


def write_file(path: str | os.PathLike[str], content: str) -> None:
    """Write a .html file. The write is atomic."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{str(path)!r} has the extension {path.suffix!r}: expected .html, for a page")
    write_whole(path, lambda beside: beside.write_text(content, encoding="utf-8"))


def framed(file: str) -> str:
    """Return an HTML file as a frame for a notebook cell."""
    # A sandboxed frame isolates the page from other pages, from the notebook's style, and from its contents.
    return (
        f'<iframe title="attnflow" sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(file)}" '
        f'style="width:100%;height:{HEIGHT}px;border:0;resize:vertical;overflow:auto"></iframe>'
    )


def file_of(title: str, content: Mapping[str, Any], kind: str = "page", connect: str = "'none'") -> str:
    """Return a self-contained HTML file.

    content: the document, which the page's script reads as JSON.
    kind: the bundle in `WEB` that shows it.
    connect: the connect-src of the Content-Security-Policy.
    """
    script, style = _bundle(kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    # an escaped "<" cannot end the script element, whatever the tokens are
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n"
        '</head>\n<body>\n<main id="attnflow" aria-busy="true"><p class="loading">Reading the document …</p></main>\n'
        "<noscript>This page needs JavaScript.</noscript>\n"
        f'<script type="application/json" id="attnflow-document">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


@cache
def _bundle(kind: str) -> tuple[str, str]:
    script, style = ((WEB / f"{kind}.min.{suffix}").read_text(encoding="utf-8") for suffix in ("js", "css"))
    return script, style
