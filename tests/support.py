"""Write docs/models.md, docs/deployments.md and docs/deployments.csv from the tests' lists, and the table of methods and
options in docs/edges.md from `attnflow.method_table`.

Every architecture of the tests is built, traced and compared; the deployments are the cells that `tests/deployments` runs.

python tests/support.py          prints the pages
python tests/support.py --write  writes them
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import attnflow as af
from attnflow.capture.check import Checked
from attnflow.markdown import table
from attnflow.method_table import OPTIONS, TEXT_METHODS, takes

sys.path.append(str(Path(__file__).parents[1]))  # the cells import benchmarks

from deployments.all_cells import CELLS
from deployments.cells import Cell
from helpers.architectures import ARCHITECTURES, Architecture, built

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
DEPLOYMENTS = PAGE.parent / "deployments.md"
DEPLOYMENTS_DATA = PAGE.parent / "deployments.csv"
EDGES = PAGE.parent / "edges.md"
METHODS_START, METHODS_END = "<!-- methods and options -->\n\n", "\n\n<!-- end of methods and options -->"

HEAD = """# Which models, and how

Try `af.wrap(model, tokenizer).trace(text)`: the self-check refuses a model that cannot be explained and says why.
The models below are built small with random weights, traced, and compared with eager attention.
[Deployments](deployments.md) lists many more.

"""

TAIL = """
- *Captured*: through transformers' attention interface, from the weights that the model returns under eager attention, or by
  watching PyTorch's fused attention functions.
- *Same as eager*: the largest difference, head by head, from the weights that the model returns (– if it returns none or in
  another shape; other tests compare those).
- *Blocks*: heads are reduced for some queries at a time, so heads × n × n is never stored, and `memory="linear"` works.
- *Batches*: padded batches give the same result as single texts (– without padding).

Other models work the same three ways: {using} of the {all} model files of transformers {version} call the attention interface. A
model is refused if

- hooked outputs differ from the model's own,
- rows do not sum to one, or padding or future positions get attention,
- layers have no attention (Mamba, Jamba),
- positions also mix outside attention (Falcon-H1, ConvBERT),
- a layer's attention is not one square matrix (Longformer's band).

Tests also use two real checkpoints: all-MiniLM-L6-v2 (BERT) and SmolLM2-135M-Instruct (Llama, from GGUF).

`make models` writes this page.
"""

DEPLOYMENTS_HEAD = """# Wherever and however a model runs

Tests cover {cells} ways to load and run models, and families of models: {right} work, and {refused} are refused with a sentence that
says why. There is no third outcome.

*Works* means that a test compares the result with an oracle: the same weights, dequantised, on one device, with eager attention.
*Refused* means that a test expects the sentence. [deployments.csv](deployments.csv) lists every case with its tolerance (the largest
difference, as a share of the largest number) and a note. `make deployments` runs all of them; `make models` writes this page.

## What works

"""

REFUSALS_HEAD = """
## What is refused

Part of the sentence, and the cases that it covers. Words in capitals stand for a name. For cases marked \\* `blank_out()` and
`gradient()` still work; they need no attention.

"""


def row(a: Architecture) -> tuple[tuple[str, ...], str]:
    """Return the properties that the models of one row share, and the model's name."""
    wrapped = af.wrap(built(a))
    trace = wrapped.trace(a.inputs(), keep_heads=True)
    (checked,) = wrapped.checked.values()
    padded = {True: "yes", False: "no", None: "–"}[checked.padding]
    shared = (a.kind, checked.route, _same(a, trace), _yes(checked), padded)
    return shared, f"{a.name} ({type(wrapped.model).__name__})"


def _yes(checked: Checked) -> str:
    return "yes" if checked.blocks else "no"


def _same(a: Architecture, trace: Any) -> str:
    if not a.returns:
        return "–"
    with torch.no_grad():
        out = a.build("eager")(**a.inputs(), output_attentions=True)
    if trace.encoder:
        pairs = [
            (s.weights, x[0].float().mean(0)) for s, x in zip(trace.encoder.steps, out.encoder_attentions, strict=True)
        ]
    else:
        pairs = [(trace.weights[layer], x[0].float()) for layer, x in enumerate(out.attentions)]
    worst = max(float((x - y).abs().max()) for x, y in pairs)
    return "to the bit" if worst == 0 else f"{worst:.0e}"


def page() -> str:
    models: dict[tuple[str, ...], list[str]] = {}
    for a in ARCHITECTURES:
        shared, name = row(a)
        models.setdefault(shared, []).append(name)
    rows = [["models (class)", "kind", "captured", "same as eager", "blocks", "batches"]]
    rows += [["; ".join(names), *shared] for shared, names in models.items()]
    return HEAD + table(rows) + "\n" + TAIL.format(**_files())


def deployments() -> str:
    right = [cell for cell in CELLS if cell.refusal is None]
    head = DEPLOYMENTS_HEAD.format(cells=len(CELLS), right=len(right), refused=len(CELLS) - len(right))
    rows = [["", "works", "refused", "what works"]]
    for group in dict.fromkeys(cell.group for cell in CELLS):
        own = [cell for cell in CELLS if cell.group == group]
        works = [cell.name for cell in own if cell.refusal is None]
        rows.append([group, str(len(works)), str(len(own) - len(works)), listed(works) or "–"])
    return head + table(rows) + "\n" + _without_edges(right) + REFUSALS_HEAD + table(refusals(CELLS)) + "\n"


