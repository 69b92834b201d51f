"""The documentation: the site builds without a warning and asks nobody for anything; its programs and numbers are run."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import attnflow as af

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TEXT = "the key to the cabinets"


def markdown(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def fences(name: str, language: str) -> list[tuple[str, str]]:
    """The blocks of code of a page, each with the heading that it stands under."""
    found, heading = [], ""
    for match in re.finditer(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", markdown(name), re.MULTILINE | re.DOTALL):
        heading = match[1] or heading
        if match[2] == language:
            found.append((heading, match[3]))
    return found


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def needs(*packages: str, by: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; {by} installs it")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("mkdocs", "material", "mkdocstrings_handlers", by="make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


class Resources(HTMLParser):
    """What a browser fetches by itself to show a page, and the policy that the page sets."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.policies: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        links = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
        if tag == "link" and links & set(given.get("rel", "").split()):
            self.fetched.append(given["href"])
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "input", "track") and "src" in given:
            self.fetched.append(given["src"])
        self.fetched += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        if tag == "object":
            self.fetched.append(given["data"])
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"])


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 12
    for page in pages:
        seen = Resources(page.read_text(encoding="utf-8"))
        assert seen.policies == ["default-src 'self' 'unsafe-inline' data: blob:"], page.name
        assert seen.fetched, page.name
        for address in seen.fetched:
            assert not re.match(r"(\w+:)?//", address), f"{page.name} fetches {address}"
            if page.name != "404.html" and not address.startswith("data:"):  # 404 is served at any address
                assert (page.parent / address.split("?")[0]).is_file(), f"{page.name} wants {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?\s*(\w+:)?//", style.read_text(encoding="utf-8")), style.name


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    html = (site / "api.html").read_text(encoding="utf-8")
    places = set(re.findall(r'id="attnflow\.([\w.]+)"', html))
    from attnflow import evaluate, importance

    names = [*af.__all__, *evaluate.__all__, *importance.__all__]
    assert [name for name in names if name not in {place.rsplit(".", 1)[-1] for place in places}] == []
    assert {"result.TokenAttention.save", "model.Model.explain", "trace.Trace.words"} <= places
    # "name: meaning" lines are a list, with the line that goes on in the same item; examples are code
    assert re.search(r"<li>\s*(<p>)?<strong>queries</strong>: which positions to explain; None for all\.", html)
    assert "&gt;&gt;&gt;" in html and "<p>&gt;&gt;&gt;" not in html
    assert "Token attention by attention flow" in html


def test_pages_that_are_kept_elsewhere(site: Path) -> None:
    assert "0.1.0" in (site / "changes.html").read_text(encoding="utf-8")
    card = (site / "verb-number.html").read_text(encoding="utf-8")
    assert "stock <code>GPT2ForTokenClassification</code>" in card and "pipeline_tag" not in card
    tutorial = (site / "tutorial.html").read_text(encoding="utf-8")
    assert "One forward pass" in tutorial and "max_flow" in tutorial
    assert (site / "tutorial.ipynb").read_bytes() == (DOCS / "tutorial.ipynb").read_bytes()
    assert 'href="verb-number.html"' in (site / "reproduction.html").read_text(encoding="utf-8")


def test_docstrings_become_markdown() -> None:
    needs("griffe", by="make docs")
    made = module(DOCS / "theme" / "docstrings.py")
    example = "What it is.\n\nA: the graph,\n    or a list.\nlayer: one of them.\n\n>>> 1 + 1\n2"
    assert made.as_markdown(example) == (
        "What it is.\n\n- **A**: the graph,\n  or a list.\n- **layer**: one of them.\n\n```pycon\n>>> 1 + 1\n2\n```"
    )
    assert (
        made.as_markdown("evaluate   a model\nspearman   one of them")
        == "- **evaluate**: a model\n- **spearman**: one of them"
    )
    assert made.as_markdown('A sentence: with a colon.\n\n"ratio", None: two.\nOr not.') == (
        'A sentence: with a colon.\n\n- **"ratio", None**: two.\n  Or not.'
    )


