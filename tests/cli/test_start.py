"""A command says something before it imports torch, which takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="models need torch")
pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

HOOK = """
import os, sys

class Late:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers"):
            os.write(2, b"\\n<import of " + name.encode() + b">\\n")
            os._exit(7)

sys.meta_path.insert(0, Late())
sys.argv[0] = "attnflow"
from attnflow.cli import main
main()
"""
"""Runs a command up to its first import of torch or transformers."""

COMMANDS = {
    "show": ["show", "the key"],
    "show of a page": ["show", "the key", "-o", "page.html"],
    "show of edges": ["show", "the key", "--edges", "alti"],
    "show of heads": ["show", "the key", "--heads", "L1.1"],
    "answer": ["answer", "the key", "-m", "model"],
    "similarity": ["similarity", "the key", "the lock", "-m", "model"],
    "compare": ["compare", "the key"],
    "figure": ["figure", "graph", "the key", "-o", "fig.pdf"],
    "evaluate": ["evaluate", "t.csv"],
    "grid": ["evaluate", "t.csv", "--grid"],
    "corpus run": ["corpus", "run", "t.csv", "out"],
    "corpus report": ["corpus", "report", "out"],
    "reproduce": ["reproduce", "figure1"],
    "serve": ["serve", "--no-open", "--port", "0"],
}


def seen(words: list[str], folder: Path) -> tuple[str, int]:
    """Return what a terminal shows, and the exit status."""
    (folder / "t.csv").write_text("text,label\nthe key,1\n")
    terminal, stderr = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", HOOK, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
        cwd=folder, env=environment,
    ) as process:  # fmt: skip
        os.close(stderr)
        screen = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # Linux raises this at the end
                break
            if not part:
                break
            screen += part
        os.close(terminal)
    return screen.decode(), process.returncode


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_message_comes_before_torch(name: str, tmp_path: Path) -> None:
    screen, status = seen(COMMANDS[name], tmp_path)
    before, mark, _ = screen.partition("<import of ")
    assert status == 7 and mark, screen
    assert "loading torch and transformers" in before
