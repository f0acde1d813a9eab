"""Generated pairs: the same for a seed, no sentence in two splits."""

import hashlib
import itertools

import pytest

from drill.data import DataError, ParallelText, numbers_and_dates_corpus

pytest.importorskip("num2words", reason="needs pip install num2words")
pytest.importorskip("babel", reason="needs pip install babel")


@pytest.fixture(scope="module")
def corpus():
    return numbers_and_dates_corpus(train=3_000, valid=100, test=100, seed=3)


def test_the_text_stays_the_same(corpus):
    """Results of earlier runs are of this text, as written by the pinned babel and num2words."""
    sides = (side for split in corpus for side in (split.source, split.target))
    text = "\n".join(itertools.chain(*sides))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("eedb5543c77204d2")


def test_no_sentence_of_one_split_is_in_another(corpus):
    assert [len(split) for split in corpus] == [3_000, 100, 100]
    assert all(len(set(split.source)) == len(split) for split in corpus)
    others = numbers_and_dates_corpus(train=300, valid=300, test=300, seed=4)
    for side in ("source", "target"):
        sentences = [
            {*getattr(one, side), *getattr(two, side)}
            for one, two in zip(corpus, others, strict=True)
        ]
        for one, two in itertools.combinations(sentences, 2):
            assert not one & two


def test_a_larger_corpus_continues_a_smaller_one(corpus):
    for part, whole in zip(numbers_and_dates_corpus(80, 30, 30, seed=3), corpus, strict=True):
        count = len(part)
        assert part == ParallelText(whole.source[:count], whole.target[:count])


def test_wrong_arguments_are_named():
    with pytest.raises(DataError, match=r"test must be .* 0"):
        numbers_and_dates_corpus(test=0)