@pytest.mark.parametrize("page", ["maths.md", "edges.md"])
def test_the_examples_of_a_page(page: str) -> None:
    needs("torch", "transformers", by="make test")
    failed, tried = doctest.testfile(str(DOCS / page), False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0 and tried > 20


def plain(text: str) -> str:
    """Numbers as both sources and quotes have them: no bold, no deviations, one minus sign, no plus signs."""
    text = re.sub(r"±\d\.\d\d", "", text.replace("**", "").replace("−", "-"))
    return re.sub(r"(?<![\w.])\+(?=\d\.)", "", text)


def test_quoted_figures_are_those_of_the_measurements() -> None:
    page = " ".join(plain(markdown("reading.md")).split())
    quoted = re.findall(r"-?\d\.\d\d \[[^\]]+\]", page)
    assert len(quoted) == 13
    measured = plain(markdown("reproduction.md") + markdown("decoders.md"))
    assert [figure for figure in quoted if figure not in measured] == []
    table = markdown("reproduction.md").split("## Table 1")[1]
    ties = np.array(
        [[float(x) for x in row.split("|")] for row in re.findall(r"flow, share of tokens that tie \| (.+) \|", table)]
    )
    assert ties.shape == (3, 6)
    assert f"{ties[:, 3].min():.2f} to {ties[:, 3].max():.2f} of the tokens tie at L4" in page
    assert f"{ties[:, 4:].min():.2f} to {ties[:, 4:].max():.2f} at L5 and L6" in page
    assert "sst2: flow, rank correlation with its own last layer | 1.00 |" in markdown("reproduction.md")
    table = markdown("decoders.md").split("The same agreement under other choices")[0]
    bias = dict(re.findall(r"^\| (rollout|flow) \| none \|.*\| (−\d\.\d\d) \|$", table, re.MULTILINE))
    assert f"{bias['rollout']}, flow's {bias['flow']}" in " ".join(markdown("reading.md").split())


def test_the_keys_of_the_page_are_all_told() -> None:
    script = (Path(__file__).parents[2] / "web" / "src" / "keys.js").read_text(encoding="utf-8")
    keys = re.findall(r'\["([^"]+)", "([^"]+)"\]', script.split("const KEYS = ")[1].split("];")[0])
    assert len(keys) > 5
    told = re.findall(r"^\| (<kbd>.*</kbd>) \| (.*) \|$", markdown("reading.md"), re.MULTILINE)
    assert [(" ".join(re.findall("<kbd>(.*?)</kbd>", names)), what) for names, what in told] == keys


def small_decoder() -> af.Model:
    from helpers.architectures import LLAMA, hf
    from helpers.small_tokenizers import byte_level

    tokenizer = byte_level()
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 512}
    return af.wrap(hf("LlamaForCausalLM", **{**LLAMA, **size})(), tokenizer)


def small_vision() -> af.Model:
    import transformers

    from helpers.architectures import IMAGE, hf

    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return af.wrap(hf("ViTForImageClassification", **IMAGE)(), processor)


def small_encoder_decoder() -> af.Model:
    from helpers.architectures import SEQ2SEQ, hf
    from helpers.small_tokenizers import sentencepiece

    tokenizer = sentencepiece()
    options = {**SEQ2SEQ, "vocab_size": len(tokenizer), "decoder_start_token_id": 2}
    return af.wrap(hf("BartForConditionalGeneration", **options)(), tokenizer)


SMALL: dict[str, Callable[[], af.Model]] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": small_decoder,
    "google/vit-base-patch16-224": small_vision,
    "Helsinki-NLP/opus-mt-en-de": small_encoder_decoder,
}


@contextmanager
def server() -> Iterator[str]:
    """The embedded model, served at a free port."""
    needs("fastapi", "uvicorn", by="make test")
    from attnflow.cli.serve import listen
    from attnflow.server.app import Server
    from attnflow.server.limits import Limits
    from attnflow.server.service import served

    with closing(listen("127.0.0.1", 0)) as sock:
        running = Server([served("verb-number", af.load())], Limits(), "127.0.0.1", sock.getsockname()[1])
        thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            limit = time.monotonic() + 60
            while not running.started and time.monotonic() < limit:
                time.sleep(0.02)
            yield running.address.rstrip("/")
        finally:
            running.should_exit = True
            thread.join(20)
            running.jobs.thread.join(20)


