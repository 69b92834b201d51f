"""Figures for print: their content, words that do not overlap, and reproducible files."""

from __future__ import annotations

import builtins
import re
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from attnflow import TokenAttention
from attnflow.errors import AttentionWarning, InputError
from attnflow.paper.figures import pronoun_figure
from attnflow.paper.pronouns import FIGURE_4, MaskedPronoun
from attnflow.view import sheet
from attnflow.view.figure import layer_maps, layered_graph, save

matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib")

ODD = [
    "[CLS]",
    "$x",
    "a$b$",
    "_^{",
    "日本",
    "🙂",
    "a\nb",
    "\ud800",
    "internationalisation-of-things",
    "\\frac",
    "<b>&",
    "",
    "%",
]
WORDS = ["[CLS]", "the", "key", "to", "the", "cabinets", "<?>"]


def result(tokens, method="raw", layers=3, query=None, seed=0) -> TokenAttention:
    n = len(tokens)
    values = np.random.default_rng(seed).dirichlet(np.full(n, 0.5), (layers, n))
    queries = list(range(n)) if query is None else [query]
    return TokenAttention(
        values=values[:, queries], method=method, layers=range(layers), queries=queries, tokens=tokens,
        query_tokens=[tokens[i] for i in queries], word_ids=[None] * n, word_texts=[], special=[False] * n, text="text",
    )  # fmt: skip


def views(tokens, layers=3, query=None):
    return {name: result(tokens, name, layers, query, seed) for seed, name in enumerate(("raw", "rollout", "flow"))}


def pronoun(example=FIGURE_4[0], layers=6) -> MaskedPronoun:
    draw = np.random.default_rng(0)
    return MaskedPronoun(example, 0.03, 0.01, {v: draw.random((layers, 2)) for v in ("raw", "rollout", "flow")})


FIGURES = {
    "graph": lambda: layered_graph({"flow": result(ODD, "flow")}),
    "maps": lambda: layer_maps(
        [("$odd$ 日本 _x", {"raw": result(ODD, query=0)}), ("", {"raw": result(WORDS, query=0)})]
    ),
    "pronouns": lambda: pronoun_figure([pronoun(), pronoun(FIGURE_4[1])]),
}


def drawn(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


@pytest.mark.parametrize(
    ("name", "extension"),
    [*((name, "svg") for name in FIGURES), ("graph", "pdf"), ("graph", "png"), ("pronouns", "png")],
)
def test_files_are_the_same_every_time(tmp_path, name, extension):
    one, two = tmp_path / f"one.{extension}", tmp_path / f"two.{extension}"
    save(FIGURES[name](), one)
    save(FIGURES[name](), two)
    held = one.read_bytes()
    assert held == two.read_bytes()
    assert held[:4] in (b"<?xm", b"%PDF", b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == [one.name, two.name]


def test_words_are_text_in_svg_and_dollars_are_dollars(tmp_path):
    save(FIGURES["graph"](), tmp_path / "x.svg")
    held = (tmp_path / "x.svg").read_text(encoding="utf-8")
    for word in ("$x", "a$b$", "日本", "a\\nb", "\\ud800", "internationalisatio…", "&lt;b&gt;&amp;", "attention flow"):
        assert f">{word}</text>" in held, word
    assert "dc:date" not in held


def test_figures_follow_the_fonts_and_sizes_of_matplotlib_and_nothing_else(tmp_path):
    plain = FIGURES["maps"]()
    save(plain, tmp_path / "one.svg")
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "black", "text.color": "white"}):
        save(FIGURES["maps"](), tmp_path / "two.svg")
        assert matplotlib.rcParams["text.usetex"] is True  # the user's settings are kept
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    for name, figure in FIGURES.items():
        with matplotlib.rc_context({"font.size": 14, "font.family": "serif", "xtick.labelsize": 9}):
            large = figure()
            assert matplotlib.rcParams["font.size"] == 14
        ticks = [tick for at in large.axes for tick in at.get_xticklabels() if tick.get_text()]
        assert {tick.get_size() for tick in ticks} <= {9.0, 12.0}, name  # 12: notes
        assert all(tick.get_family()[0] == "DejaVu Serif" for tick in ticks), name
        assert large.get_size_inches()[1] > figure().get_size_inches()[1] or name == "pronouns"
    with matplotlib.rc_context({"savefig.dpi": 50}):
        save(plain, tmp_path / "coarse.png")
    save(plain, tmp_path / "fine.png")
    coarse, fine = ((tmp_path / f"{name}.png").read_bytes() for name in ("coarse", "fine"))
    assert len(fine) > 2 * len(coarse)


