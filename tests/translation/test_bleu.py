"""BLEU and chrF against their definitions, and the words they are computed from."""

import importlib.util
import math
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.data import DataError
from drill.data.parallel.moses_words import _tokenizer, words
from drill.translation.bleu import corpus_scores

WRITTEN = ["Der Hund schläft auf dem Sofa heute.", "Das kostet 1,50 Euro.", "Ja, gern."]
WANTED = ["Der Hund schläft auf dem roten Sofa.", "Das kostet uns 1,50 Euro.", "Ja, sehr gern."]


def slow_bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """The definition: clipped n-gram precisions of the whole text, no smoothing."""
    matched, made = [0] * 4, [0] * 4
    for line, wanted in zip(hypotheses, references, strict=True):
        for n in range(4):
            ours, theirs = (
                Counter(tuple(w[i : i + n + 1]) for i in range(len(w) - n)) for w in (line, wanted)
            )
            matched[n] += (ours & theirs).total()
            made[n] += ours.total()
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    precision = math.exp(sum(math.log(m / n) for m, n in zip(matched, made, strict=True)) / 4)
    return 100 * min(1.0, math.exp(1 - r / c)) * precision


def test_tokenised_bleu_is_the_definition():
    scores = corpus_scores(WRITTEN, WANTED, word_bleu=True)
    truth = slow_bleu([words(line) for line in WRITTEN], [words(line) for line in WANTED])
    assert scores.tokenised_bleu == pytest.approx(truth)
    assert "tok:moses-de-sacremoses-" in scores.tokenised_signature


def test_signatures_and_bounds():
    scores = corpus_scores(WRITTEN, WANTED)
    assert scores.lines == 3
    assert "case:mixed|eff:no|tok:13a|smooth:exp|version:" in scores.signature
    assert "nc:6|nw:0" in scores.chrf_signature
    assert scores.tokenised_bleu is None
    assert 0 < scores.bleu < 100
    assert 0 < scores.chrf < 100
    equal = corpus_scores(WANTED, WANTED, word_bleu=True)
    assert [equal.bleu, equal.chrf, equal.tokenised_bleu] == pytest.approx([100.0] * 3)


@pytest.mark.parametrize(
    ("hypotheses", "references", "error"),
    [(["a"], ["a", "b"], DataError), ([], [], DataError), ("a", ["a"], TypeError)],
)
def test_invalid_lines_and_an_unknown_language_raise(hypotheses, references, error):
    with pytest.raises(error, match="corpus_scores"):
        corpus_scores(hypotheses, references)
    with pytest.raises(DataError, match="'fr'"):
        words("a", "fr")


@pytest.mark.parametrize("package", ["sacrebleu", "sacremoses"])
def test_missing_package_is_named(monkeypatch, package):
    _tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"pip install {package}"):
        corpus_scores(WRITTEN, WANTED, word_bleu=True)


@pytest.mark.parametrize(
    ("language", "line", "found"),
    [
        ("de", "Er sagte: „Ja.“", "Er sagte : „ Ja . “"),
        ("de", "1,50 Euro, oder 10.000?", "1,50 Euro , oder 10.000 ?"),
        ("de", "am 3. Mai 2014. So...", "am 3. Mai 2014 . So ..."),
        ("de", "Dr. Meier hat z. B. 5 Mrd. Euro.", "Dr. Meier hat z. B. 5 Mrd. Euro ."),
        ("de", 'wie geht\'s "E-Mail" & 5 %', 'wie geht \' s " E-Mail " & 5 %'),
        ("en", "I don't know Mr. Smith's dogs.", "I don 't know Mr. Smith 's dogs ."),
        ("de", "", ""),
    ],
)
def test_words_are_those_of_moses(language, line, found):
    assert words(line, language) == found.split()


@given(st.text(), st.sampled_from(["de", "en"]))
def test_any_line_gives_words_without_spaces(line, language):
    assert all(word.split() == [word] for word in words(line, language))


CHINESE = ["他今天在家里睡觉。"], ["他昨天在家里睡觉。"]
JAPANESE = ["犬はソファで寝ています。"], ["犬は今ソファで寝ています。"]
NO_MECAB = importlib.util.find_spec("MeCab") is None


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_TW"])
def test_chinese_is_cut_by_its_own_rules(language):
    scores = corpus_scores(*CHINESE, language=language)
    assert "|tok:zh|" in scores.signature
    assert scores.bleu > corpus_scores(*CHINESE, language="de").bleu + 20


@pytest.mark.parametrize("language", ["de", "en", "fr", "fi"])
def test_other_languages_stay_with_13a(language):
    assert "|tok:13a|" in corpus_scores(["a b"], ["a c"], language=language).signature


@pytest.mark.skipif(not NO_MECAB, reason="the tokeniser of Japanese is installed")
@pytest.mark.parametrize("options", [{"language": "ja"}, {"tokenize": "ja-mecab"}])
def test_missing_tokenizer_is_named(options):
    with pytest.raises(DataError, match=r"pip install sacrebleu\[ja\]"):
        corpus_scores(*JAPANESE, **options)


def test_tokenize_selects_a_tokenizer():
    assert "|tok:char|" in corpus_scores(*CHINESE, tokenize="char").signature
    with pytest.raises(DataError, match="tokenize must be one of 13a"):
        corpus_scores(*CHINESE, tokenize="words")
