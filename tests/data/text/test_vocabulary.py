"""The vocabulary: order, counts, unknown words, round trips, damaged files."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.data import EOS, UNK, DataError, Vocabulary, load_vocabulary

TRAIN = ["the cat sat", "", "the dog sat down"]
VALID = ["a cat"]

words = st.text(min_size=1, max_size=6).filter(lambda word: word.split() == [word] and word != EOS)
texts = st.lists(st.lists(words, max_size=6).map(" ".join), max_size=8)


def test_words_stand_in_order_of_first_appearance():
    vocabulary = Vocabulary.over_splits(TRAIN, VALID)
    assert vocabulary.words == ("the", "cat", "sat", EOS, "dog", "down", "a")
    assert vocabulary.counts.tolist() == [2, 1, 2, 3, 1, 1, 0]  # of the training text
    assert len(vocabulary) == 7
    assert "dog" in vocabulary
    assert "bird" not in vocabulary


def test_every_line_ends_in_eos_and_an_empty_line_is_a_lone_one():
    assert Vocabulary.over_splits([" ", "one"]).words == (EOS, "one")
    ids = Vocabulary.over_splits(TRAIN, VALID).encode(TRAIN)
    assert ids.tolist() == [0, 1, 2, 3, 3, 0, 4, 2, 5, 3]
    assert ids.dtype == np.int32


def test_rare_words_become_unknown():
    vocabulary = Vocabulary.from_training(TRAIN, min_count=2)
    assert vocabulary.words == ("the", "sat", EOS, UNK)
    assert vocabulary.counts.tolist() == [2, 2, 3, 3]
    assert vocabulary.decode(vocabulary.encode(["the bird sat"])) == [f"the {UNK} sat"]


def test_the_most_frequent_words_fit_the_maximum_size():
    vocabulary = Vocabulary.from_training(["a b b c c c"], max_vocab_size=4)
    assert vocabulary.words == ("b", "c", EOS, UNK)
    tied = Vocabulary.from_training(["x y z"], max_vocab_size=4)
    assert tied.words == ("x", "y", EOS, UNK)  # among equals the first to appear


def test_an_unk_of_the_text_keeps_its_place():
    vocabulary = Vocabulary.from_training([f"a {UNK} b", "a"], min_count=2)
    assert vocabulary.words == ("a", UNK, EOS)
    assert vocabulary.counts.tolist() == [2, 2, 2]


@given(lines=texts)
def test_encode_and_decode_are_inverse(lines):
    vocabulary = Vocabulary.over_splits(lines)
    ids = vocabulary.encode(lines)
    assert vocabulary.decode(ids) == [" ".join(line.split()) for line in lines]
    assert np.array_equal(vocabulary.encode(vocabulary.decode(ids)), ids)
    if lines:
        assert np.array_equal(np.bincount(ids, minlength=len(vocabulary)), vocabulary.counts)


@given(train=texts, other=texts, minimum=st.integers(1, 3), size=st.integers(3, 9))
def test_a_training_vocabulary_encodes_any_text(train, other, minimum, size):
    vocabulary = Vocabulary.from_training(train, minimum, size)
    assert len(vocabulary) <= size
    ids = vocabulary.encode(other)
    assert ids.size == sum(len(line.split()) + 1 for line in other)
    trained = vocabulary.encode(train)
    assert np.array_equal(np.bincount(trained, minlength=len(vocabulary)), vocabulary.counts)


@given(lines=texts)
def test_save_and_load_are_inverse(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "vocabulary.json"
    vocabulary = Vocabulary.over_splits(lines)
    vocabulary.save(path)
    assert load_vocabulary(path) == vocabulary
    assert load_vocabulary(path).fingerprint == vocabulary.fingerprint
    uncounted = Vocabulary(vocabulary.words, [0] * len(vocabulary))
    assert uncounted.fingerprint == vocabulary.fingerprint  # so the same cached ids


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"words": ["a", EOS, "a"], "counts": [1, 1, 1]}, "words differ"),
        ({"words": ["a", EOS], "counts": [1]}, "each has a count"),
        ({"words": ["a"], "counts": [1]}, "<eos> is one"),
        ({"words": [EOS], "counts": [10**30]}, "vocabulary.json"),
        ({"words": [3], "counts": [1]}, "holds no vocabulary"),
        ({"counts": [1]}, "holds no vocabulary"),
        ([EOS], "holds no vocabulary"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, fault):
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=fault) as caught:
        load_vocabulary(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "fault"),
    [
        (lambda: Vocabulary.over_splits(TRAIN).encode("the cat"), TypeError, "takes lines"),
        (lambda: Vocabulary.over_splits(TRAIN).encode(["the bird"]), DataError, "'bird'"),
        (lambda: Vocabulary.from_training(TRAIN, 0), DataError, "min_count"),
        (lambda: Vocabulary.from_training(TRAIN, max_vocab_size=2), DataError, "max_vocab_size"),
        (lambda: Vocabulary.over_splits(["a", f"b {EOS}"]), DataError, f"line 2 .*{EOS}"),
    ],
)
def test_wrong_arguments_are_named(call, error, fault):
    with pytest.raises(error, match=fault):
        call()


def test_held_out_words_are_unknown_until_they_are_added(tmp_path):
    lines = ["a b c d e e e f f f f"]
    whole = Vocabulary.from_training(lines)
    less = whole.hold_out(2, 3, 4, seed=1)
    assert less.held_out == ("e", "f")
    assert less.counts[less.ids[UNK]] == 7
    assert less.decode(less.encode(["a e"])) == [f"a {UNK}"]
    assert whole.hold_out(2, 1, 1, seed=1).held_out == whole.hold_out(2, 1, 1, seed=1).held_out
    again = less.extended(["e"], {"e": "a letter"})
    assert again.decode(again.encode(["a e f"])) == [f"a e {UNK}"]
    assert again.extends(less)
    assert not again.extends(whole)
    again.save(tmp_path / "v.json")
    found = load_vocabulary(tmp_path / "v.json")
    assert (found, found.descriptions, found.held_out) == (again, {"e": "a letter"}, ("f",))
    with pytest.raises(DataError, match=r"data\.held_out"):
        whole.hold_out(3, 3, 4, seed=1)
    with pytest.raises(DataError, match="'a'"):
        less.extended(["a"], {})
