"""The interactive page: one self-contained file of HTML with its document, style and script."""

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
from attnflow.view import document

if TYPE_CHECKING:
    from attnflow.result import TokenAttention
    from attnflow.selection import Query
    from attnflow.trace import Trace
    from attnflow.view.pair import Pair

WEB = Path(__file__).parent / "web"
"""A script and a style for each kind of page, which `make web` bundles of the sources in web/ beside src/."""

HEIGHT = 760
"""The height of a page in a notebook's cell, in pixels; a reader can drag its corner."""


@dataclass(frozen=True, eq=False)
class Page:
    """One text, explained, as a page to look at. In a notebook it shows itself; `save` makes a file that opens offline.

    document: all that the page shows, as JSON holds it.
    """

    document: Mapping[str, Any]

    def __repr__(self) -> str:
        text = self.document["text"]
        shown = text if len(text) <= 40 else text[:39] + "…"
        tokens = len(self.document["units"]["subwords"]["tokens"])
        return f"Page({len(self.document['layers'])} layers, {tokens} tokens, {shown!r})"

    def html(self) -> str:
        """The file's content."""
        return file_of(f"{title_of(self.document['text'], 60)} · attnflow", self.document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .html file, whole or not at all."""
        write_file(path, self.html())

    def beside(self, other: Page) -> Pair:
        """This page and another on one, aligned word by word, with what differs shaded: two texts, or a text by two models.

        model.explain("It was not good.").beside(model.explain("It was good.")).save("pair.html")
        """
        from attnflow.view.pair import Pair

        return Pair(self, other)

    def notebook_html(self) -> str:
        """The page in a frame, for a notebook's cell."""
        return framed(self.html())

    _repr_html_ = notebook_html


def of_trace(trace: Trace, **options: Any) -> Page:
    """The page of a trace, without importance, which needs the model; options as in `attnflow.view.document.of_trace`."""
    reason = "Gradients and blank-out need the model: model.explain(text) shows them too."
    return Page(document.of_trace(trace, **{"missing": reason, **options}))


def of_result(result: TokenAttention) -> Page:
    """The page of the trace that a result was computed from, opened where the result is; else of its values alone.

    Its values alone also where the page would show others from the trace: normalised ones, rollout from a layer on, a
    measured residual, sinks that stay, and layers whose positions are not the last one's.
    """
    recipe, trace = result.recipe, result.source
    other = "normalized" in result.provenance.get("steps", ()) or recipe.get("normalize") or recipe.get("start")
    other = other or recipe.get("sinks") or recipe.get("residual") == "measured"
    if trace is None or other or not set(result.layers) <= set(document.shown_layers(trace)):
        return Page(document.of_result(result))
    selected = {
        "layer": result.layers[-1],
        "method": result.method,
        "unit": "subwords",
        "special": "without_special" not in result.provenance.get("steps", ()),
        "field": recipe.get("receptive_field") or "",
    }
    return of_trace(trace, query=list(result.queries[:1]), residual=recipe.get("residual", 0.5), state=selected)


def of_weights(
    weights: Any,
    tokens: Sequence[str] | None = None,
    *,
    text: str | None = None,
    query: Query = None,
    residual: float = 0.5,
) -> Page:
    """The page of attention weights alone, ``[layer, head, query, key]``, without any model.

    tokens: their names; numbers if not given. text: what they are of. query: the position to explain first; the last where
    no position looks ahead, else the first.
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
    sizes = {layer.shape[-2:] for layer in layers}
    if len(sizes) > 1 or any(layer.ndim != 3 for layer in layers) or len(set(next(iter(sizes)))) > 1:
        raise InputError(
            f"weights have shapes {', '.join(str(layer.shape) for layer in layers[:3])}: expected [head, query, key] in "
            "every layer, with as many queries as keys, of one text"
        )
    n = layers[0].shape[-1]
    names = [str(i) for i in range(n)] if tokens is None else [str(token) for token in tokens]
    if len(names) != n:
        raise InputError(f"{len(names)} tokens for weights of {n} positions: expected one for each")
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
    reason = "Gradients and blank-out need the model, and this page was made of its weights of attention alone."
    return Page(document.of_trace(trace, query=query, residual=residual, missing=reason))


def application(models: Sequence[Mapping[str, Any]]) -> str:
    """The page of the app: a form for texts and models, whose answers come from the server that sent it."""
    return file_of("attnflow", {"format": "attnflow-app", "models": list(models)}, "app", connect="'self'")


def title_of(text: str, most: int) -> str:
    """The beginning of a text in one line, as UTF-8 can hold it."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()[:most]


def write_file(path: str | os.PathLike[str], content: str) -> None:
    """Write a .html file, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{str(path)!r} has the extension {path.suffix!r}: expected .html, for a page")
    write_whole(path, lambda beside: beside.write_text(content, encoding="utf-8"))


def framed(file: str) -> str:
    """A file of HTML as a frame in a notebook's cell."""
    # A frame of its own: several pages in one notebook share no names, and the notebook's style does not reach it. It
    # has no origin, so that it can read nothing of the notebook.
    return (
        f'<iframe title="attnflow" sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(file)}" '
        f'style="width:100%;height:{HEIGHT}px;border:0;resize:vertical;overflow:auto"></iframe>'
    )


def file_of(title: str, content: Mapping[str, Any], kind: str = "page", connect: str = "'none'") -> str:
    """One self-contained file of HTML.

    content: what the page shows, which its script reads as JSON. kind: the bundle that shows it, of those in `WEB`.
    connect: what the script may reach, as a source of Content-Security-Policy.
    """
    script, style = _bundle(kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    # "<" cannot end the script element that holds it, whatever the tokens are; JSON reads it back
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n"
        '</head>\n<body>\n<main id="attnflow" aria-busy="true"><p class="loading">Reading the document …</p></main>\n'
        "<noscript>This page computes what it shows, and needs JavaScript for that.</noscript>\n"
        f'<script type="application/json" id="attnflow-document">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


@cache
def _bundle(kind: str) -> tuple[str, str]:
    script, style = ((WEB / f"{kind}.min.{suffix}").read_text(encoding="utf-8") for suffix in ("js", "css"))
    return script, style
