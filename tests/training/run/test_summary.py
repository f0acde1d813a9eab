"""What is said of a run before it begins."""

import pytest

from drill.data import Corpus
from drill.training.run.summary import share_of_unknown

TAIL = "of the test tokens; perplexities take it for one word"
TEXT = "a a a b b c\n"  # seven tokens with <eos>


@pytest.mark.parametrize(
    ("train", "cut_off", "said"),
    [
        (TEXT, (1, None), "<unk> stands for words never seen in training: 0.0%"),
        (
            TEXT,
            (2, None),
            "<unk> stands for 1 word seen fewer than 2 times (data.min_count) and for words "
            "never seen in training: 14.3%",
        ),
        (
            TEXT,
            (1, 3),
            "<unk> stands for 2 words beyond the 3 of data.max_vocab_size and for words never seen "
            "in training: 42.9%",
        ),
        (
            TEXT,
            (2, 3),
            "<unk> stands for 2 words seen fewer than 2 times (data.min_count) or beyond the 3 "
            "of data.max_vocab_size and for words never seen in training: 42.9%",
        ),
        (
            TEXT.replace("c", "<unk>"),
            (1, None),
            "<unk> stands where the text itself has it and for words never seen in training: 14.3%",
        ),
    ],
)
def test_unknown_words_are_told_with_their_cut_off(train, cut_off, said):
    corpus = Corpus("own", train, "a\n", "a new a\n")
    vocabulary = corpus.vocabulary(*cut_off)
    told = share_of_unknown(corpus, vocabulary, corpus.encode(vocabulary), *cut_off)
    assert told == f"{said} of the training tokens, 25.0% {TAIL}"


@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_told_where_no_word_is_unknown(closed):
    test = "a <unk>\n" if closed else "a b\n"  # what a published text has is its authors' affair
    corpus = Corpus("own", TEXT, "a\n", test, closed=closed)
    vocabulary = corpus.vocabulary()
    assert share_of_unknown(corpus, vocabulary, corpus.encode(vocabulary)) is None