def test_a_font_that_is_not_installed_is_named_with_what_is_used_instead():
    with (
        pytest.warns(
            AttentionWarning, match=r"^the font 'No Such Font' is not installed: the figure uses 'DejaVu Sans'$"
        ),
        sheet.style("No Such Font"),
    ):
        page = FIGURES["graph"]()
    assert page.axes[0].get_yticklabels()[0].get_family()[0] == "DejaVu Sans"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sheet.style("dejavu serif", 10):  # a font by any case; 10 is matplotlib's own default and still counts
            page = FIGURES["graph"]()
            tick = page.axes[0].get_yticklabels()[0]
            assert (tick.get_family()[0], tick.get_size()) == ("DejaVu Serif", 10.0)
    if "STIXGeneral" in matplotlib.font_manager.fontManager.get_font_names():
        with pytest.warns(AttentionWarning, match=r"uses '.*', which looks much like it"), sheet.style("Times"):
            pass
    with pytest.raises(InputError, match=r"^size=0: expected a font size from 3 to 40 points$"), sheet.style(size=0):
        pass


@pytest.mark.parametrize("width", [2.5, 3.3, 5.0, 12.0])
def test_a_figure_has_the_width_that_was_given_and_its_words_lie_inside(width):
    for page in (
        layered_graph(views(WORDS), width=width),
        layer_maps([("a long title of an example, longer than any column", views(WORDS, query=0))], width=width),
    ):
        renderer = drawn(page)
        across = page.get_size_inches()[0]
        assert across == pytest.approx(width)
        assert len([at for at in page.axes if at.get_title() or at.images]) == 3
        for at in page.axes:
            for text in [*at.get_xticklabels(), *at.get_yticklabels(), at.title]:
                box = text.get_window_extent(renderer)
                assert not text.get_text() or (box.x0 >= -2 and box.x1 <= across * page.dpi + 2), text.get_text()


def test_panels_that_do_not_fit_go_below_each_other():
    wide, narrow = layered_graph(views(WORDS), width=6.9), layered_graph(views(WORDS), width=1.6)
    assert len({round(at.get_position().y0, 3) for at in wide.axes}) == 1
    assert len({round(at.get_position().y0, 3) for at in narrow.axes}) == 3
    with pytest.raises(InputError) as e:
        layer_maps([("", views([f"t{i}" for i in range(40)], query=0))], width=3.3)
    assert re.fullmatch(
        r"width=3.3: a map of 40 tokens needs at least 6\.\d inches; give a greater width, a smaller font, or a shorter text",
        str(e.value),
    )
    layer_maps(
        [("", views([f"t{i}" for i in range(40)], query=0))], width=float(re.findall(r"[\d.]+", str(e.value))[2])
    )
    with pytest.raises(InputError, match=r"^width=True: expected inches from 1 to 27.6, or None$"):
        layered_graph(views(WORDS), width=True)
    with pytest.raises(InputError, match=r"^a graph of 201 tokens: expected at most 200; choose a shorter text$"):
        layered_graph({"raw": result([f"t{i}" for i in range(201)])})


