"""Makes docs/models.md: every architecture of the tests is built, traced and compared, and the table says what came out.

python tests/support.py          prints the page
python tests/support.py --write  writes it
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import attnflow as af
from attnflow.capture.check import Checked
from helpers.architectures import ARCHITECTURES, Architecture, built

PAGE = Path(__file__).parent.parent / "docs" / "models.md"

HEAD = """# Which models, and how

This page is made by `python tests/support.py --write` from the tests' own list of models: each is built small from its
config class with random weights, traced, and compared with what eager attention returns. A test fails when the page is
not what the command gives.

*Captured*: through transformers' attention interface; from what the model returns under eager attention, for files that
do not go through the interface; or by watching PyTorch's fused attention functions. *Same as eager*: the largest
difference between captured weights, head by head, and those that the model returns (– where it returns none or in
another shape, and other tests compare). *Blocks*: whether heads are reduced for some queries at a time, so that no
layer's heads × n × n exists, and whether contexts can be explained with memory="linear". *Batches*: whether padded
batches gave the same as single texts (– for what has no padding).

| model | class | kind | captured | same as eager | blocks | batches |
|---|---|---|---|---|---|---|
"""

TAIL = """
Beyond these, everything that goes through the same three ways: {using} of the {all} model files of transformers
{version} call the attention interface themselves. A model is refused, with the reason, where the self-check fails: when
hooked outputs differ from the model's own, when rows do not sum to one, when something is given to padding or to the
future, when there are fewer attention calls than layers (Mamba, Jamba), when positions mix beside attention (Falcon-H1,
ConvBERT), and where a layer's attention is not one square matrix (Longformer's band).

Real checkpoints in the tests: all-MiniLM-L6-v2 (BERT) and SmolLM2-135M-Instruct (Llama, from GGUF).
"""


def row(a: Architecture) -> str:
    wrapped = af.wrap(built(a))
    trace = wrapped.trace(a.inputs(), keep_heads=True)
    (checked,) = wrapped.checked.values()
    padded = {True: "yes", False: "no", None: "–"}[checked.padding]
    name = type(wrapped.model).__name__
    return f"| {a.name} | {name} | {a.kind} | {checked.route} | {_same(a, trace)} | {_yes(checked)} | {padded} |"


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
    return HEAD + "\n".join(row(a) for a in ARCHITECTURES) + "\n" + TAIL.format(**_files())


def _files() -> dict[str, Any]:
    import transformers

    files = list(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))
    using = sum("ALL_ATTENTION_FUNCTIONS" in file.read_text(encoding="utf-8") for file in files)
    return {"using": using, "all": len(files), "version": transformers.__version__}


if __name__ == "__main__":
    import transformers

    transformers.utils.logging.set_verbosity_error()
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page())