def run_program(source: str, folder: Path) -> None:
    """Runs it there, and checks that it wrote what it says it writes."""
    with chdir(folder):
        exec(compile(source, "<recipe>", "exec"), {"__name__": "__main__"})
    for name in re.findall(r'save\("([^"]+)"\)', source):
        assert (folder / name).stat().st_size > 100, name


RECIPES = fences("recipes.md", "python")


@pytest.mark.parametrize(("heading", "source"), RECIPES, ids=[heading for heading, _ in RECIPES])
def test_recipes(
    heading: str,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs("torch", "transformers", "matplotlib", "PIL", "pyarrow", by="make test")
    from PIL import Image

    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 48, 3)).astype(np.uint8)).save(tmp_path / "cat.png")
    load, named = af.load, re.findall(r'^model = af\.load\("([^"]+)"', source, re.MULTILINE)
    assert set(named) <= set(SMALL)
    monkeypatch.setattr(af, "load", lambda model=None: SMALL[model]() if model in SMALL else load(model))
    if "SERVER" in source:
        with server() as address:
            run_program(source.replace("http://127.0.0.1:8421", address), tmp_path)
    else:
        run_program(source, tmp_path)
    assert capsys.readouterr().out.strip()


def test_there_is_a_recipe_for_every_kind() -> None:
    kinds = [
        "A classifier",
        "A language model",
        "A vision transformer",
        "An encoder-decoder",
        "A model in plain PyTorch",
    ]
    others = ["Arrays only", "A whole corpus", "The server from a script"]
    assert list(dict.fromkeys(heading for heading, _ in RECIPES)) == [*kinds, *others]


COMMANDS = [block.partition("\n") for _, block in fences("start.md", "console")]


@pytest.mark.parametrize(("line", "expected"), [(line, rest) for line, _, rest in COMMANDS if "serve" not in line])
def test_commands_of_the_first_page(line: str, expected: str, tmp_path: Path) -> None:
    needs("torch", "transformers", "matplotlib", by="make test")
    from typer.testing import CliRunner

    from attnflow.cli import app

    _, name, *words = shlex.split(line)
    assert name == "attnflow"
    with chdir(tmp_path):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    if expected:
        assert done.stdout.splitlines() == expected.splitlines()
    else:
        (written,) = tmp_path.iterdir()
        assert written.name == words[-1] and written.stat().st_size > 1000


def test_python_of_the_first_page(tmp_path: Path) -> None:
    needs("torch", "transformers", by="make test")
    ((_, source),) = fences("start.md", "python")
    lines = source.strip().splitlines()
    held: dict[str, Any] = {}
    exec("\n".join(lines[:-1]), held)
    assert "<iframe" in eval(lines[-1], held)._repr_html_()


def notebook() -> dict[str, Any]:
    book: dict[str, Any] = json.loads(markdown("tutorial.ipynb"))
    return book


def test_the_notebook_in_the_repository_has_no_outputs() -> None:
    cells = [cell for cell in notebook()["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 10
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert (DOCS / "tutorial.ipynb").stat().st_size < 40_000


def test_the_notebook_runs_from_start_to_end(tmp_path: Path) -> None:
    needs("nbclient", "ipykernel", by="make test")
    needs("torch", "transformers", "matplotlib", by="make test")
    import nbclient
    import nbformat
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(AsyncKernelManager):
        """The kernel of the Python that runs the tests, whatever kernels are installed."""

        @property
        def kernel_spec(self) -> KernelSpec:
            words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=words, display_name="Python 3", language="python")

    book = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        book,
        timeout=60,
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(tmp_path)}},
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
    )
    client.execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.get("evalue") for output in outputs if output.output_type == "error"] == []
    shown = "".join(output.data.get("text/html", "") for output in outputs if "data" in output)
    assert shown.count("<iframe") == 2
    assert TEXT in shown
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "flow 0.8485, width of the cut 0.8485" in printed
    assert "['compare.pdf', 'flow.csv', 'graph.svg', 'page.html', 'rollout.svg']" in printed
