"""A corpus job on a GPU: the same rows as on a CPU, for every method that explains a batch at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="a corpus needs torch")
ds = pytest.importorskip("pyarrow.dataset", reason="a corpus is kept as parquet")
if not torch.cuda.is_available():
    pytest.skip("the job runs on an NVIDIA GPU", allow_module_level=True)

import attnflow as af  # noqa: E402
from attnflow.corpus import explain_corpus  # noqa: E402

WORDS = ("the", "key", "keys", "to", "of", "cabinet", "cabinets", "near", "old", "house")


def rows(output: Path) -> list[dict[str, Any]]:
    return ds.dataset(output, format="parquet").to_table().to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("methods", "options"),
    [
        ("raw,rollout,flow", {"layers": "all"}),
        ("raw,rollout", {"edges": "attention-gradient"}),
        ("answer_rows,answer_inputs", {}),
        ("rollout,flow", {"edges": "answer", "layers": "all"}),
    ],
)
def test_the_rows_of_a_cpu(methods: str, options: dict[str, Any], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [" ".join(draw.choice(WORDS, size=draw.integers(1, 30))) for _ in range(300)]
    lines[7] = ""
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(lines) + "\n")
    for device in ("cpu", "cuda"):
        explain_corpus(
            source, tmp_path / device, af.load(device=device), methods=methods, shard_texts=100, **options,
        )  # fmt: skip
    there, here = rows(tmp_path / "cuda"), rows(tmp_path / "cpu")
    assert [row["error"] for row in there] == [row["error"] for row in here]
    scores = [name for name in here[0] if name in methods.split(",") or "_L" in name]
    for one, other in zip(there, here, strict=True):
        assert one["tokens"] == other["tokens"] and one["queries"] == other["queries"]
        for name in scores if one["error"] is None else ():
            np.testing.assert_allclose(one[name], other[name], atol=1e-4)
