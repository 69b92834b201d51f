"""How a TokenAttention shows itself: in a terminal or a notebook, as a picture, as a page, or over its image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from attnflow._arrays import FloatArray
from attnflow.result import TokenAttention
from attnflow.view import figure, page, terminal
from attnflow.view.colour import laid_over

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ResultView:
    """The one thing of the view that a result knows; arguments are those of its own methods."""

    result: TokenAttention

    def renderable(self) -> RenderableType:
        # whoever prints it names no query, and an error out of a REPL's display helps nobody
        one = len(self.result.queries) == 1
        return terminal.render(self.result) if one else terminal.plain(repr(self.result))

    def notebook_html(self) -> str:
        return page.of_result(self.result).notebook_html()

    def print_row(self, query: int | str | None, layer: int, file: IO[str] | None) -> None:
        Console(file=file).print(terminal.render(self.result, query, layer))

    def overlay(self, image: Any, query: int | str | None, layer: int, alpha: float) -> FloatArray:
        return laid_over(image, self.result.on_patches()[self.result.where(query, layer)], alpha)

    def plot(self, query: int | str | None) -> Figure:
        self.result.where(query)
        return figure.layer_maps([("", {self.result.method: self.result})], query=query)

    def save(self, path: Path) -> None:
        """A page for .html, else a picture."""
        if path.suffix.lower() == ".html":
            page.of_result(self.result).save(path)
        else:
            figure.save(self.result.plot(), path)
