"""The library's messages, which name Python arguments, in the words of a command, which has options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup, TyperOption

ALIASES = {"gguf_file": "gguf", "methods": "method", "layers": "layer", "by": "blank", "max_new_tokens": "tokens"}
"""Arguments of the library whose option has another name."""

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
    (re.compile(r'memory="linear", or fewer texts at a time, take'), "shorter texts take"),
)
"""Advice that only Python can follow, and what a command's user can do instead."""


def in_options(message: str, command: TyperGroup, words: Sequence[str]) -> str:
    """A message with the options of the command that `words` name: ``--truncate`` for ``truncate=True``.

    command: the whole tree of commands. Arguments for which the command has no option stay as they are.
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
