"""The study of attribute-then-verify: its passages, and what it makes of known cases."""

from pathlib import Path

import numpy as np
import pytest

import attnflow as af
from benchmarks.verify import FITS, Passage, compared, passages

LINE = "Sentence number {} is about the weather of a certain day ."


def test_passages_are_neighbouring_sentences(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    lines = [LINE.format(i) if i % 11 else "Title" for i in range(120)]
    file.write_text("\n".join(lines))
    texts = passages(file, 5, seed=3)
    assert texts == passages(file, 5, seed=3) and texts != passages(file, 5, seed=4)
    for text in texts:
        sentences = [line + "." for line in text.rstrip(".").split(". ")]
        assert 8 <= len(sentences) <= 12
        first = int(sentences[0].split()[2])
        assert sentences == [LINE.format(first + k).replace(" .", ".") for k in range(len(sentences))]
    with pytest.raises(af.InputError, match=r"has 11 passages of at least 8 sentences: expected 99$"):
        passages(file, 99, seed=0)


def test_where_everything_is_measured_the_order_is_exact() -> None:
    rng = np.random.default_rng(0)
    cases = [Passage(rng.random(6).tolist(), rng.normal(size=6).tolist()) for _ in range(5)]
    rows = {(row["ablations"], row["fit"]): row for row in compared(cases, [3, 6])}
    assert set(rows) == {(0, "none"), *((count, name) for count in (3, 6) for name in FITS)}
    for name in FITS:
        assert rows[6, name]["spearman"] == pytest.approx(1) and rows[6, name]["top_1"] == 1
    assert rows[0, "none"]["spearman"] < rows[3, "attnflow"]["spearman"] < 1


@pytest.mark.parametrize("name", [name for name in FITS if name != "nothing"])
def test_a_fit_of_scores_that_are_right_is_right(name: str) -> None:
    values = FITS[name](np.array([5.0, 4.0, 3.0, 2.0, 1.0]), {0: 10.0, 1: 8.0})
    assert np.allclose(values[2:], [6.0, 4.0, 2.0])
