"""The embedded model, and the tables and figures of the paper, on small files made here."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="the embedded model needs torch")
transformers = pytest.importorskip("transformers", reason="the embedded model needs transformers")

import attnflow as af  # noqa: E402
from attnflow.paper import agreement  # noqa: E402
from attnflow.paper import paper_tables as tables  # noqa: E402
from attnflow.paper import published as paper  # noqa: E402
from attnflow.paper.result_text import section  # noqa: E402
from benchmarks import reproduction  # noqa: E402
from benchmarks.blimp import BLIMP, balanced, outside  # noqa: E402
from benchmarks.evidence import of_dict  # noqa: E402
from helpers.small_models import bert  # noqa: E402
from helpers.small_tokenizers import wordpiece  # noqa: E402
from reproduction.card import card  # noqa: E402
from reproduction.examples import read_linzen_subset  # noqa: E402
from reproduction.verb_number import accuracy, load  # noqa: E402

FOLDER = Path(af.__file__).parent / "paper" / "verb-number"
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "reproduction"
WORDS = "his her he she him baker guard mover nurse paid because was grateful patience waited for and greeted at door"
SENTENCES = [
    ("the key to the cabinets", "DT NN TO DT NNS", "is", "singular", 1, 1),
    ("the keys to the old cabinet", "DT NNS TO DT JJ NN", "are", "plural", 1, 1),
    ("the people in the room", "DT NNS IN DT NN", "have", "plural", 1, 1),
    ("this book", "DT NN", "has", "singular", 1, 0),
    ("the results of this study", "DT NNS IN DT NN", "show", "plural", 1, 1),
    ("a zyzzyva of the tropics", "DT NN IN DT NNS", "eats", "singular", 1, 1),
    ("the story of the children", "DT NN IN DT NNS", "is", "singular", 1, 1),
    ("most of the cities", "JJS IN DT NNS", "are", "plural", 0, 0),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return af.load()


@pytest.fixture()
def data(tmp_path: Path) -> Path:
    head = "split\twords\ttags\tverb\tnumber\tsubject_index\tattractors"
    lines = [
        "\t".join(("test", words, tags, verb, number, str(i), str(n))) for words, tags, verb, number, i, n in SENTENCES
    ]
    (tmp_path / "agreement").mkdir()
    (tmp_path / "agreement" / "agreement.tsv").write_text("\n".join([head, *lines]) + "\n")
    return tmp_path


def test_the_embedded_model_is_small_and_plain(model: Any) -> None:
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size < 6_000_000
    from safetensors.torch import load_file

    assert {t.dtype for t in load_file(weights).values()} == {torch.float16}
    assert (FOLDER / "README.md").is_file() and (FOLDER / "training.json").is_file()
    told = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
    assert (FOLDER / "README.md").read_text(encoding="utf-8").startswith(card(told))
    assert model.name == "verb-number" and model.dtype == torch.float32
    config = model.config
    assert (config.n_layer, config.n_head, config.n_embd, config.is_causal) == (6, 8, 128, False)
    plain = transformers.AutoModelForTokenClassification.from_pretrained(FOLDER)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    ids = tokenizer("the key to the cabinets", return_tensors="pt")
    with torch.no_grad():
        said = torch.softmax(plain.eval()(**ids).logits[0, 0].double(), -1)
    assert model.trace("the key to the cabinets").prediction.top[0][1] == pytest.approx(float(said.max()), abs=1e-3)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the key to the cabinets", "singular"),
        ("the keys to the cabinet", "plural"),
        ("The people in the room", "plural"),
        ("the article on NNP large systems", "singular"),
        ("the articles on NNP large system", "plural"),
        ("these results", "plural"),
    ],
)
def test_what_it_says(model: Any, text: str, number: str) -> None:
    trace = model.trace(text)
    assert trace.prediction.kind == "class" and trace.prediction.top[0][0] == number
    assert trace.tokens[0] == "[CLS]" and trace.tokens[-1] == "[EOS]" and trace.default_query == 0


def test_its_accuracy() -> None:
    where = os.environ.get("ATTNFLOW_DATA")
    if not where:
        pytest.skip("ATTNFLOW_DATA does not name the folder with the data")
    network, tokenizer = load(FOLDER)
    examples = [e for e in agreement.read(Path(where) / "agreement" / "agreement.tsv.xz") if e.split == "test"]
    assert accuracy(network, tokenizer, examples)["all"]["accuracy"] >= 0.987
    subset = read_linzen_subset(Path(where) / "linzen_subset")
    assert accuracy(network, tokenizer, subset)["0"]["accuracy"] >= 0.976


def test_show_without_arguments(attnflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = attnflow("show").out
    assert out.startswith("class: 'singular'") and "cabinets" in out
    assert out.rstrip() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_show_what_tokens_are_worth(model: Any, attnflow: Any) -> None:
    out = attnflow("show", "--method", "blank-out", "--no-special", "--json").out
    found = json.loads(out)
    assert found["method"] == "blank-out" and found["tokens"] == ["the", "key", "to", "the", "cabinets"]
    assert np.allclose(found["values"], model.blank_out("the key to the cabinets").without_special().values)
    out = attnflow("show", "--method", "gradient").out
    assert out.startswith("class: 'singular'") and "gradient" in out
    words = json.loads(attnflow("show", "--method", "gradient", "--words", "--json").out)
    assert np.allclose(words["values"], model.gradient("the key to the cabinets").words().values)


def correlation(x: Any, y: Any) -> float:
    x = x.round(9)
    return float("nan") if len(set(x.tolist())) == 1 else float(stats.spearmanr(x, y).statistic)


def test_tables_are_the_loop(model: Any, data: Path) -> None:
    examples = agreement.read(data / "agreement" / "agreement.tsv")
    found = tables.verb_number_tables([("seed 0", model)], examples, lambda line: None, resamples=200)
    vocabulary = model.tokenizer.get_vocab()
    expected: dict[str, list[Any]] = {"text": [], "words": [], "authors": []}
    for e in examples:
        text = {"input_ids": torch.tensor([agreement.encode(e, vocabulary, 64)])}
        trace, worth = model.trace(text), model.blank_out(text, e.number).row()
        rows = [getattr(trace, view)(query=0).values[:, 0] for view in ("raw", "rollout", "flow")]
        no_end = np.append(worth[:-1], 0)
        expected["text"].append([[correlation(x, worth) for x in r] for r in rows])
        expected["words"].append([[correlation(x[1:-1], worth[1:-1]) for x in r] for r in rows])
        dense = [[[stats.rankdata(v.round(12), "dense") for v in (x, no_end)] for x in r] for r in rows]
        n = len(worth)
        expected["authors"].append([[1 - 6 * ((a - b) ** 2).sum() / (n**3 - n) for a, b in r] for r in dense])
    for reading, values in expected.items():
        means = np.nanmean(values, 0)
        for v, view in enumerate(("raw", "rollout", "flow")):
            for layer, cell in enumerate(found["table1"]["all"][reading][view]):
                assert cell["mean"]["mean"] == pytest.approx(means[v, layer], abs=0.02), (reading, view, layer)
    run_ = found["table1"]["runs"][0]
    assert run_["accuracy"] >= 7 / 8 and run_["cancellation"]["ratio"] < 1e-5
    assert run_["ties"]["flow"][5] >= run_["ties"]["rollout"][5]
    json.dumps(found, allow_nan=False)


def test_rare_words_become_their_tag(model: Any, data: Path) -> None:
    rare = agreement.read(data / "agreement" / "agreement.tsv")[5]
    ids = agreement.encode(rare, model.tokenizer.get_vocab(), 64)
    assert model.tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "a", "NN", "of", "the", "NNS", "[EOS]"]


def constructed(raw: list[float], rollout: list[float], flow: list[float]) -> Any:
    noise = np.random.default_rng(0).normal(0, 0.05, (200, 3, len(raw)))
    return np.array([raw, rollout, flow])[None] + noise


def verdicts(*means: list[float]) -> dict[str, str]:
    return {name: c["verdict"] for name, c in tables.claims(constructed(*means), 500, 0).items()}


def test_claims_on_constructed_correlations() -> None:
    raw, rollout, flow = (
        [0.7, 0.1, -0.1, -0.1, 0.2, 0.3],
        [0.3, 0.4, 0.5, 0.6, 0.65, 0.7],
        [0.3, 0.45, 0.7, 0.72, 0.74, 0.76],
    )
    assert verdicts(raw, rollout, flow) == dict.fromkeys(paper.CLAIMS, "holds")
    falls = [0.3, 0.4, 0.35, 0.6, 0.65, 0.7]
    assert verdicts(raw, falls, [*flow[:5], 0.2]) == {
        "collapse": "holds",
        "growth": "contradicted",
        "ahead": "contradicted",
        "end": "contradicted",
    }
    assert verdicts([0.5] * 6, rollout, flow)["collapse"] == "contradicted"  # it does not fall to half
    level = [0.3, 0.4, 0.4, 0.6, 0.65, 0.7]
    assert verdicts(raw, level, flow)["growth"] == "undecided"


@pytest.mark.parametrize("layer", [1, 4])
def test_a_claim_about_attention_that_ranks_nothing_cannot_be_asked(layer: int) -> None:
    found = constructed(
        [0.7, 0.1, -0.1, -0.1, 0.2, 0.3], [0.3, 0.4, 0.5, 0.6, 0.65, 0.7], [0.3, 0.45, 0.7, 0.72, 0.74, 0.76]
    )
    found[:, 0, layer] = np.nan
    told = tables.claims(found, 100, 0)
    assert told["collapse"]["verdict"] == "cannot be asked" and told["growth"]["verdict"] == "holds"
    assert tables.claims(found[:, :, :2], 100, 0)["ahead"]["verdict"] == "cannot be asked"  # there is no L3


def test_the_papers_own_tables() -> None:
    holds = {"collapse": "holds", "growth": "holds", "ahead": "holds", "end": "holds"}
    assert tables.papers_claims("table1") == {**holds, "ahead": "contradicted"}  # L6: 0.70 and 0.71
    assert tables.papers_claims("table2") == holds
    assert tables.papers_claims("table3")["ahead"] == "contradicted"
    for rows in paper.TABLES.values():
        assert rows["rollout"][0] == rows["flow"][0]  # equal at L1, by definition


def test_over_all_seeds() -> None:
    one, two = (np.random.default_rng(k).normal(k / 10, 0.1, (50, 3, 6)) for k in (1, 2))
    one[0, 0, 0] = np.nan
    found = tables.over_all([one, two], 300, 0)["raw"]
    assert found[0]["n"] == 99 and found[1]["n"] == 100
    assert found[1]["models"] == pytest.approx([one[:, 0, 1].mean(), two[:, 0, 1].mean()])
    assert found[1]["mean"]["mean"] == pytest.approx(np.mean([one[:, 0, 1], two[:, 0, 1]]))
    assert found[1]["mean"]["low"] < found[1]["mean"]["mean"] < found[1]["mean"]["high"]


@pytest.mark.long
def test_commands(attnflow: Any, monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    out = tmp_path / "out"
    shown = attnflow("reproduce", "table1", "--data", str(data), "-o", str(out)).out
    assert "| raw, paper | 0.69±0.27 |" in shown and "Evenness and ties" in shown
    shown = attnflow("reproduce", "figure3", "-o", str(out)).out
    assert "the article on NNP large systems" in shown
    for name in ("table1", "figure3"):
        for kind in ("json", "md", *(("svg", "pdf", "png") if name == "figure3" else ())):
            assert (out / f"{name}.{kind}").stat().st_size > 0
    reproduction.main(out)
    for damage in ("[]", "{}", "null", '{"table": "table2"}', "{"):
        (out / "table2.json").write_text(damage)
        with pytest.raises(af.InputError, match=r"table2\.json' is damaged"):
            reproduction.main(out)
    page = (tmp_path / "out.md").read_text()
    assert "![Figure 3" in page and "out/figure3.svg" in page and not re.search(r"\bnan\b", page, re.IGNORECASE)


def test_a_layer_whose_attention_ranks_nothing_is_a_gap(data: Path) -> None:
    """As in models trained with strong dropout: no mean, no crash, and the reason in the table."""
    model = af.load()
    with torch.no_grad():
        model.model.transformer.h[5].attn.c_attn.weight[:, :256] = 0  # queries and keys
        model.model.transformer.h[5].attn.c_attn.bias[:256] = 0
    examples = agreement.read(data / "agreement" / "agreement.tsv")
    told = tables.verb_number_tables([("seed 0", model)], examples, lambda line: None, resamples=50)["table1"]
    assert told["all"]["text"]["raw"][5]["mean"] is None and told["runs"][0]["evenness"][5] == pytest.approx(1)
    assert told["runs"][0]["claims"]["text"]["end"]["verdict"] == "cannot be asked"
    told["runs"][0]["training"] = None
    shown = section({**told, "recipe": "plain"})
    assert "| none |" in shown and "(attention the same for all tokens): of 8 texts 8 at raw L6" in shown
    assert "rollout L6 − raw L6 does not exist" in shown


@pytest.mark.long
def test_table3_and_figure4(attnflow: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    transformers.utils.logging.disable_progress_bar()
    for kind, name in (("BertForSequenceClassification", "sst2"), ("BertForMaskedLM", "masked-lm")):
        small = bert(kind, wordpiece(*WORDS.split()))
        small.unwrap().save_pretrained(tmp_path / "models" / name)
        small.tokenizer.save_pretrained(tmp_path / "models" / name)
    (tmp_path / "sst2").mkdir()
    rows = "".join(f"{text}\t{k % 2}\n" for k, (text, *_) in enumerate(SENTENCES[:3]))
    (tmp_path / "sst2" / "test.tsv").write_text("sentence\tlabel\n" + rows)
    given = ("--data", str(tmp_path), "--models", str(tmp_path / "models"), "-o", str(tmp_path / "out"))
    shown = attnflow("reproduce", "table3", *given).out
    assert "| rollout, ours |" in shown and "3 texts" in shown  # two layers only, so the paper's rows are left out
    shown = attnflow("reproduce", "figure4", *given).out
    assert "The author talked to Sara about [MASK] book" in shown
    found = json.loads((tmp_path / "out" / "figure4.json").read_text())
    assert [e["candidates"] for e in found["examples"]] == [["author", "Sara"], ["Mary", "John"]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("reproduce", "table9"), "'table9': expected some of table1, table2, table3, figure1, figure2, figure3, figure4; or all"),
        (("reproduce", "table1", "--data", "nowhere"), "there is no 'nowhere': expected a folder with the data, or a file of examples"),
        (("reproduce", "table1", "--data", "."), "the folder '.' contains none of agreement.tsv, agr_50_mostcommon_10K.tsv (or .xz, .gz)"),
        (("reproduce", "table1", "--seeds", "x"), "seeds 'x': expected integers from 0 separated by commas"),
        (("reproduce", "table1", "--seeds", "0,0"), "seeds=[0, 0]: expected each seed once"),
        (("reproduce", "figure2", "--recipe", "authors"), "there is no trained model in 'reproduced/models/verb-number-authors-seed0': train the recipe 'authors' with seed 0 there, by `python -m reproduction verb-number`"),
        (("reproduce", "table3"), "give data=, a folder that contains test.tsv (or .xz, .gz)"),
        (("reproduce", "table3", "--data", "."), "the folder '.' does not contain test.tsv (or .xz, .gz)"),
        (("reproduce", "all", "-m", "x"), "model= works for either table3 or figure4"),
        (("train", "sst2"), "No such command 'train'"),
    ],
)  # fmt: skip
def test_mistakes(
    attnflow: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--seeds" in given:
        (tmp_path / "agreement.tsv").write_text(
            "split\twords\ttags\tverb\tnumber\ntest\tthe key\tDT NN\tis\tsingular\n"
        )
        given = (*given, "--data", ".")
    err = attnflow(*given, status=2).err
    assert message in err


def test_a_page_needs_results(tmp_path: Path) -> None:
    with pytest.raises(af.InputError, match="has no results: run attnflow reproduce first"):
        reproduction.page(tmp_path)


def test_the_page_is_made_from_the_results() -> None:
    assert reproduction.page(RESULTS) == (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    tables = reproduction.data(RESULTS)
    assert sorted(tables) == ["tables.csv"]
    assert all((RESULTS / name).read_text(encoding="utf-8") == text for name, text in tables.items())


def test_the_page_shows_the_numbers_of_the_results() -> None:
    page, result = reproduction.page(RESULTS), json.loads((RESULTS / "table1.json").read_text())
    cells = " | ".join(f"{cell['mean']['mean']:.2f}" for cell in result["all"]["text"]["flow"])
    assert f"| flow, ours | {cells} |" in page.split("## Table 2")[0]
    rows = (RESULTS / "tables.csv").read_text().splitlines()
    assert len(rows) == 1 + 5 * 3 * 3 * 6, "five results of three readings, three views and six layers"
    first = result["all"]["text"]["raw"][0]["mean"]
    assert rows[1].startswith(f"table1,best,text,raw,1,0.69,0.27,{first['mean']:.4f},{first['low']:.4f}")
    assert len(page.split()) <= 3800


def test_the_first_sentence_on_the_claims_is_what_the_verdicts_say() -> None:
    """If the results change, so must that sentence."""
    assert "**Most hold for models trained as the authors did. With little dropout only" in reproduction.page(RESULTS)

    def share(recipe: str, claim: str) -> float:
        results = [json.loads((RESULTS / f"{table}{recipe}.json").read_text()) for table in ("table1", "table2")]
        verdicts = [
            run["claims"][r][claim]["verdict"] for x in results for run in x["runs"] for r in ("text", "authors")
        ]
        asked = [verdict for verdict in verdicts if verdict != "cannot be asked"]
        return asked.count("holds") / len(asked)

    assert all(share("-authors", claim) > 0.5 for claim in paper.CLAIMS)
    assert [claim for claim in paper.CLAIMS if share("", claim) > 0.5] == ["end"]


def test_other_sentences_stand_on_the_page_layer_by_layer(tmp_path: Path) -> None:
    assert outside(tmp_path / BLIMP) == ""
    text = outside(RESULTS.parent / BLIMP)
    right, wrong = (of_dict(content) for content in json.loads((RESULTS.parent / BLIMP).read_text()))
    assert (right.task, wrong.task, right.model) == ("agreement", "mistakes", "verb-number") and right.cases >= 300
    (row,) = (line for line in text.splitlines() if line.startswith("| rollout, right |"))
    shares = right.measures["subject above attractor"]
    assert [float(cell) for cell in row.split("|")[2:-1]] == [
        pytest.approx(shares[f"rollout L{layer}"].mean, abs=0.00501) for layer in range(1, 7)
    ]
    assert balanced(right, wrong, "first") == 0.5, "knowing the place of the subject is worth nothing"
    (tmp_path / BLIMP).parent.mkdir()
    (tmp_path / BLIMP).write_text("[]")
    with pytest.raises(af.InputError, match=r"verb-number\.json' is damaged .*: run benchmarks.evidence again"):
        outside(tmp_path / BLIMP)


def test_the_results_answer_the_paper() -> None:
    for name in ("table1", "table2", "table1-authors", "table2-authors"):  # 3 seeds, 2,000 samples, every reading
        told = json.loads((RESULTS / f"{name}.json").read_text())
        assert told["samples"] == 2000 and len(told["runs"]) >= 3
        for reading in ("text", "words", "authors"):
            assert all(cell["mean"] is not None for cells in told["all"][reading].values() for cell in cells)
    best = json.loads((RESULTS / "table1.json").read_text())["runs"]
    assert all(run["training"]["accuracy"]["test"]["all"]["accuracy"] >= 0.986 for run in best)
    assert json.loads((RESULTS / "table3.json").read_text())["samples"] == 872
