"""BLEU cuts words by the rules of its target language, and its signature says which."""

import importlib.util
import logging

import pytest

from drill.data import DataError
from drill.translation import bleu
from drill.translation.bleu import corpus_scores

CHINESE = ["他今天在家里睡觉。"], ["他昨天在家里睡觉。"]
JAPANESE = ["犬はソファで寝ています。"], ["犬は今ソファで寝ています。"]
NO_MECAB = importlib.util.find_spec("MeCab") is None


@pytest.fixture(autouse=True)
def untold():
    bleu.tokenizer_of.cache_clear()
    yield
    bleu.tokenizer_of.cache_clear()


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_TW"])
def test_chinese_is_cut_by_its_own_rules(language):
    scores = corpus_scores(*CHINESE, language=language)
    assert "|tok:zh|" in scores.signature
    assert scores.bleu > corpus_scores(*CHINESE, language="de").bleu + 20


@pytest.mark.parametrize("language", ["de", "en", "fr", "fi"])
def test_other_languages_stay_with_13a(language):
    assert "|tok:13a|" in corpus_scores(["a b"], ["a c"], language=language).signature


@pytest.mark.skipif(not NO_MECAB, reason="the tokeniser of Japanese is installed")
def test_where_a_tokeniser_is_missing_characters_count_and_a_note_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="drill"):
        for _ in range(3):
            scores = corpus_scores(*JAPANESE, language="ja")
    assert "|tok:char|" in scores.signature
    (note,) = caplog.messages
    assert "pip install 'sacrebleu[ja]'" in note
    assert "chrF is the figure to read" in note
    with pytest.raises(DataError, match=r"ja-mecab: needs .* pip install 'sacrebleu\[ja\]'"):
        corpus_scores(*JAPANESE, tokenize="ja-mecab")


def test_a_tokeniser_may_be_chosen_of_sentences_too():
    scores = corpus_scores(*CHINESE, tokenize="char", per_sentence=True)
    assert "|tok:char|" in scores.signature
    assert scores.per_sentence is not None
    assert scores.per_sentence[0].bleu == pytest.approx(scores.bleu)
    with pytest.raises(DataError, match=r"tokenize is one of 13a, .*, not 'words'"):
        corpus_scores(*CHINESE, tokenize="words")
