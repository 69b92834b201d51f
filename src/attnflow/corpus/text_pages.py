"""The interactive pages of the texts that a report shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from attnflow.errors import InputError
from attnflow.files import make_folder

SHOWN = 256
"""Tokens of a text that the report shows; the text's own page has all."""
BLANKED = 128
"""Tokens up to which a text's page has blank-out, which costs a pass of the model for each."""

Say = Callable[[str], None]


def now_and_then(before: float, line: str, say: Say) -> float:
    """When something was said last: somebody who waits at a terminal is told every five seconds, and a log is not."""
    now = monotonic()
    if now - before <= 5 or not sys.stderr.isatty():
        return before
    say(line)
    return now


def text_pages(
    summary: Mapping[str, Any], name: str | None, folder: Path, say: Say
) -> tuple[dict[int, Path], str | None]:
    """The pages by row, and a sentence on those that could not be made."""
    entries = {int(row): text for row, text in summary["disagreement"]["texts"].items()}
    if not entries:
        return {}, None
    try:
        model = _model(summary, name)
    except InputError as e:
        hint = "" if name else "; -m MODEL says where the model is"
        return {}, f"No text has a page of its own: {e}{hint}."
    make_folder(folder)
    made: dict[int, Path] = {}
    reasons: list[str] = []
    before = monotonic()
    for done, (row, text) in enumerate(entries.items()):
        try:
            made[row] = _text_page(model, text, summary["provenance"], folder / f"{row}.html")
        except InputError as e:
            reasons.append(f"{text['id']}: {e}")
        before = now_and_then(before, f"pages: {done + 1} of {len(entries)} texts", say)
    if not reasons:
        return made, None
    count = f"{len(reasons)} of {len(entries)} texts have" if len(entries) > 1 else "The text has"
    return made, f"{count} no page of {'their' if len(entries) > 1 else 'its'} own ({reasons[0]})."


def remove_others(folder: Path, pages: Mapping[int, Path]) -> None:
    """Texts that an earlier report showed, and this one does not."""
    for path in folder.glob("*.html"):
        if re.fullmatch("[0-9]+", path.stem) and path not in pages.values():
            path.unlink(missing_ok=True)


def _model(summary: Mapping[str, Any], name: str | None) -> Any:
    """The model of the rows, as it was loaded for them; or the one named."""
    import attnflow
    from attnflow.capture.hub import DTYPES
    from attnflow.model import EMBEDDED

    provenance, gguf = summary["provenance"], summary["gguf_file"]
    told, revision = provenance.get("model"), provenance.get("revision")
    dtype = next((name for name in DTYPES if name == provenance.get("dtype")), "auto")
    if name is not None:
        held = gguf and (Path(name) / gguf).is_file()
        return attnflow.load(name, dtype=dtype, gguf_file=gguf if held else None)
    if not told:
        raise InputError("the rows do not say which model explained them")
    if told == EMBEDDED and str(revision).startswith("attnflow "):
        return attnflow.load(dtype=dtype)
    if Path(told).exists():
        revision = None
    elif revision is None and "/" not in told:  # not from the hub, where another model may have that name
        raise InputError(f"the rows name the model {told!r}, and no folder of that name is here")
    return attnflow.load(told, revision=revision, dtype=dtype, gguf_file=gguf)


def _text_page(model: Any, text: Mapping[str, Any], provenance: Mapping[str, Any], path: Path) -> Path:
    given = text["text"] if text["pair"] is None else (text["text"], text["pair"])
    page = model.explain(
        given,
        query=None if text["words"] else text["queries"],  # which then count words, and tokens here
        truncate=bool(text["truncated"]),
        residual=provenance.get("residual", 0.5),
        importance=("gradient", "blank-out") if text["size"] <= BLANKED else ("gradient",),
    )
    units = page.document["units"]
    read = units.get("words" if text["words"] else "subwords", units["subwords"])["tokens"]
    if (len(read), list(read[:SHOWN])) != (text["size"], text["tokens"]):
        raise InputError(
            "the model reads other tokens than those in the corpus: give the one that explained it with -m"
        )
    page.save(path)
    return path
