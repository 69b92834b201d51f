"""The views of a `TokenAttention`: terminal, notebook, figure, page and image overlay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from attnflow._arrays import FloatArray
from attnflow.errors import InputError
from attnflow.result import TokenAttention
from attnflow.view import figure, image_figure, page, terminal
from attnflow.view.colour import laid_over

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ResultView:
    """The interface between `TokenAttention` and the views. Arguments are those of the result's methods."""

    result: TokenAttention

    def renderable(self) -> RenderableType:
        # printing in a REPL selects no query, and must not raise
        one = len(self.result.queries) == 1
        return terminal.render(self.result) if one else terminal.plain(repr(self.result))

    def notebook_html(self) -> str:
        return page.of_result(self.result).notebook_html()

    def print_row(self, query: int | str | None, layer: int, file: IO[str] | None) -> None:
        Console(file=file).print(terminal.render(self.result, query, layer))

    def overlay(self, image: Any, query: int | str | None, layer: int, alpha: float) -> FloatArray:
        return laid_over(image, self.result.on_patches()[self.result.where(query, layer)], alpha)

    def plot(self, query: int | str | None, image: Any = None) -> Figure:
        self.result.where(query)
        if self.result.patches is not None:
            return image_figure.patch_maps(self.result, query, image)
        if image is not None:
            raise InputError(
                f"image= for {self.result.method} of a text: expected the result of an image; leave it out"
            )
        return figure.layer_maps([("", {self.result.method: self.result})], query=query)

    def save(self, path: Path, image: Any = None) -> None:
        """Save a page for .html, otherwise a figure."""
        if path.suffix.lower() == ".html":
            page.of_result(self.result).save(path)
        else:
            figure.save(self.result.plot(image=image), path)
