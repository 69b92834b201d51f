"""TokenAttention: a labelled array [layer, query, input] that shows itself, saves itself and merges its words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnflow._arrays import FloatArray, as_array, is_tensor, positions
from attnflow.errors import InputError, a_type
from attnflow.files import PICTURES, of_extension, write_whole
from attnflow.result_files import WRITERS, damaged, frame, labels, plain_numbers, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import RenderableType

    from attnflow.view.result_view import ResultView


ADDING = ("answer_rows", "answer_inputs", "integrated gradients", "shapley", "gradient", "blank-out")
"""Methods with one number per token about the answer: the number of a word or group is the sum over its tokens."""


class Score(NamedTuple):
    """One input of one row: its token, its place among the inputs and its value."""

    token: str
    position: int
    value: float


@dataclass(frozen=True, eq=False, repr=False)
class TokenAttention:
    """How much of each hidden state comes from each input: ``values[layer, query, input]`` with labelled axes.

    values: float32 or float64, finite; read-only from here on. NaN marks values that were not computed, and is allowed only
        if ``provenance["computed"]`` says how many were.
    method: "raw", "rollout", "flow" or another name for what the numbers are.
    layers: the layer numbers of axis 0, counted from 0; they are shown as L1, L2, ...
    queries, query_tokens: the positions of axis 1 in the sequence of queries, and their tokens.
    tokens: the tokens of the inputs (axis 2), as they are shown.
    word_ids, word_texts: for each input the number of its word in word_texts, None if it is in no word.
    special: for each input, whether it is a special token.
    text: what the model read.
    parts: for each input the name of its part ("source" or "target"); empty if there is only one part.
    patches: (rows, columns) of image patches, which are the last rows · columns inputs.
    provenance: where the numbers come from, as JSON; "reliability" in it is what `reliability` returns.
    source, recipe: the trace that made the result and its arguments, for `words`; neither is saved.
    image: for an image, what the model saw, uint8 ``[height, width, 3]``, made small; for pictures, and not saved.

    >>> cls = TokenAttention(
    ...     values=[[[0.1, 0.5, 0.2, 0.2]]], method="flow", layers=[5], queries=[0], query_tokens=["[CLS]"],
    ...     tokens=["[CLS]", "key", "cab", "##inet"], word_ids=[None, 0, 1, 1], word_texts=["key", "cabinet"],
    ...     special=[True, False, False, False], text="key cabinet",
    ... )
    >>> cls
    TokenAttention(flow, 1 layer × 1 query × 4 inputs, 'key cabinet')
    >>> cls.top(2)
    [Score(token='key', position=1, value=0.5), Score(token='cab', position=2, value=0.2)]
    >>> cls.without_special().normalized().row("[CLS]", layer=5).round(3)
    array([0.556, 0.222, 0.222])
    """

    values: FloatArray
    method: str
    layers: tuple[int, ...]
    queries: tuple[int, ...]
    query_tokens: tuple[str, ...]
    tokens: tuple[str, ...]
    word_ids: tuple[int | None, ...]
    word_texts: tuple[str, ...]
    special: tuple[bool, ...]
    text: str
    parts: tuple[str, ...] = ()
    patches: tuple[int, int] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    source: Any = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    image: FloatArray | None = None

    def __post_init__(self) -> None:
        partial = isinstance(self.provenance, Mapping) and "computed" in self.provenance
        values = _checked_values(self.values, partial)
        n_layers, n_queries, n_inputs = values.shape
        checked: dict[str, Any] = {
            "values": values,
            "method": _text(self.method, "method"),
            "layers": _numbers(self.layers, "layers", n_layers, "layers"),
            "queries": _numbers(self.queries, "queries", n_queries, "queries"),
            "query_tokens": _texts(self.query_tokens, "query_tokens", n_queries, "queries"),
            "tokens": _texts(self.tokens, "tokens", n_inputs, "inputs"),
            "word_texts": _texts(self.word_texts, "word_texts"),
            "special": _flags(self.special, n_inputs),
            "text": _text(self.text, "text"),
            "parts": _texts(self.parts, "parts", None if self.parts in ((), []) else n_inputs, "inputs"),
            "patches": _checked_patches(self.patches, n_inputs),
            "provenance": _as_json(self.provenance),
            "recipe": dict(self.recipe),
        }
        checked["word_ids"] = _word_ids(self.word_ids, n_inputs, len(checked["word_texts"]))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        sizes = zip(self.values.shape, ("layer", "query", "input"), ("layers", "queries", "inputs"), strict=True)
        shape = " × ".join(f"{n} {one if n == 1 else many}" for n, one, many in sizes)
        shown = self.text if len(self.text) <= 40 else self.text[:39] + "…"
        return f"TokenAttention({self.method}, {shape}, {shown!r})"

    @property
    def reliability(self) -> tuple[str, ...]:
        """Why the rows of the highest layer should not be read as they are, one sentence each; empty if there is no reason.

        `attnflow.reliability` has the rules. For several rows, a sentence applies to more than half of them.
        """
        notes = self.provenance.get("reliability")
        return tuple(map(str, notes)) if isinstance(notes, list) else ()

    def _view(self) -> ResultView:
        """The view of this result, imported on first use."""
        from attnflow.view.result_view import ResultView

        return ResultView(self)

    def __rich__(self) -> RenderableType:
        return self._view().renderable()

    def _repr_html_(self) -> str:
        return self._view().notebook_html()

    def show(self, query: int | str | None = None, layer: int = -1, *, file: IO[str] | None = None) -> None:
        """Print one row to the terminal or a file; query and layer are those of `row`."""
        self._view().print_row(query, layer, file)

    def where(self, query: int | str | None = None, layer: int = -1) -> tuple[int, int]:
        """Return the indices on axes 0 and 1 of `values` for a layer and a query; arguments as in `row`."""
        return _layer_index(self.layers, layer), _query_index(self.queries, self.query_tokens, query)

    def row(self, query: int | str | None = None, layer: int = -1) -> FloatArray:
        """Return what each input gives to one query at one layer: ``values[layer, query]``.

        query: its position, one of `queries` (negative ones count from the end of `queries`), or its token's text.
            Optional if there is only one.
        layer: the model's layer number, one of `layers`; negative ones count from the end of `layers`.
        """
        row: FloatArray = self.values[self.where(query, layer)]
        return row

    def top(self, k: int = 5, query: int | str | None = None, layer: int = -1) -> list[Score]:
        """Return the k inputs with the highest values, highest first and ties by position; query and layer as in `row`."""
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k={k!r}: expected an int of at least 1, the number of inputs wanted")
        row = self.row(query, layer)
        order = np.argsort(-row, kind="stable")[: min(k, int(np.isfinite(row).sum()))]  # NaN comes last
        return [Score(self.tokens[i], i, float(row[i])) for i in order.tolist()]

    def words(self) -> TokenAttention:
        """Return the same over words instead of subwords, computed on the graph with merged subwords.

        ``A'[Q, K] = mean over q in Q of Σ over k in K of A[q, k]`` has to come before rollout and flow, whose values cannot
        be merged afterwards. Raw attention can, and is if the trace is gone. What is about the answer (answer edges, gather
        and importance) is summed over subwords; ``blank_out(unit="word")`` blanks whole words instead.
        `without_special` and `normalized` are repeated if they were applied.
        """
        if self.patches is not None:
            raise InputError(
                f"words() of an image of {self.patches[0]} × {self.patches[1]} patches: expected text; use on_patches()"
            )
        if self.provenance.get("unit") == "word":
            return self
        if self.source is None:
            return _merged(self)
        trace = self.source.words()
        query = None if "query_weights" in self.provenance else _word_queries(self, trace)
        result: TokenAttention = getattr(trace, self.method)(**{**self.recipe, "query": query})
        result = replace(result, provenance={**result.provenance, "unit": "word"})
        for step in self.provenance.get("steps", ()):
            result = {"without_special": result.without_special, "normalized": result.normalized}[step]()
        return result

    def without_special(self) -> TokenAttention:
        """Return the result without the special tokens among the inputs; queries stay, and rows are not rescaled.

        Call `normalized` afterwards for shares of what is left. Positions then count the remaining inputs.
        """
        keep = [i for i, special in enumerate(self.special) if not special]
        if not keep:
            raise InputError(f"all {len(self.tokens)} inputs are special tokens: expected at least one that is not")
        return replace(
            self,
            values=self.values[:, :, keep],
            tokens=tuple(self.tokens[i] for i in keep),
            word_ids=tuple(self.word_ids[i] for i in keep),
            special=(False,) * len(keep),
            parts=tuple(self.parts[i] for i in keep) if self.parts else (),
            provenance=_with_step(self.provenance, "without_special"),
        )

    def normalized(self) -> TokenAttention:
        """Return each row divided by its sum: ``values[l, q, t] / Σ_u values[l, q, u]``. Rows of zeros stay as they are."""
        if (self.values < 0).any():
            raise InputError(
                f"normalized() of {self.method}, which has negative values: expected values of at least 0, because "
                "shares of a sum with both signs mean nothing"
            )
        total = np.nansum(self.values, axis=-1, keepdims=True)
        return replace(
            self,
            values=self.values / np.where(total == 0, 1, total),
            provenance=_with_step(self.provenance, "normalized"),
        )

    def on_patches(self) -> FloatArray:
        """Return the values of an image's patches in their places: ``[layer, query, row, column]``."""
        if self.patches is None:
            raise InputError(
                "this result has no patches: expected the result of an image; for text use row() and top()"
            )
        rows, columns = self.patches
        return self.values[:, :, -rows * columns :].reshape(*self.values.shape[:2], rows, columns)

    def overlay(
        self, image: Any = None, query: int | str | None = None, layer: int = -1, alpha: float = 0.6
    ) -> FloatArray:
        """Return a map of the patches over the image, uint8 ``[height, width, 3]``, from dark blue (low) to yellow.

        image: what the model saw, after cropping: a PIL image, or an array ``[height, width]`` or ``[height, width, 3]``
            of uint8 or of floats from 0 to 1, of any size. The default is `image`, which a result from a file has lost.
        query, layer: as in `row`.
        alpha: the opacity of the map, from 0 (image only) to 1 (map only).
        """
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0 <= alpha <= 1:
            raise InputError(f"alpha={alpha!r}: expected a number from 0 (image only) to 1 (map only)")
        image = self.image if image is None else image
        if image is None and self.patches is not None:
            raise InputError(
                "this result does not have its image, because it comes from a file or from numbers: give overlay(image), "
                "what the model saw"
            )
        return self._view().overlay(image, query, layer, float(alpha))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but source and recipe, as a .json file contains it; values that were not computed are None."""
        return {**labels(self), "values": plain_numbers(self.values)}

    def to_pandas(self) -> DataFrame:
        """Return the table of .csv and .parquet files, one row per value. Needs pandas.

        Columns: layer (counted from 1), query (its position), query_token, input (its position), token, word (its number in
        word_texts, missing if it is in no word), special, part, value. The order is that of ``values.ravel()``.
        """
        return frame(self)

    def save(self, path: str | os.PathLike[str], *, image: Any = None) -> None:
        """Write a file, whole or not at all: .json, .npz, .csv or .parquet, by the extension. `load` reads .json and
        .npz.

        .csv and .parquet have one row per value, with layers counted from 1. .parquet needs pyarrow. .svg, .pdf and .png
        are pictures, see `plot`, which takes ``image``; .html is the interactive page.
        """
        path = Path(path)
        write = of_extension({**WRITERS, **dict.fromkeys((*PICTURES, ".html"), None)}, path)
        if image is not None and path.suffix.lower() not in PICTURES:
            raise InputError(
                f"image= for {str(path)!r}: expected one of {', '.join(PICTURES)}, which draw it; leave image out"
            )
        if write is None:
            self._view().save(path, image)
        else:
            write_whole(path, lambda beside: write(self, beside))

    def plot(self, query: int | str | None = None, *, image: Any = None) -> Figure:
        """Return a matplotlib figure like the paper's Figures 2 and 3: what one query takes from each input, by layer.

        For an image, it is a map of the patches for each layer, over the image in grey (`image_figure.patch_maps`).

        query: as in `row`; optional if there is only one. Needs matplotlib.
        image: as in `overlay`; without any, the map is a plain grid.
        """
        return self._view().plot(query, image)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TokenAttention:
        """Read the .json or .npz file that `save` wrote, to the last bit, without source and recipe."""
        path = Path(path)
        fields, values = read(path)
        try:
            return cls(**fields, values=values)
        except InputError:
            raise damaged(path) from None


def _layer_index(layers: tuple[int, ...], layer: int) -> int:
    if isinstance(layer, bool) or not isinstance(layer, int | np.integer):
        raise InputError(f"layer={layer!r} is not a layer: expected one int, for example -1 for the last one")
    if layer in layers:
        return layers.index(int(layer))
    if -len(layers) <= layer < 0:
        return int(layer) + len(layers)
    known = _some(f"{number} (L{number + 1})" for number in layers)
    raise InputError(f"layer {layer} is not in this result: expected one of {known}, or {-len(layers)} to -1")


def _query_index(queries: tuple[int, ...], tokens: tuple[str, ...], query: int | str | None) -> int:
    if query is None and len(queries) == 1:
        return 0
    if isinstance(query, str):
        places = [i for i, token in enumerate(tokens) if token == query]
        if len(places) == 1:
            return places[0]
        if places:
            known = _some(str(queries[i]) for i in places)
            raise InputError(f"query {query!r} is at {len(places)} positions: give one of them as an int, {known}")
    elif isinstance(query, int | np.integer) and not isinstance(query, bool):
        if query in queries:
            return queries.index(int(query))
        if -len(queries) <= query < 0:
            return int(query) + len(queries)
    known = _some(f"{position} {token!r}" for position, token in zip(queries, tokens, strict=True))
    if query is None:
        raise InputError(f"this result has {len(queries)} queries: give one, by position or token, of {known}")
    raise InputError(
        f"query {query!r} is not in this result: expected a position or a token of {known}, or {-len(queries)} to -1"
    )


def _some(names: Iterable[str], limit: int = 12) -> str:
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def _with_step(provenance: Mapping[str, Any], step: str) -> dict[str, Any]:
    before = provenance.get("steps")
    return {**provenance, "steps": [*(before if isinstance(before, list | tuple) else ()), step]}


def _word_queries(result: TokenAttention, trace: Any) -> list[int]:
    """Return the words of the queries, each once, as positions among the queries of the trace over words."""
    of = {position: number for number, group in enumerate(trace.word_groups) for position in group}
    # in an encoder-decoder, groups begin with the source and queries with the target
    before, before_words = (getattr(t, "first_query", 0) for t in (result.source, trace))
    return list(dict.fromkeys(of[query + before] - before_words for query in result.queries))


def _merged(result: TokenAttention) -> TokenAttention:
    """Return the values merged over words: exact if nothing was computed from them, or if no word has two tokens."""
    by_word: dict[object, list[int]] = {}
    for i, word in enumerate(result.word_ids):
        by_word.setdefault(("alone", i) if word is None else word, []).append(i)
    groups = list(by_word.values())
    at = {position: i for i, position in enumerate(result.queries)}
    own = not result.parts and all(
        query < len(result.tokens) and result.tokens[query] == token
        for query, token in zip(result.queries, result.query_tokens, strict=True)
    )
    about_answer = result.method in ADDING
    exact = result.method == "raw" or about_answer or all(len(group) == 1 for group in groups)
    pooled = exact and "pooling" in result.provenance and result.queries == (len(result.tokens),)  # in no word
    if about_answer and (result.provenance.get("steps") or result.provenance.get("unit") == "sentence"):
        raise InputError(
            f"words() of {result.method} needs all of its tokens: call words() first, before without_special() and "
            'normalized(), on a result with unit="token"'
        )
    if not (exact and (own or pooled)) or result.provenance.get("steps"):
        raise InputError(
            f"this {result.method} result has lost the graph it was computed from (results that are read from a file, are "
            'of one head or were traced with memory="linear" have none): subwords must be merged before rollout and flow '
            'are computed, so trace with memory="graph" and call .words() before .save()'
        )
    if about_answer:
        return summed(result, groups, **_word_labels(result, groups))
    of = {i: g for g, group in enumerate(groups) for i in group}
    rows = [] if pooled else list(dict.fromkeys(of[query] for query in result.queries))
    for g in rows:
        present = [i for i in groups[g] if i in at]
        if len(present) < len(groups[g]):
            raise InputError(
                f"the word {result.word_texts[result.word_ids[present[0]] or 0]!r} is at positions {groups[g]}, and only "
                f"{present} are queries of this result: expected all, because the row of a word is the mean over its tokens"
            )
    merged = summed(result, groups, **_word_labels(result, groups))
    means = [merged.values[:, [at[i] for i in groups[g]]].mean(axis=1) for g in rows]
    if pooled:
        return merged
    names = tuple(merged.tokens[g] for g in rows)
    return replace(merged, values=np.stack(means, axis=1), queries=tuple(rows), query_tokens=names)


def _word_labels(result: TokenAttention, groups: list[list[int]]) -> dict[str, Any]:
    first = [group[0] for group in groups]
    return {
        "tokens": tuple(result.tokens[i] if (w := result.word_ids[i]) is None else result.word_texts[w] for i in first),
        "word_ids": tuple(result.word_ids[i] for i in first),
        "special": tuple(all(result.special[i] for i in group) for group in groups),
        "provenance": {**result.provenance, "unit": "word"},
    }


def summed(result: TokenAttention, groups: Sequence[Sequence[int]], **labels: Any) -> TokenAttention:
    """Return the values summed over groups of inputs, with these labels; queries become the groups that contain them.

    A result of several queries needs one row per group, which the caller makes.
    """
    of = {position: number for number, group in enumerate(groups) for position in group}
    values = np.stack([result.values[:, :, list(group)].sum(axis=2) for group in groups], axis=2)
    tokens = labels["tokens"]
    places = [(of.get(q, len(groups)), name) for q, name in zip(result.queries, result.query_tokens, strict=True)]
    return replace(
        result,
        **labels,
        values=values,
        queries=tuple(g for g, _ in places) if len(places) == 1 else result.queries,
        query_tokens=tuple(tokens[g] if g < len(groups) else name for g, name in places)
        if len(places) == 1
        else result.query_tokens,
    )


def _checked_values(argument: Any, partial: bool) -> FloatArray:
    values = as_array(argument, "values")
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    if values.ndim != 3 or 0 in values.shape:
        raise InputError(f"values have shape {values.shape}: expected [layer, query, input], each at least 1")
    wrong = ~np.isfinite(values) & ~(np.isnan(values) & partial)
    if wrong.any():
        at = np.argwhere(wrong)[0]
        raise InputError(f"values are {values[tuple(at)]} at {at.tolist()}: expected finite numbers")
    if values.flags.writeable or values.base is not None:
        values = values.copy()  # the caller may still write to the given array
        values.flags.writeable = False
    checked: FloatArray = values
    return checked


def _sequence(argument: Any, name: str, kind: str, size: int | None, axis: str) -> list[Any]:
    if isinstance(argument, str | bytes) or not isinstance(argument, Iterable):
        raise InputError(f"{name}={argument!r}: expected a sequence of {kind}")
    entries = list(argument)
    if size is not None and len(entries) != size:
        raise InputError(f"{name} has {len(entries)} entries, but values has {size} {axis}: expected one for each")
    return entries


def _text(argument: Any, name: str) -> str:
    if not isinstance(argument, str):
        raise InputError(f"{name} is {a_type(argument)}: expected a str")
    # files store two adjacent surrogates as one character: join them here, so that results read back equal
    if argument.isascii():
        return argument
    return argument.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _texts(argument: Any, name: str, size: int | None = None, axis: str = "") -> tuple[str, ...]:
    entries = _sequence(argument, name, "texts", size, axis)
    if all(type(text) is str for text in entries) and "".join(entries).isascii():  # long texts have many tokens
        return tuple(entries)
    return tuple(_text(text, f"{name}[{i}]") for i, text in enumerate(entries))


def _numbers(argument: Any, name: str, size: int, axis: str) -> tuple[int, ...]:
    entries = positions(_sequence(argument, name, "ints", size, axis), name)
    if len(set(entries)) < len(entries) or min(entries) < 0:
        raise InputError(f"{name}={_some(str(n) for n in entries)}: expected ints of at least 0, each once")
    return tuple(entries)


def _flags(argument: Any, size: int) -> tuple[bool, ...]:
    entries = _sequence(argument, "special", "bools", size, "inputs")
    if set(map(type, entries)) == {bool}:
        return tuple(entries)
    if not all(isinstance(flag, int | np.integer | np.bool_) and flag in (0, 1) for flag in entries):
        raise InputError("special has entries other than True and False: expected one bool for each input")
    return tuple(bool(flag) for flag in entries)


def _word_ids(argument: Any, size: int, words: int) -> tuple[int | None, ...]:
    entries = _sequence(argument, "word_ids", "ints and None", size, "inputs")
    if set(map(type, entries)) == {int} and 0 <= min(entries) <= max(entries) < words:
        return tuple(entries)
    numbers = positions([i for i in entries if i is not None], "word_ids")
    for number in numbers:
        if not 0 <= number < words:
            raise InputError(
                f"word_ids has {number}, but there are {words} word_texts: expected None, or 0 to {words - 1}"
            )
    left = iter(numbers)
    return tuple(None if i is None else next(left) for i in entries)


def _checked_patches(argument: Any, size: int) -> tuple[int, int] | None:
    if argument is None:
        return None
    patches = tuple(positions(argument, "patches"))
    if len(patches) != 2 or min(patches) < 1 or patches[0] * patches[1] > size:
        raise InputError(
            f"patches={argument!r}: expected (rows, columns) of at most {size} patches, the number of inputs"
        )
    return patches


def _as_json(provenance: Any) -> dict[str, Any]:
    """Convert provenance to what a file gives back: tuples become lists, keys strings."""
    if not isinstance(provenance, Mapping):
        raise InputError(f"provenance is {a_type(provenance)}: expected a dict that JSON can hold")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(provenance), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as e:
        raise InputError(
            f"provenance cannot be written as JSON ({e}): expected plain values, lists and dicts"
        ) from None
    return plain
