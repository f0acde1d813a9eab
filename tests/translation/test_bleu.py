"""BLEU and chrF against their definitions, and the tokeniser rule by rule."""

import math
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drill.data import DataError
from drill.data.parallel.word_tokenizer import words
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
    scores = corpus_scores(WRITTEN, WANTED, tokenised=True)
    truth = slow_bleu([words(line) for line in WRITTEN], [words(line) for line in WANTED])
    assert scores.tokenised_bleu == pytest.approx(truth)
    assert scores.tokenised_signature is not None
    assert "tok:moses-like-de|smooth:none" in scores.tokenised_signature


def test_signatures_say_how_it_was_computed():
    scores = corpus_scores(WRITTEN, WANTED)
    assert scores.lines == 3
    assert "case:mixed|eff:no|tok:13a|smooth:exp|version:" in scores.signature
    assert "nc:6|nw:0" in scores.chrf_signature
    assert scores.tokenised_bleu is None
    assert scores.per_sentence is None
    assert 0 < scores.bleu < 100
    assert 0 < scores.chrf < 100


def test_what_is_equal_scores_100():
    scores = corpus_scores(WANTED, WANTED, tokenised=True, per_sentence=True)
    assert scores.per_sentence is not None
    found = [scores.bleu, scores.chrf, scores.tokenised_bleu]
    found += [s.bleu for s in scores.per_sentence] + [s.chrf for s in scores.per_sentence]
    assert found == pytest.approx([100.0] * 9)


def test_the_library_has_no_advice_for_a_young_model(caplog):
    """A hundred lines that end in " ." are what it learns first."""
    scores = corpus_scores(["the ."] * 100, ["The dog."] * 100)
    assert scores.bleu < 100.0
    assert caplog.messages == []


def test_sentences_keep_their_order_and_an_empty_one_scores_0():
    scores = corpus_scores(["", WANTED[1], "Nein."], WANTED, per_sentence=True)
    assert scores.per_sentence is not None
    empty, equal, other = scores.per_sentence
    assert (empty.bleu, empty.chrf) == (0, 0)
    assert equal.bleu == pytest.approx(100)
    assert other.bleu < 20


def test_compounds_change_only_the_tokenised_score():
    lines = ["Ein E-Mail-Konto ist hier nicht zu finden ."], ["Ein E-Mail-Fach ist hier nicht da ."]
    whole = corpus_scores(*lines, tokenised=True)
    split = corpus_scores(*lines, tokenised=True, split_compounds=True)
    assert split.bleu == whole.bleu
    assert split.tokenised_bleu is not None
    assert whole.tokenised_bleu is not None
    assert split.tokenised_bleu > whole.tokenised_bleu
    assert split.tokenised_signature is not None
    assert "moses-like-de-compounds" in split.tokenised_signature


@pytest.mark.parametrize(
    ("hypotheses", "references", "error", "sentence"),
    [
        (["a"], ["a", "b"], DataError, "1 translations and 2 references do not match"),
        ([], [], DataError, "no lines to score"),
        ("a", ["a"], TypeError, "hypotheses are a list of lines"),
        (["a"], [3], TypeError, "line 1 of the references is of type int"),
    ],
)
def test_faults_are_named(hypotheses, references, error, sentence):
    with pytest.raises(error, match=sentence):
        corpus_scores(hypotheses, references)


def test_the_library_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(DataError, match="sacrebleu; install it with pip install sacrebleu"):
        corpus_scores(WRITTEN, WANTED)


@pytest.mark.parametrize(
    ("language", "line", "found"),
    [
        ("de", "Er sagte: „Ja.“", "Er sagte : „ Ja . “"),
        ("de", "1,50 Euro, oder 10.000?", "1,50 Euro , oder 10.000 ?"),
        ("de", "am 3. Mai 2014. So...", "am 3. Mai 2014 . So ..."),
        ("de", "z. B. die U.S. Armee", "z. B. die U.S. Armee"),
        ("de", "Es sind 3.", "Es sind 3 ."),
        ("de", "wie geht's", "wie geht ' s"),
        ("en", "I don't know the dogs'.", "I don 't know the dogs ' ."),
        ("en", "the 1990's 3. May", "the 1990 's 3 . May"),
        ("en", "approx. ten a_b/c", "approx. ten a _ b / c"),
        ("de", "E-Mail\x07  -  5 %", "E-Mail - 5 %"),
        ("de", "世界 🎉 ё!", "世界 🎉 ё !"),
    ],
)
def test_words(language, line, found):
    assert words(line, language) == found.split()


def test_compounds_are_split_on_request():
    found = words("E-Mail-Konto - ja", split_compounds=True)
    assert found == ["E", "##AT##-##AT##", "Mail", "##AT##-##AT##", "Konto", "-", "ja"]


def test_an_unknown_language_is_named():
    with pytest.raises(DataError, match="one of de, en, not 'fr'"):
        words("a", "fr")


@given(st.text(), st.sampled_from(["de", "en"]))
def test_no_sign_is_lost_and_words_are_stable(line, language):
    found = words(line, language)
    assert all(found)
    kept = "".join(sign for sign in line if not sign.isspace() and (sign >= " " and sign != "\x7f"))
    assert "".join(found) == kept
