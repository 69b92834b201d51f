"""Problems of a built site: links, anchors and files that do not exist, and pages that the navigation misses.

Zensical's strict mode checks links between Markdown pages. It checks no images, no links to other files, no HTML in pages,
and no names in the navigation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

OWN_PAGES = {"404.html"}  # the server shows it at any address, so that its links are relative to none


class Addresses(HTMLParser):
    """The addresses that a page refers to, and the places in it that an address can name."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.used: list[str] = []
        self.places: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.used.append(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")


def problems(site: Path, docs: Path, settings: Path) -> list[str]:
    """Return a sentence for each broken address in a built site, and for each page that is missing in its navigation."""
    return [*_broken(site), *_misplaced(docs, settings)]


def _broken(site: Path) -> Iterator[str]:
    pages = {path: Addresses(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name in OWN_PAGES:
            continue
        for address in dict.fromkeys(page.used):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            named = f"{path.relative_to(site)} refers to {address}"
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{named}, which does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{named}, but {target.name} has no such anchor"


def _misplaced(docs: Path, settings: Path) -> Iterator[str]:
    listed = list(_pages_of(tomllib.loads(settings.read_text(encoding="utf-8"))["project"]["nav"]))
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    for page in sorted(set(listed) - there):
        yield f"the navigation in {settings.name} lists {page}, which does not exist"
    for page in sorted(there - set(listed)):
        yield f"the navigation in {settings.name} does not list {page}"


def _pages_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, str):
                yield value
            else:
                yield from _pages_of(value)
