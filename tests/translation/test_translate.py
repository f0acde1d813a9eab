"""Lines into lines: order, empty and long lines, any character, seeds that know their line."""

import logging
import math

import pytest
import torch

from drill.data import END
from drill.errors import SettingsError
from drill.translation.bleu import corpus_scores
from drill.translation.evaluate import evaluate_translator, translation_loss
from drill.translation.inference import Translation, translate
from drill.translation.search.beam_search import beam_search
from drill.translation.search.decoding import Search
from tests.helpers.translators import small_data, small_translator


@pytest.fixture(scope="module")
def data():
    return small_data()


@pytest.fixture(scope="module")
def model():
    """Untrained, with a head so pointed that something is written."""
    made = small_translator("deep-residual", dropout=0.0).eval()
    with torch.no_grad():
        made.layer.bias.normal_(generator=torch.Generator().manual_seed(1))
    return made


LINES = ["abc", "", "ee dd", "   ", "世界 🎉 عربي", "\x00\x1b[1m", "abcde" * 30, "e"]


@pytest.mark.parametrize("size", [1, 3])  # alone, an empty line is a block without a search
def test_every_line_has_its_translations_in_order(data, model, size):
    found = [*translate(model, data.subwords, iter(LINES), Search(n_best=2), lines_per_block=size)]
    assert len(found) == len(LINES)
    assert found[1] == found[3] == [Translation("", 0.0, 0.0)]
    for line, translations in zip(LINES, found, strict=True):
        if not line.strip():
            continue
        source = [*data.subwords.encode(line), END]
        by_hand = beam_search(model, [source], Search(n_best=2))[0]
        assert [t.text for t in translations] == [
            data.subwords.decode(h.ids).replace("\n", " ").replace("\r", " ") for h in by_hand
        ]
        assert [t.score for t in translations] == pytest.approx(
            [h.score for h in by_hand], abs=1e-4
        )


def test_long_line_is_cut_and_the_log_names_it(data, model, caplog):
    lines = ["a", "", "ab " * 10_000]
    with caplog.at_level(logging.WARNING, "drill"):
        found = list(translate(model, data.subwords, lines, Search(beam_size=1, max_source=20)))
    assert len(found) == 3
    count = len(data.subwords.encode(lines[2]))
    assert [record.getMessage() for record in caplog.records] == [
        f"line 3 has {count} subwords, of which the first 20 are read"
    ]
    cut = data.subwords.decode(data.subwords.encode(lines[2])[:20])
    assert found[2] == next(translate(model, data.subwords, [cut], Search(beam_size=1)))


def test_translation_is_one_line_whatever_the_model_writes(data, model):
    newline = data.subwords.encode("\n")[0]
    with torch.no_grad():
        before = model.layer.bias[newline].clone()
        model.layer.bias[newline] = 50.0
    try:
        found = next(translate(model, data.subwords, ["abc"], Search(beam_size=1)))
    finally:
        with torch.no_grad():
            model.layer.bias[newline] = before
    assert "\n" not in found[0].text
    assert found[0].text.strip() == ""
    assert len(found[0].text) > 10


def test_samples_follow_from_the_seed_and_the_line_alone(data, model):
    search = Search(sampled=True, n_best=2, seed=5, top_k=20, top_p=0.9)
    lines = ["abc", "", "abc", "dd", "", "abc"]
    whole = list(translate(model, data.subwords, lines, search))
    parts = list(translate(model, data.subwords, lines, search, lines_per_block=2))
    assert [[t.text for t in each] for each in parts] == [[t.text for t in each] for each in whole]
    assert whole[0] != whole[2]  # another line, other random numbers
    other = Search(sampled=True, n_best=2, seed=6, top_k=20, top_p=0.9)
    assert list(translate(model, data.subwords, lines, other)) != whole


def test_invalid_arguments_raise(data, model):
    for option, value in (("max_source", 0), ("length_penalty", math.nan)):
        with pytest.raises(ValueError, match=option):
            Search(**{option: value})
    with pytest.raises(TypeError, match="lines"):
        translate(model, data.subwords, "abc")
    with pytest.raises(ValueError, match="lines_per_block"):
        translate(model, data.subwords, ["abc"], lines_per_block=0)
    with pytest.raises(SettingsError, match="beam_size: must be at most the 262 subwords, got 263"):
        list(translate(model, data.subwords, ["abc"], Search(beam_size=263)))


def test_translated_scores_a_text(data, model):
    seen = []
    found = evaluate_translator(
        model, data.subwords, data.text.test, data.test, Search(beam_size=1),
        progress=lambda done, of: seen.append((done, of)),
    )  # fmt: skip
    source, search = data.text.test.source, Search(beam_size=1)
    lines = [t[0].text for t in translate(model, data.subwords, source, search)]
    assert list(found.hypotheses) == lines
    assert found.scores == corpus_scores(lines, data.text.test.target, word_bleu=True)
    assert found.fit == translation_loss(model, data.test)
    assert found.exact == 0.0
    assert seen == [(0, 6), (0, 6), (6, 6)]  # the loss, one search of all lines, the end
    other = evaluate_translator(
        model, data.subwords, data.text.test, data.test, Search(beam_size=1), language="fr"
    )
    assert other.scores.tokenised_bleu is None  # its rules are not known
    assert other.scores.bleu == found.scores.bleu