def _without_edges(cells: Iterable[Cell]) -> str:
    names = [cell.name for cell in cells if cell.note.startswith(NO_EDGES)]
    return f"\nThese work, but without answer edges: {listed(names)}.\n" if names else ""


OPTION = re.compile(r'^`(\w+)="([^"]+)"`$')
NO_EDGES = "answer edges are refused"
OTHER_WAYS = "blank-out and gradients work"


def listed(names: Sequence[str]) -> str:
    """Join names. Names with a common beginning or end share that part.

    >>> listed(["GGUF, F16", "GGUF, Q8_0", "LoRA", "LoRA, merged", "DoRA, compiled"])
    'GGUF (F16, Q8_0); LoRA (also merged); DoRA, compiled'
    >>> listed(['`dtype="float16"`', '`dtype="bfloat16"`', "others"])
    '`dtype` (float16, bfloat16); others'
    >>> listed(["AWQ, packed", "HQQ, packed"])
    'AWQ, HQQ: packed'
    """
    halves = [_halves(name) for name in names]
    if len(names) > 1 and len({end for _, end in halves}) == 1 and halves[0][1]:
        return f"{', '.join(start for start, _ in halves)}: {halves[0][1]}"
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, (start, end) in zip(names, halves, strict=True):
        groups.setdefault(start, []).append((end, name))
    parts = []
    for start, own in groups.items():
        ends = [end for end, _ in own if end]
        also = "also " if len(ends) < len(own) else ""
        parts.append(own[0][1] if len(own) == 1 else f"{start} ({also}{', '.join(ends)})")
    return "; ".join(parts)


def _halves(name: str) -> tuple[str, str]:
    """Split a name into a part that others may share and a short end, which may be empty."""
    plain = OPTION.sub(r"`\1`: \2", name)
    for mark in (": ", ", "):
        start, found, end = plain.rpartition(mark)
        if found and not re.search("[,:()]", end) and start.count("(") == start.count(")"):
            return start, end
    return name, ""


def refusals(cells: Iterable[Cell]) -> list[list[str]]:
    """Return each distinct sentence with the cells it covers."""
    covered: dict[str, list[str]] = {}
    for cell in cells:
        if cell.refusal is not None:
            name = cell.name + ("\\*" if cell.note == OTHER_WAYS else "")
            covered.setdefault(general(cell.refusal), []).append(name)
    return [["sentence", "cases"], *([f"…{text}…", listed(names)] for text, names in covered.items())]


def general(sentence: str) -> str:
    """Replace the parts that differ between models by a word in capitals.

    >>> general("is quantised by awq, which transformers cannot load here")
    'is quantised by METHOD, which transformers cannot load here'
    """
    sentence = re.sub(r"^(L\d+, )*L\d+ \(\w+\)", "LAYERS", sentence)
    sentence = re.sub(r"quantised by [\w-]+,", "quantised by METHOD,", sentence)
    sentence = re.sub(r"'model[.-][^']*('.*)?$", "NAME", sentence)
    return re.sub(r"(: when every position .*|, or in .*|\. blank_out\(\).*)$", "", sentence)


def deployments_data() -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("group", "case", "outcome", "within", "refusal", "note"))
    for cell in CELLS:
        outcome = ("works", f"{cell.within:.0e}", "") if cell.refusal is None else ("refused", "", cell.refusal)
        lines.writerow((cell.group, cell.name, *outcome, cell.note))
    return text.getvalue()


def _files() -> dict[str, Any]:
    import transformers

    files = list(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))
    using = sum("ALL_ATTENTION_FUNCTIONS" in file.read_text(encoding="utf-8") for file in files)
    return {"using": using, "all": len(files), "version": transformers.__version__}


def methods_and_options() -> str:
    """Return the table of what each method can be told, as in docs/edges.md."""

    def cell(method: str, option: str) -> str:
        if takes(method, option):
            return "yes"
        if option == "edges":
            return "answer" * takes(method, option, "answer")
        any_edges = takes(method, option, "alti")
        return "with edges" if any_edges else "with gradient edges" * takes(method, option, "gradient")

    rows = [[f"`{method}`", *(cell(method, option) or "–" for option in OPTIONS)] for method in TEXT_METHODS]
    return table([["method", *(f"`{option}`" for option in OPTIONS)], *rows])


def with_methods(page: str) -> str:
    """Return docs/edges.md with the table as it is now."""
    before, rest = page.split(METHODS_START)
    return f"{before}{METHODS_START}{methods_and_options()}{METHODS_END}{rest.split(METHODS_END)[1]}"


if __name__ == "__main__":
    import transformers

    transformers.utils.logging.set_verbosity_error()
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        DEPLOYMENTS.write_text(deployments(), encoding="utf-8")
        DEPLOYMENTS_DATA.write_text(deployments_data(), encoding="utf-8")
        EDGES.write_text(with_methods(EDGES.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(page(), deployments(), sep="\n")