def test_without_special_tokens_their_rows_are_left_out_but_not_the_coloured_one():
    special = [token in ("[CLS]", "<?>") for token in WORDS]
    whole = {name: replace(one, special=special) for name, one in views(WORDS).items()}
    bare = {name: one.without_special() for name, one in whole.items()}
    page = layered_graph(bare, query=None)
    assert [tick.get_text() for tick in page.axes[0].get_yticklabels()] == WORDS[1:-1]
    ends = np.concatenate([s.astype(int) for s in page.axes[0].collections[0].get_segments()])
    assert set(ends[:, 1]) == set(range(5))
    page = layered_graph(bare, query="[CLS]")
    assert [tick.get_text() for tick in page.axes[0].get_yticklabels()] == WORDS[:-1]
    segments = page.axes[0].collections[0].get_segments()
    assert {tuple(s[1].astype(int))[1] for s in segments} == set(range(1, 6))  # nothing leads to [CLS]
    assert {tuple(s[0].astype(int))[1] for s in segments} == set(range(6))  # but its own edges are drawn
    shares = [one.values / one.values.sum(-1, keepdims=True) for one in bare.values()]
    top = max(share.max() for share in shares)
    assert len(segments) == (shares[0][:, :6] >= 1e-3 * top).sum()
    with pytest.raises(InputError, match="has 1 queries of 7 inputs: expected all queries"):
        layered_graph({"raw": result(WORDS, query=0)}, query=None)


def test_the_graph_has_an_edge_for_every_weight_as_strong_as_its_share():
    tokens = ["a", "b"]
    flow = TokenAttention(
        values=[[[0.5, 0.5], [0, 2.0]], [[0.25, 0.75], [1.0, 1.0]]], method="flow", layers=[0, 1], queries=[0, 1],
        query_tokens=tokens, tokens=tokens, word_ids=[None] * 2, word_texts=[], special=[False] * 2, text="a b",
    )  # fmt: skip
    (at,) = layered_graph({"flow": flow}, query="a").axes
    (lines,) = at.collections[:1]
    ends = {tuple(map(tuple, segment.astype(int).tolist())): i for i, segment in enumerate(lines.get_segments())}
    # (layer, token) of the query and of its key, one layer below; a weight of 0 is not an edge
    assert set(ends) == {
        ((1, 0), (0, 0)), ((1, 0), (0, 1)), ((1, 1), (0, 1)), ((2, 0), (1, 0)), ((2, 0), (1, 1)), ((2, 1), (1, 0)), ((2, 1), (1, 1))
    }  # fmt: skip
    width = lines.get_linewidths()
    assert width[ends[(1, 1), (0, 1)]] > width[ends[(2, 0), (1, 1)]] > width[ends[(2, 0), (1, 0)]]
    assert width[ends[(2, 1), (1, 0)]] == pytest.approx(width[ends[(1, 0), (0, 0)]])  # shares of a row
    colours = [tuple(c[:3]) for c in lines.get_colors()]
    assert {colours[i] for (above, _), i in ends.items() if above[1] == 0} == {matplotlib.colors.to_rgb("#d55e00")}


def test_maps_have_the_first_layer_lowest_and_one_scale_a_view():
    rows = [(str(i), {name: result(WORDS, name, 3, 0, seed=i) for name in ("raw", "flow")}) for i in range(2)]
    figure = layer_maps(rows)
    images = [at.images[0] for at in figure.axes if at.images]
    np.testing.assert_array_equal(images[1].get_array(), rows[0][1]["flow"].values[:, 0])
    assert images[0].origin == "lower" and [t.get_text() for t in images[0].axes.get_yticklabels()] == [
        "L1",
        "L2",
        "L3",
    ]
    assert images[0].get_clim() == images[2].get_clim() == (0, max(r["raw"].values.max() for _, r in rows))
    assert len(figure.axes) == 6


