"""Parallel corpora: by name below a data folder, generated, and own folders."""

import gc
import gzip
import lzma
import weakref

import numpy as np
import pytest

from drill.data import (
    END,
    DataError,
    Filters,
    Subwords,
    numbers_and_dates_corpus,
    read_parallel_corpus,
)
from drill.data.parallel.corpora import PARALLEL_CORPORA
from drill.data.parallel.pairs import target_counts, translation_data


def learnt(text, size: int) -> Subwords:
    return Subwords.train([*text.source, *text.target], size)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DRILL_DATA", str(tmp_path))
    return tmp_path


def write(folder, stem: str, lines: int, packed: str = "") -> None:
    """Pairs that say which file and line they are of."""
    for language in ("en", "de"):
        path = folder / f"{stem}.{language}{packed}"
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = "".join(f"{language} {stem} {i}\n" for i in range(lines)).encode()
        pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packed]
        path.write_bytes(pack(raw))


def test_a_split_joins_its_files_in_order(folder):
    write(folder, "europarl/train", 5, ".xz")
    for stem in PARALLEL_CORPORA["europarl"].train[1:]:
        write(folder, stem, 2)
    write(folder, "newstest/newstest2013", 3, ".gz")
    write(folder, "newstest/newstest2014", 4)
    train, valid, test = read_parallel_corpus("europarl")
    assert (len(train), len(valid), len(test)) == (5 + 5 * 2, 3, 4)
    assert train.source[4:6] == ["en europarl/train 4", "en newstest/news-test2008 0"]
    assert train.target[-1] == "de newstest/newstest2012 1"
    assert test.source[0] == "en newstest/newstest2014 0"


def test_languages_and_the_number_of_pairs_can_be_chosen(folder):
    for split in ("train", "val", "test_2016_flickr"):
        write(folder, f"multi30k/{split}", 6)
    found = read_parallel_corpus("multi30k", source="de", target="en", pairs=2)
    assert found.train.source == ["de multi30k/train 0", "de multi30k/train 1"]
    assert len(found.valid) == 6
    assert found.valid.target[0].startswith("en ")


def test_the_generated_corpus_in_both_directions():
    made = numbers_and_dates_corpus(30)
    assert read_parallel_corpus("numbers", pairs=30) == made
    only_test = read_parallel_corpus("numbers", splits=["test"])
    assert only_test.test == made.test
    assert len(only_test.train) == len(only_test.valid) == 0
    back = read_parallel_corpus(pairs=30, source="de", target="en")
    assert back.train.source == made.train.target
    assert back.test.target == made.test.source


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"corpus": "wmt14"}, r"wmt14: .*wmt14.train.en is missing.* set DRILL_DATA"),
        ({"corpus": "nowhere"}, "neither a parallel corpus .multi30k, europarl, wmt14, numbers."),
        ({"corpus": "numbers", "source": "fr"}, "has the languages en and de, not fr and de"),
        ({"pairs": 0}, "at least 1, got 0"),
    ],
)
def test_what_is_missing_is_named(folder, options, fault):
    with pytest.raises(DataError, match=fault):
        read_parallel_corpus(**options)


@pytest.fixture(scope="module")
def text():
    return numbers_and_dates_corpus(200, 10, 10)


def test_only_the_training_pairs_are_filtered(text):
    subwords = learnt(text.train, 400)
    data = translation_data(text, subwords, Filters(maximum=40))
    assert len(data.train) < 200
    assert (len(data.valid), len(data.test)) == (10, 10)
    lines = [data.subwords.decode(data.valid.target(i)) for i in range(10)]
    assert lines == data.text.valid.target


def test_the_training_text_is_let_go_of_once_it_is_encoded():
    """Training reads ids alone, and of millions of pairs the text is gigabytes."""
    text = numbers_and_dates_corpus(50, 5, 5)
    gone, left = weakref.ref(text.train), weakref.ref(text.test)
    data = translation_data(text, learnt(text.train, 300))
    del text
    gc.collect()
    assert gone() is None
    assert data.text.test is left()


def test_targets_are_counted_with_the_end_of_every_line(text):
    data = translation_data(text, learnt(text.train, 400))
    by_hand = np.zeros(400, dtype=int)
    for i in range(len(data.train)):
        np.add.at(by_hand, data.train.target(i), 1)
        by_hand[END] += 1
    assert target_counts(data.train, 400).tolist() == by_hand.tolist()


def test_the_checksum_knows_texts_and_subwords(text):
    subwords = learnt(text.train, 400)
    same = translation_data(text, subwords).checksum()
    assert translation_data(text, subwords).checksum() == same
    other = text._replace(test=text.valid)
    fewer = learnt(text.train, 390)
    assert len({same, translation_data(other, subwords).checksum(),
                translation_data(text, fewer).checksum()}) == 3  # fmt: skip


def test_pairs_of_your_own_are_read_from_a_folder(tmp_path):
    write(tmp_path, "train", 3)
    with pytest.raises(DataError, match=r"valid\.en is missing"):
        read_parallel_corpus(str(tmp_path))
    for split in ("valid", "test"):
        write(tmp_path, split, 3)
    assert read_parallel_corpus(str(tmp_path)).test.source[2] == "en test 2"
