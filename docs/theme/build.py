"""Builds the documentation site: python docs/theme/build.py [FOLDER], by default build/site.

Collects the pages in a temporary folder, runs Zensical there in its strict mode, checks what it built, and moves that to
FOLDER. Any problem is printed and leaves FOLDER as it was.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import built

import pages

ROOT = Path(__file__).parents[2]
PYTHON = ("src", "benchmarks")  # the reference is made from their docstrings


def build(target: Path, docs: Path, settings: Path, gallery: Path | None) -> list[str]:
    """Build the site and return its problems. Write it to the target if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        pages.collect(root / "docs", docs)
        if gallery is not None:
            shutil.copytree(gallery, root / "docs" / "gallery", dirs_exist_ok=True)
        shutil.copytree(ROOT / "docs" / "theme", root / "docs" / "theme")
        shutil.copy(settings, root / "zensical.toml")
        for name in PYTHON:
            (root / name).symlink_to(ROOT / name)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if done.returncode:
            return [_said(done.stdout + done.stderr)]
        shutil.rmtree(root / "docs" / "theme")
        shutil.rmtree(root / "site" / "theme", ignore_errors=True)
        problems = built.problems(root / "site", root / "docs", root / "zensical.toml")
        if not problems:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(root / "site", target)
        return problems


def _said(output: str) -> str:
    """Return what Zensical printed without colours, and without the traceback that follows a list of broken links."""
    plain = re.sub("\x1b\\[[0-9;]*m", "", output)
    return re.split(r"(?<=issue found)\n|(?<=issues found)\n", plain)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("target", nargs="?", type=Path, default=ROOT / "build" / "site", metavar="FOLDER")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder with the pages")
    parser.add_argument("--settings", type=Path, default=ROOT / "zensical.toml")
    parser.add_argument("--gallery", type=Path, help="pages made by python -m benchmarks.gallery")
    options = parser.parse_args()
    problems = build(options.target, options.docs, options.settings, options.gallery)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
