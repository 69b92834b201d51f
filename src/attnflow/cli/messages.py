"""Translation of the library's messages, which name Python arguments, into command-line options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup, TyperOption

ALIASES = {
    "gguf_file": "gguf",
    "methods": "method",
    "layers": "layer",
    "by": "blank",
    "max_new_tokens": "tokens",
    "size": "font_size",
}
"""Library arguments whose option has a different name."""

ARGUMENT = re.compile(r"\b([a-z_]+)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[\w.…-]*)")

PHRASES = (
    (
        re.compile(r"was wrapped without an? ([\w ]+): give wrap\(.*?\)(, or [^;:]*)?"),
        r"has no \1: save it into its folder too",
    ),
    (re.compile(r"trace\(\) and attnflow\.compare explain"), "attnflow show and attnflow compare explain"),
    (re.compile(r"\(('(?:[^'\\]|\\.)*'|\"[^\"]*\"), (\d+)\) in "), r"--span \1 --occurrence \2, in "),
    (re.compile(r"; or give \(start, stop\), token numbers"), ""),
    (re.compile(r"with documents=\{name: text\}"), "with --document NAME=FILE"),
    (re.compile(r"or give it as a list of messages"), "or give --chat, which needs a chat template"),
    (re.compile(r"which a list of messages needs: give the prompt as one text"), "which --chat needs: leave it out"),
    (re.compile(r"^system needs a chat template"), "--system needs a chat template"),
    (re.compile(r"blank_out\(\) and gradient\(\) need"), "attnflow show --method blank-out and --method gradient need"),
    (
        re.compile(r"blank_out, gradient, integrated_gradients, shapley and Model\.answer take several"),
        "--method blank-out, gradient, integrated-gradients and shapley, and attnflow answer take several",
    ),
    (re.compile(r"export_corpus\('([^']*)', 'table\.csv'\)"), r"attnflow corpus export \1 table.csv"),
    (re.compile(r"export_corpus\(\)"), "attnflow corpus export"),
    (re.compile(r'memory="linear", or fewer texts at a time, take'), "shorter texts take"),
    (re.compile(r", or wrap\(model, tokenizer, pooling='mean'\)"), ""),
)
"""Advice that only works in Python, and its replacement on the command line."""


def in_options(message: str, command: TyperGroup, words: Sequence[str]) -> str:
    """Replace Python arguments in a message with options, for example ``truncate=True`` with ``--truncate``.

    command: the tree of all commands. words: the command line. Arguments without an option stay unchanged.
    """
    chosen: Any = command
    for word in words:
        if isinstance(chosen, TyperGroup) and word in chosen.commands:
            chosen = chosen.commands[word]
    options = {p.name: p for p in chosen.params if isinstance(p, TyperOption)}

    def translated(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        option = options.get(ALIASES.get(name, name))
        if option is None:
            return match[0]
        switch = value in ("True", "False") and option.is_flag
        names = option.secondary_opts if switch and value == "False" else option.opts
        shown = max((n.strip() for n in names), key=len, default="")
        return match[0] if not shown else shown if switch or not value else f"{shown} {value}"

    for pattern, advice in PHRASES:
        message = pattern.sub(advice, message)
    return ARGUMENT.sub(translated, message)
