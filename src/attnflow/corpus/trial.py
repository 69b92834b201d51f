"""A trial run on one text before a job makes its folder, so that an unsuitable model gives one error, not one per row."""

from __future__ import annotations

from dataclasses import replace

from attnflow.answering import answer_one
from attnflow.capture.check import Checked
from attnflow.capture.encode import encode_texts
from attnflow.capture.predict import writes_next
from attnflow.corpus.corpus_options import Options, Writing
from attnflow.corpus.row_inputs import RowInput, prompt_input
from attnflow.corpus.text_methods import explain_text
from attnflow.corpus.written_rows import PLAIN, explained_answer
from attnflow.errors import InputError, ModelError
from attnflow.importance.question import writes_words
from attnflow.model import Model
from attnflow.texts.sources import Text, first_line
from attnflow.trace import Trace


def tried(model: Model, checked: Checked, options: Options, probe: str) -> Options:
    """Return the options of a job after trying them, with the best method for written answers if none is named.

    probe: a text in place of all others; it need not contain the query or the span.
    """
    if not (options.is_by_text or options.writing is not None):
        return options
    try:
        if options.writing is not None:
            return _tried_on_answer(model, options, options.writing, probe)
        _try_on_text(model, checked, options, probe)
    except InputError:
        raise
    except Exception as e:  # model code may raise anything
        names = ", ".join(options.methods)
        raise ModelError(
            f"{model!r} does not work with {names} ({type(e).__name__}: {first_line(e):.120}): choose other methods"
        ) from e
    return options


def _try_on_text(model: Model, checked: Checked, options: Options, probe: str) -> None:
    mask = getattr(model.tokenizer, "mask_token", None)
    text = f"{probe} {mask}" if mask and writes_words(model) and not writes_next(model) else probe
    encoded = encode_texts(model, [text], truncate=True)[0]
    if isinstance(encoded, InputError):
        raise encoded
    graph = Trace.of(model.run_batch([encoded], checked, measure=False).passed(0))
    explain_text(model, replace(options, query=None), encoded, graph)


def _tried_on_answer(model: Model, options: Options, writing: Writing, probe: str) -> Options:
    prompt = prompt_input(model, Text("", probe), writing)
    if not isinstance(prompt, RowInput):
        raise InputError(str(prompt.message))
    # the model may write nothing
    answer = answer_one(model, prompt.prompt, probe, writing.max_new_tokens, PLAIN, None, None)
    if not options.methods:
        return replace(options, methods=(answer.sources(unit=writing.unit).method,))
    explained_answer(answer, options, replace(writing, span=None, occurrence=None))
    return options
