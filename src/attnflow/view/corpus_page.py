"""The page of a corpus: which words receive attention, in all texts and in groups, and where methods agree or disagree.

Each text on it has its own interactive page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.corpus.summary import SHOWN, summarize
from attnflow.errors import InputError
from attnflow.files import check_folder_name, make_folder, write_whole
from attnflow.jobs.progress import track
from attnflow.view.page import file_of

if TYPE_CHECKING:
    from attnflow.model import Model

REPORT = "_report"
BLANKED = 128
"""Longest text, in tokens, whose page has blank-out, which needs a forward pass per token."""

LONGEST = 512
"""Longest text with its own page. For longer ones, matrices and flows would take minutes and many megabytes."""


def write(
    folder: Path,
    output: Path | None = None,
    *,
    model: str | None = None,
    layer: int | None = None,
    texts: int = 20,
    source: str | Path | None = None,
    allow_pickle: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the report, index.html, and texts/<row>.html for each text on it. Return their paths.

    output: a folder; by default, _report in the corpus folder.
    model: the model for the pages of texts; by default, the one that explained the corpus. If it cannot be loaded, the
        report has no links and says why.
    layer, texts, source: as in `summarize`.
    allow_pickle: as in `attnflow.load`.
    say: called with a sentence about texts without a page.
    """
    if output is not None:
        check_folder_name(
            Path(output), "pages", "the page is its index.html, and export_corpus() makes one CSV of the job"
        )
    summary = summarize(folder, layer=layer, texts=texts, source=source)
    target = Path(folder) / REPORT if output is None else Path(output)
    make_folder(target)
    pages, missing = _text_pages(summary, model, target / "texts", allow_pickle)
    if missing is not None:
        say(missing)
    page = html_of({**summary, "pages": sorted(pages), "missing": missing})
    write_whole(target / "index.html", lambda path: path.write_text(page, encoding="utf-8"))
    _remove_others(target / "texts", pages)
    return [target / "index.html", *(pages[row] for row in sorted(pages))]


def html_of(summary: Mapping[str, Any]) -> str:
    """Return the HTML file for a result of `attnflow.corpus.summary.summarize` with two more entries:

    pages: the rows whose texts have their own page, texts/<row>.html.
    missing: a sentence about texts without a page, or None.

    The page contains tokens but not whole texts, which may be long, nor the folder of the input, because pages are shared.
    """
    texts = {
        row: {name: value for name, value in text.items() if name not in ("text", "pair")}
        for row, text in summary["disagreement"]["texts"].items()
    }
    source = re.split(r"[\\/]", (summary["input"] or "").rstrip("\\/"))[-1] or None
    shown = {**summary, "input": source, "disagreement": {**summary["disagreement"], "texts": texts}}
    return file_of(f"{summary['folder']} · attnflow", shown, "corpus")


def _text_pages(
    summary: Mapping[str, Any], name: str | None, folder: Path, allow_pickle: bool
) -> tuple[dict[int, Path], str | None]:
    """Write the page of each text. Return the paths by row, and a sentence about texts without a page."""
    entries = {int(row): text for row, text in summary["disagreement"]["texts"].items()}
    if not entries:
        return {}, None
    if summary["answers"]:
        return {}, "No text has its own page: attnflow answer makes the page of one answer."
    try:
        model = _model(summary, name, allow_pickle)
    except InputError as e:
        hint = "" if name else "; give the report the path of the model"
        return {}, f"No text has its own page: {e}{hint}."
    make_folder(folder)
    pages: dict[int, Path] = {}
    reasons: list[str] = []
    for row, text in track(list(entries.items()), "writing the pages of texts"):
        try:
            pages[row] = _text_page(model, text, summary["provenance"], folder / f"{row}.html")
        except InputError as e:
            reasons.append(f"{text['id']}: {e}")
    if not reasons:
        return pages, None
    count = f"{len(reasons)} of {len(entries)} texts have" if len(entries) > 1 else "The text has"
    return pages, f"{count} no page of {'their' if len(entries) > 1 else 'its'} own ({reasons[0]})."


def _remove_others(folder: Path, pages: Mapping[int, Path]) -> None:
    """Remove pages of texts that were only in an earlier report."""
    for path in folder.glob("*.html"):
        if re.fullmatch("[0-9]+", path.stem) and path not in pages.values():
            path.unlink(missing_ok=True)


def _model(summary: Mapping[str, Any], name: str | None, allow_pickle: bool) -> Model:
    """Load the named model, or the one that explained the rows."""
    import attnflow
    from attnflow.capture.hub import DTYPES
    from attnflow.model import EMBEDDED

    provenance, gguf = summary["provenance"], summary["gguf_file"]
    source, revision = provenance.get("model"), provenance.get("revision")
    dtype = next((name for name in DTYPES if name == provenance.get("dtype")), "auto")
    options: dict[str, Any] = {"dtype": dtype, "allow_pickle": allow_pickle}
    if name is not None:
        return attnflow.load(name, gguf_file=gguf if gguf and (Path(name) / gguf).is_file() else None, **options)
    if not source:
        raise InputError("the rows do not say which model explained them")
    if source == EMBEDDED and str(revision).startswith("attnflow "):
        return attnflow.load(dtype=dtype)
    if Path(source).exists():
        revision, gguf = None, gguf if Path(source).is_dir() else None
    elif revision is None and "/" not in source:  # a local folder; on the hub, another model may have that name
        raise InputError(f"the rows were explained by the model {source!r}, and there is no folder of that name")
    return attnflow.load(source, revision=revision, gguf_file=gguf, **options)


def _text_page(model: Model, text: Mapping[str, Any], provenance: Mapping[str, Any], path: Path) -> Path:
    if text["size"] > LONGEST:
        raise InputError(f"it has {text['size']} positions, and a page has room for {LONGEST}")
    residual = provenance.get("residual", 0.5)
    page = model.explain(
        text["text"] if text["pair"] is None else (text["text"], text["pair"]),
        query=None if text["words"] else text["queries"],  # positions of words there, of tokens here
        truncate=bool(text["truncated"]),
        residual=residual if isinstance(residual, float) else 0.5,  # a page has one residual weight
        importance=("gradient", "blank-out") if text["size"] <= BLANKED else ("gradient",),
    )
    units = page.document["units"]
    read = units.get("words" if text["words"] else "subwords", units["subwords"])["tokens"]
    if (len(read), list(read[:SHOWN])) != (text["size"], text["tokens"]):
        raise InputError("the model's tokens differ from those in the corpus: give the model that explained it")
    page.save(path)
    return path
