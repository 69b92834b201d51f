"""The numbers of the calls that users care about, on small models of every family and on the embedded model.

``python tests/helpers/baseline.py --write FILE`` stores them; without ``--write`` they are computed again and compared with
FILE (default: baseline.npz beside this script). A refactoring must give the same numbers, within 1e-6 of their size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from pyarrow import parquet

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import attnflow as af  # noqa: E402
from attnflow.errors import InputError, ModelError  # noqa: E402
from helpers.architectures import ARCHITECTURES, built  # noqa: E402
from helpers.small_models import bert  # noqa: E402
from helpers.small_tokenizers import byte_level  # noqa: E402

FILE = Path(__file__).with_name("baseline.npz")
TOLERANCE = 1e-6
TEXT = "the key to the cabinets"
EDGES = (
    "max", "effective", "gradient", "attention-gradient", "value-norm", "block-norm", "head-norm", "projection", "alti",
    "answer", "value-zeroing",
)  # fmt: skip
PASSAGE = "the key to the old cabinet is here. The books are there.\n\nThe shelves are new. who has the key?"
TEXTS = [TEXT, "the keys to the old cabinet near the door", "the author of the books", "the people in the room"]
AGREEMENT = """split\twords\ttags\tverb\tnumber\tsubject_index\tattractors
test\tthe key to the cabinets\tDT NN TO DT NNS\tis\tsingular\t1\t1
test\tthe keys to the old cabinet\tDT NNS TO DT JJ NN\tare\tplural\t1\t1
test\tthe people in the room\tDT NNS IN DT NN\thave\tplural\t1\t1
test\tthis book\tDT NN\thas\tsingular\t1\t0
test\tthe results of this study\tDT NNS IN DT NN\tshow\tplural\t1\t1
test\tthe story of the children\tDT NN IN DT NNS\tis\tsingular\t1\t1
"""

Numbers = Iterator[tuple[str, Any]]


def values_of(name: str, call: Callable[[], Any]) -> Numbers:
    """Yield the values of a result, or nan if the library refuses the call."""
    try:
        result = call()
    except (InputError, ModelError):
        yield name, np.array([np.nan])
        return
    yield name, getattr(result, "values", result)


def of_traces(name: str, model: Any, text: Any, edges: tuple[str, ...] = EDGES) -> Numbers:
    trace = model.trace(text)
    for view in ("raw", "rollout", "flow"):
        yield from values_of(f"{name}/{view}", getattr(trace, view))
    for kind in edges:
        yield from values_of(f"{name}/{kind}", lambda kind=kind: model.trace(text, edges=kind).rollout())
    for view in ("answer_rows", "answer_inputs", "sources"):
        yield from values_of(f"{name}/{view}", lambda view=view: getattr(model.trace(text, edges="answer"), view)())
    yield from values_of(f"{name}/linear", lambda: model.trace(text, memory="linear").rollout())
    for edge in ("answer", "value-norm"):
        linear = lambda edge=edge: model.trace(text, memory="linear", edges=edge)  # noqa: E731
        yield from values_of(f"{name}/linear/{edge}", lambda linear=linear: linear().rollout())


def of_answers(name: str, model: Any, prompt: Any, answer: Any) -> Numbers:
    a = model.answer(prompt, answer=answer)
    yield f"{name}/log p", a.log_probabilities
    yield from values_of(f"{name}/token", a.sources)
    yield from values_of(f"{name}/matrix", lambda: a.matrix(signed=True))
    yield from values_of(f"{name}/hops", a.hops)
    if isinstance(prompt, str):
        for method in (None, "answer_rows", "fading", "rollout"):
            yield from values_of(f"{name}/sentence/{method}", lambda m=method: a.sources(unit="sentence", method=m))
        for unit in ("word", "sentence", "paragraph"):
            yield from values_of(f"{name}/left out/{unit}", lambda unit=unit: a.leave_out(unit))
        yield from values_of(f"{name}/verified", lambda: a.sources(unit="sentence", verify=2))


def of_architectures() -> Numbers:
    for architecture in ARCHITECTURES:
        model = af.wrap(built(architecture))
        name = f"family/{architecture.name}"
        try:
            model.trace(architecture.inputs())
        except (InputError, ModelError):
            yield name, np.array([np.nan])
            continue
        yield from of_traces(name, model, architecture.inputs())
        if architecture.kind in ("decoder", "encoder-decoder"):
            try:
                yield from of_answers(f"{name}/answer", model, list(range(5, 19)), [7, 61, 30])
            except (InputError, ModelError):
                yield f"{name}/answer", np.array([np.nan])


def of_decoder() -> Numbers:
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.4, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = af.wrap(transformers.LlamaForCausalLM(config).double(), tokenizer)
    yield from of_answers("decoder", model, PASSAGE, "the cabinet has the key")
    yield "decoder/written", np.array(model.answer(PASSAGE, max_new_tokens=6).ids)


def of_importance() -> Numbers:
    for name, model in {"embedded": af.load(), "classifier": bert("BertForSequenceClassification")}.items():
        yield from of_traces(name, model, TEXT)
        yield from values_of(f"{name}/words", lambda model=model: model.trace(TEXT, edges="answer").sources().words())
        yield from values_of(f"{name}/blank-out", lambda model=model: model.blank_out(TEXT))
        yield from values_of(f"{name}/gradient", lambda model=model: model.gradient(TEXT))
        yield from values_of(f"{name}/integrated", lambda model=model: model.integrated_gradients(TEXT))


def leaves(path: str, content: Any) -> Numbers:
    """Yield the numbers in a JSON document."""
    if isinstance(content, dict):
        for key in sorted(content):
            yield from leaves(f"{path}/{key}", content[key])
    elif isinstance(content, list):
        for number, item in enumerate(content):
            yield from leaves(f"{path}/{number}", item)
    elif isinstance(content, float):
        yield path, np.array([content])


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "attnflow", *words], check=True, capture_output=True, text=True)


def of_commands(folder: Path) -> Numbers:
    texts = folder / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    run(
        "corpus",
        "run",
        str(texts),
        str(folder / "job"),
        "--method",
        "raw,rollout,flow,answer_inputs",
        "--edges",
        "answer",
    )
    run("corpus", "run", str(texts), str(folder / "plain"), "--method", "raw,rollout,flow")
    for job in ("job", "plain"):
        for part in sorted((folder / job).rglob("*.parquet")):
            for row in parquet.read_table(part).to_pylist():
                for column in ("raw", "rollout", "flow", "answer_inputs"):
                    if row.get(column) is not None:
                        yield f"corpus/{job}/{row['text']}/{column}", np.array(row[column])
    run("evaluate", str(texts), "-o", str(folder / "grid"), "--importance", "blank-out,gradient")
    for path in sorted((folder / "grid").rglob("*.json")):
        yield from ((key, x) for key, x in leaves(f"evaluate/{path.name}", json.loads(path.read_text())) if steady(key))
    (folder / "agreement").mkdir()
    (folder / "agreement" / "agreement.tsv").write_text(AGREEMENT)
    run("reproduce", "table1", "table2", "figure1", "--data", str(folder), "-o", str(folder / "paper"))
    for path in sorted((folder / "paper").glob("*.json")):
        yield from ((key, x) for key, x in leaves(f"paper/{path.name}", json.loads(path.read_text())) if steady(key))


def steady(key: str) -> bool:
    return not any(word in key.lower() for word in ("second", "time", "version"))


def measured() -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        parts = (of_importance(), of_decoder(), of_commands(Path(folder)), of_architectures())
        return {name: np.asarray(x, np.float64).astype(np.float32) for part in parts for name, x in part}


def differences(stored: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> Iterator[str]:
    for name, expected in stored.items():
        value = now.get(name)
        if value is None or value.shape != expected.shape:
            yield f"{name}: {'missing' if value is None else f'shape {value.shape}, was {expected.shape}'}"
        elif not np.allclose(value, expected, rtol=TOLERANCE * 10, atol=TOLERANCE, equal_nan=True):
            gap = np.nanmax(np.abs(value - expected))
            yield f"{name}: differs by {gap:.2g} of {np.nanmax(np.abs(expected)):.2g}"
    yield from (f"{name}: new" for name in now.keys() - stored.keys())


def write(file: Path, numbers: dict[str, np.ndarray]) -> None:
    shapes = [list(x.shape) for x in numbers.values()]
    index = json.dumps(dict(zip(numbers, shapes, strict=True)))
    np.savez_compressed(file, index=np.array(index), values=np.concatenate([x.ravel() for x in numbers.values()]))


def read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as stored:
        index, values = json.loads(str(stored["index"])), stored["values"]
    ends = np.cumsum([int(np.prod(shape)) for shape in index.values()])
    return {name: x.reshape(index[name]) for name, x in zip(index, np.split(values, ends[:-1]), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    numbers = measured()
    if arguments.write:
        write(arguments.file, numbers)
        print(f"{len(numbers)} numbers or arrays written to {arguments.file}")
        return
    lines = list(differences(read(arguments.file), numbers))
    print("\n".join(lines) or f"{len(numbers)} as stored")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
