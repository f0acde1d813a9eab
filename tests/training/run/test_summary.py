"""Remarks about a run before it starts."""

import pytest

from drill.data import Corpus
from drill.training.run.summary import share_of_unknown

TEXT = "a a a b b c\n"  # seven tokens with <eos>


@pytest.mark.parametrize(
    ("cut_off", "parts"),
    [
        ((1, None), ["for words never", " 0.0% of the training"]),
        ((2, None), ["1 word ", "data.min_count 2 and words", " 14.3% of the training"]),
        ((1, 3), ["2 words", "data.max_vocab_size 3 and words", " 42.9% of the training"]),
        ((2, 3), ["2 words", "data.min_count 2 and data.max_vocab_size 3", " 42.9% of the"]),
    ],
)
def test_share_of_unknown_words_names_its_cut_off(cut_off, parts):
    corpus = Corpus("own", TEXT, "a\n", "a new a\n")
    vocabulary = corpus.vocabulary(*cut_off)
    remark = share_of_unknown(corpus, vocabulary, corpus.encode(vocabulary), *cut_off)
    assert "25.0% of the test tokens" in remark
    assert all(part in remark for part in parts), remark


@pytest.mark.parametrize("closed", [True, False])
def test_no_remark_where_no_word_is_unknown(closed):
    test = "a <unk>\n" if closed else "a b\n"  # a published text has its own <unk>
    corpus = Corpus("own", TEXT, "a\n", test, closed=closed)
    vocabulary = corpus.vocabulary()
    assert share_of_unknown(corpus, vocabulary, corpus.encode(vocabulary)) is None
