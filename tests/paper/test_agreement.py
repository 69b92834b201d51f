"""Readers of agreement data: their results, and their errors for files that cannot be used."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from attnflow.errors import InputError
from attnflow.paper import agreement, data_files
from attnflow.paper.agreement import Example, as_tokens

HEADER = "split\tsource\tgenre\twords\ttags\tverb\tnumber\tsubject_index\tintervening_nouns\tattractors\tsent_id"
ROW = 'train\tweb\tnews\tthe keys to the "safe\tDT NNS IN DT NN\tare\tplural\t1\t1\t1\ta-1'
MORE = "source\twords\ttags\tverb\tnumber\nweb\tthe key\tDT NN\tis\tsingular\n"
LINZEN = {
    "sentence": "the NNS to the cabinet are here", "orig_sentence": "the keyz to the cabinet are here",
    "pos_sentence": "DT NNS TO DT NN VBP RB", "subj": "keyz", "verb": "are", "subj_pos": "NNS", "has_rel": "False",
    "has_nsubj": "False", "verb_pos": "VBP", "subj_index": "2", "verb_index": "6", "n_intervening": "1",
    "last_intervening": "NN", "n_diff_intervening": "1", "distance": "4", "max_depth": "1", "all_nouns": "keyz cabinet",
    "nouns_up_to_verb": "keyz cabinet",
}  # fmt: skip


def write(folder: Path, name: str, text: str) -> Path:
    path, data = folder / name, text.encode()
    path.write_bytes(
        lzma.compress(data) if name.endswith(".xz") else gzip.compress(data) if name.endswith(".gz") else data
    )
    return path


def linzen(**changes: str) -> str:
    return "\t".join(LINZEN) + "\n" + "\t".join({**LINZEN, **changes}.values()) + "\n"


@pytest.mark.parametrize("ending", ["", ".xz", ".gz"])
def test_the_columns_of_agreement(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path, f"a.tsv{ending}", f"{HEADER}\n{ROW}\n")
    (found,) = agreement.read(path)
    # A quotation mark belongs to its word, not to the file's syntax.
    assert found.words == ("the", "keys", "to", "the", '"safe')
    assert found == Example(found.words, "plural", ("DT", "NNS", "IN", "DT", "NN"), "are", 1, 1, "train")


def test_what_a_file_does_not_say_is_none(tmp_path: Path) -> None:
    (found,) = agreement.read(write(tmp_path, "more.tsv", MORE))
    assert found == Example(("the", "key"), "singular", ("DT", "NN"), "is", None, None, None)


def test_the_published_linzen_file_counts_from_one(tmp_path: Path) -> None:
    (found,) = agreement.read(write(tmp_path, "l.tsv.gz", linzen()))
    assert found.words == ("the", "keyz", "to", "the", "cabinet") and found.words[found.subject or 0] == "keyz"
    assert (found.number, found.verb, found.attractors, found.split) == ("plural", "are", 1, "test")
    # In the published file rare words are already tags; words and tags together give the same.
    assert as_tokens(found, {"the", "to", "cabinet", "NNS"}) == LINZEN["sentence"].split()[:5]


def test_the_published_linzen_file_quotes_as_csv_does(tmp_path: Path) -> None:
    (found,) = agreement.read(write(tmp_path, "l.tsv", linzen(orig_sentence='"the ""keys"" to the cabinet are here"')))
    assert found.words[1] == '"keys"'


def test_splits_of_the_linzen_file_are_10_1_89_and_always_the_same() -> None:
    examples = [Example((str(i),), "plural") for i in range(1000)]
    found = agreement.split_linzen(examples)
    assert [e.split for e in found] == ["train"] * 100 + ["valid"] * 10 + ["test"] * 890
    assert found == agreement.split_linzen(examples) and found != agreement.split_linzen(examples, seed=2)
    assert sorted(e.words for e in found) == sorted(e.words for e in examples)


def test_rare_words_become_tags_or_unknown() -> None:
    example, bare = (
        Example(("The", "Glands", "!"), "plural", ("DT", "NNS", "SYM")),
        Example(("the", "glands"), "plural"),
    )
    assert as_tokens(example, {"the", "NNS", "DT"}) == ["the", "NNS", "[UNK]"]
    assert as_tokens(example, {"the", "glands", "NNS"}) == ["the", "glands", "[UNK]"]
    assert as_tokens(bare, {"the", "NNS"}) == ["the", "[UNK]"]


def changed(column: str, value: str) -> str:
    row = dict(zip(HEADER.split("\t"), ROW.split("\t"), strict=True)) | {column: value}
    return f"{HEADER}\n" + "\t".join(row.values()) + "\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("words\tverb\nthe key\tis\n", "has the columns 'words', 'verb': expected tab-separated columns with 'words', 'tags', 'verb', 'number', or those of the published"),
        (f"{HEADER}\n", "has no examples: expected at least one line after the column names"),
        (f"{HEADER}\n{ROW}\tmore\n", "a.tsv, line 2: more cells than the 11 columns of the first line"),
        (f"{HEADER}\n{ROW}\nshort\n", "a.tsv, line 3: fewer cells than the 11 columns of the first line"),
        (changed("number", "dual"), "a.tsv, line 2: number is 'dual'; expected one of 'singular', 'plural'"),
        (changed("words", " "), "a.tsv, line 2: there are no words before the verb; expected at least one"),
        (changed("tags", "DT NNS"), "a.tsv, line 2: 5 words and 2 tags; expected one tag for each word"),
        (changed("subject_index", "5"), "a.tsv, line 2: subject_index is '5'; expected a word's index, 0 to 4"),
        (changed("subject_index", "-1"), "a.tsv, line 2: subject_index is '-1'; expected a word's index, 0 to 4"),
        (changed("subject_index", "one"), "a.tsv, line 2: subject_index is 'one'; expected a word's index, 0 to 4"),
        (changed("attractors", "some"), "a.tsv, line 2: attractors is 'some'; expected a count, 0 or more"),
        (changed("attractors", "-2"), "a.tsv, line 2: attractors is '-2'; expected a count, 0 or more"),
        (linzen(verb_pos="VBD"), "a.tsv, line 2: verb_pos is 'VBD'; expected one of 'VBZ', 'VBP'"),
        (linzen(verb_index="8"), "a.tsv, line 2: verb_index is '8'; expected a word's index, 1 to 7"),
        (linzen(verb_index="1"), "a.tsv, line 2: verb_index is 1, so there is no word before the verb; expected at least 2"),
        (linzen(subj_index="6"), "a.tsv, line 2: subj_index is '6'; expected a word's index, 1 to 5"),
        (linzen(pos_sentence="DT NN"), "a.tsv, line 2: 7 words and 2 tags; expected one tag for each word"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        agreement.read(write(tmp_path, "a.tsv", text))
    assert says in str(caught.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no column 'words', 'tags': it has 'verb', 'number'; expected tab-separated"
    ):
        agreement.read_agreement(write(tmp_path, "a.tsv", "verb\tnumber\nis\tsingular\n"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"there is no file .*none\.tsv': expected UTF-8 text, plain or compressed as \.gz, \.xz"
    ):
        agreement.read(tmp_path / "none.tsv")
    (tmp_path / "a.tsv.xz").write_bytes(b"not compressed")
    with pytest.raises(InputError, match=r"cannot be read as txt\.xz"):
        agreement.read(tmp_path / "a.tsv.xz")
    (tmp_path / "a.tsv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is UTF-16: expected UTF-8"):
        agreement.read(tmp_path / "a.tsv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("text\tlabel\na\t1\n", "has no column 'sentence': it has 'text', 'label'; expected tab-separated columns"),
        ("sentence\tlabel\na\t2\n", "x.tsv, line 2: label is '2'; expected 0 (negative) or 1 (positive)"),
        ("sentence\tlabel\n \t1\n", "x.tsv, line 2: the sentence is empty; expected at least one word"),
        ("sentence\tlabel\na\t1\nb\t1\n", "has 2 lines of only one class: expected both 0 and 1"),
    ],
)
def test_sst2_files_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        data_files.read_sst2(data_files.data_file(tmp_path, "x.tsv"))
    assert says in str(caught.value)
    with pytest.raises(
        InputError, match=r"does not contain dev\.tsv, dev\.tsv\.xz or dev\.tsv\.gz: give the folder that does"
    ):
        data_files.data_file(tmp_path, "dev.tsv")


def test_downloads_say_what_failed_and_check_the_hash(tmp_path: Path) -> None:
    here = write(tmp_path, "given.tsv.gz", linzen()).as_uri()
    page = write(tmp_path, "page.html", "<html>").as_uri()
    path, found = data_files.download_linzen(tmp_path / "to", urls=[page, here])
    assert len(agreement.read(path)) == 1 and len(found) == 64
    with pytest.raises(InputError, match=f"has the SHA-256 {found}: expected abc; download it again"):
        data_files.download_linzen(tmp_path / "to", sha256="abc", urls=[here])
    with pytest.raises(InputError, match=r"cannot be downloaded from .*it sent a page, not a gzip file.*give its path"):
        data_files.download_linzen(tmp_path / "other", urls=[page])
    with pytest.raises(
        InputError, match=r"connect to the network, or download agr_50_mostcommon_10K\.tsv\.gz elsewhere"
    ):
        data_files.download_linzen(tmp_path / "other", urls=[(tmp_path / "none.gz").as_uri()])