@pytest.mark.parametrize("count", [3, 14, 30])
@pytest.mark.parametrize("kind", ["maps", "lines"])
def test_tokens_never_overlap(count, kind):
    tokens = [("internationalise", "a", "WWWWWWWW", "日本日本")[i % 4] for i in range(count)]
    if kind == "maps":
        figure = layer_maps([("", {"raw": result(tokens, query=0), "flow": result(tokens, query=0)})])
    else:
        figure = layered_graph({"raw": result(tokens), "flow": result(tokens)})
    renderer = drawn(figure)
    at = figure.axes[0]
    ticks = at.get_yticklabels() if kind == "lines" else at.get_xticklabels()
    apart = 90 if kind == "lines" else ticks[0].get_rotation()
    boxes = [t.get_window_extent(renderer) for t in ticks]
    # At an angle, the boxes of labels overlap but the words do not: compare the distance between lines of text.
    for (a, b), tick in zip(pairwise(boxes), ticks, strict=False):
        if kind == "lines":
            assert abs(a.y0 - b.y0) >= tick.get_fontsize() / 72 * figure.dpi
        elif apart == 0:
            assert a.x1 <= b.x0
        else:
            assert (b.x1 - a.x1) * np.sin(np.radians(apart)) >= 1.1 * tick.get_fontsize() / 72 * figure.dpi
    page = figure.bbox
    assert all(box.x0 >= page.x0 and box.y0 >= page.y0 for box in boxes)


def test_pronouns_show_relative_probabilities_and_what_is_favoured():
    e = pronoun()
    figure = pronoun_figure([e])
    bars, *panels = figure.axes
    assert [round(b.get_width(), 6) for b in bars.patches] == [0.75, 0.25]
    blue, orange = (matplotlib.colors.to_rgba(c) for c in ("#0072b2", "#d55e00"))
    assert [b.get_facecolor() for b in bars.patches] == [blue, orange]  # "his" refers to the author, "her" to Sara
    for at, weights in zip(panels, e.weights.values(), strict=True):
        np.testing.assert_array_equal([line.get_ydata() for line in at.lines], weights.T)
        squares = [tuple(s.get_facecolor()[0]) for s in at.collections]
        assert squares == [blue if a > b else orange for a, b in weights]
    unknown = pronoun_figure([MaskedPronoun(replace(e.example, genders=(None, None)), 0.0, 0.0, e.weights)])
    assert {b.get_facecolor() for b in unknown.axes[0].patches} == {matplotlib.colors.to_rgba("#9a9a9a")}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: layered_graph({}), "there are no results"),
        (lambda: layered_graph({"raw": 1}), "'raw' is an int: expected a TokenAttention"),
        (lambda: layered_graph({"raw": result(WORDS, query=0)}), r'has 1 queries .* as from .raw\("all"\)'),
        (lambda: layered_graph({"raw": result(WORDS), "flow": result(ODD)}), "'flow' is a result for 'text': expected"),
        (lambda: layered_graph(views(WORDS), edges=0), "edges=0: expected an int of at least 1"),
        (lambda: layered_graph(views(WORDS), query="no"), "'no'"),
        (lambda: layer_maps([]), "there are no examples"),
        (lambda: layer_maps([("a", views(WORDS, query=0)), ("b", {})]), r"'b' has the methods \[\]: expected \['raw'"),
        (lambda: pronoun_figure([]), "there are no examples"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_files_that_cannot_be_written_say_so(tmp_path):
    figure = layer_maps([("", views(WORDS, query=0))])
    with pytest.raises(InputError, match=r"has the extension '.jpg': expected one of .svg, .pdf, .png"):
        save(figure, tmp_path / "x.jpg")
    with pytest.raises(InputError, match=r"cannot write .*no/x.svg': No such file or directory"):
        save(figure, tmp_path / "no" / "x.svg")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    own = builtins.__import__

    def missing(name, *rest, **more):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return own(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        InputError, match=r"figures need matplotlib, which is not installed: pip install 'attnflow\[plot\]'"
    ):
        layer_maps([("", views(WORDS, query=0))])


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_result_draws_and_saves_itself(tmp_path, kind):
    one = result(WORDS, "flow", layers=4, query=0)
    one.save(tmp_path / f"a.{kind}")
    save(layer_maps([("", {"flow": one})]), tmp_path / f"b.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_what_cannot_be_drawn():
    many = result(WORDS)
    with pytest.raises(InputError, match="this result has 7 queries: give one"):
        many.plot()
    assert many.plot(query="key").axes
    with pytest.raises(InputError, match="image= for raw of a text: expected the result of an image; leave it out"):
        many.plot(query="key", image=np.zeros((2, 2)))
