"""Scored lines: against the model's own probabilities, word by word."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drill.data import EOS, UNK, DataError, Vocabulary
from drill.language_modeling.scoring import score
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from tests.language_modeling.models import bits, every_layer, language_model
from tests.layers.table import one_of_each_layer
from tests.translation.words import CLOSED, VOCABULARY, WORDS, begun, log_probs_after

LINES = [
    "the boat is late",
    "",
    "a lamp",
    "the whale is lit and the fish is late",
    "sea",
    "  the   boat is late \n",
    " ".join(["the", "sea", "is", "a", "lamp"] * 4),
]


def slow_score(model: LanguageModel, line: str, start: State) -> list[float]:
    words = [word if word in WORDS else UNK for word in line.split()]
    found = []
    for place, word in enumerate([*words, EOS]):
        found.append(float(log_probs_after(model, words[:place], start)[WORDS.index(word)]))
    return found


@every_layer
def test_every_layer_scores_every_line_word_by_word(name):
    model = language_model(name)
    start = begun(model)  # once for all lines: it draws many
    for scored, line in zip(score(model, VOCABULARY, LINES), LINES, strict=True):
        truth = slow_score(model, line, start)
        assert scored.log_probs == pytest.approx(truth, rel=1e-9)
        assert scored.log_prob == pytest.approx(sum(truth), rel=1e-9)
        assert scored.tokens == len(line.split()) + 1 == len(scored.words)
        assert scored.perplexity == pytest.approx(math.exp(-sum(truth) / len(truth)), rel=1e-9)


def test_lines_keep_their_order_their_text_and_name_unknown_words():
    found = list(score(language_model(), VOCABULARY, LINES))
    assert [scored.text for scored in found] == [line.removesuffix("\n") for line in LINES]
    assert [scored.unknown for scored in found] == [(), (), (), ("whale", "fish"), (), (), ()]
    assert found[1].words == (EOS,)
    assert found[3].words == ("the", "whale", "is", "lit", "and", "the", "fish", "is", "late", EOS)
    assert found[5].log_prob == pytest.approx(found[0].log_prob, rel=1e-9)


def test_what_the_line_itself_calls_unknown_is_unknown():
    """It costs what any unknown word does, so lines with it do not compare either."""
    own, other = score(language_model(), VOCABULARY, [f"the {UNK} is", "the whale is"])
    assert (own.unknown, other.unknown) == ((UNK,), ("whale",))
    assert own.log_probs == pytest.approx(other.log_probs, rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 5, 16, 10_000])
@pytest.mark.parametrize("lines", [1, 2, 1000])
def test_together_or_alone_in_chunks_or_whole_it_is_the_same(tokens, lines, monkeypatch):
    model = language_model()
    alone = [next(score(model, VOCABULARY, [line])).log_probs for line in LINES]
    monkeypatch.setattr("drill.language_modeling.scoring.TOKENS_PER_BATCH", tokens)
    together = [s.log_probs for s in score(model, VOCABULARY, LINES, lines_per_block=lines)]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_lines_are_read_as_they_are_needed():
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield "the boat"

    stream = score(language_model(), VOCABULARY, lines(), lines_per_block=10)
    assert read == []
    next(stream)
    assert len(read) == 10
    assert len(list(stream)) == 99


def test_a_block_of_long_lines_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("drill.language_modeling.scoring.TOKENS_PER_BLOCK", 50)
    read = []

    def lines():
        for number in range(20):
            read.append(number)
            yield "the boat " * 10

    stream = score(language_model(), VOCABULARY, lines())
    next(stream)
    assert len(read) == 3


@one_of_each_layer
def test_nothing_leaks_between_two_blocks(name):
    model = language_model(name)
    model.layer.eval()
    before, modes = bits(model), [module.training for module in model.modules()]
    stream = score(model, VOCABULARY, LINES, lines_per_block=2)
    next(stream)
    assert torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    list(score(model, VOCABULARY, LINES))  # no labels are held
    list(stream)
    assert bits(model) == before


def test_an_impossible_word_has_an_infinite_perplexity():
    model = language_model("tied")
    with torch.no_grad():
        model.layer.bias[WORDS.index("sea")] = -torch.inf
    sea, boat = score(model, VOCABULARY, ["the sea", "the boat"])
    assert (sea.log_prob, sea.perplexity) == (-math.inf, math.inf)
    assert math.isfinite(boat.log_prob)


@pytest.mark.parametrize(
    ("lines", "vocabulary", "error", "message"),
    [
        ("the boat", VOCABULARY, TypeError, r"lines, not one string; pass \[text\]"),
        (["the", 3], VOCABULARY, TypeError, "line 2 is no string but int"),
        (["the", f"a {EOS}"], VOCABULARY, DataError, f"line 2 holds the word {EOS}"),
        (["the", "a whale"], CLOSED, DataError, r"line 2: .*'whale' is not among"),
    ],
)
def test_lines_that_cannot_be_scored(lines, vocabulary, error, message):
    with pytest.raises(error, match=message):
        list(score(language_model(), vocabulary, lines))


def test_a_block_holds_at_least_a_line():
    with pytest.raises(ValueError, match="lines_per_block is a whole number of at least 1"):
        score(language_model(), VOCABULARY, LINES, lines_per_block=0)


def test_a_score_of_nan_names_the_line():
    model = language_model("full")
    with torch.no_grad():
        model.encoder.embedding.weight[WORDS.index("sea")] = torch.nan
        model.layer.bias[WORDS.index("sea")] = -100.0  # so that the model itself never writes it
    with pytest.raises(FloatingPointError, match=r"line 5: .* NaN"):
        list(score(model, VOCABULARY, LINES[:6]))


@settings(max_examples=60)
@given(lines=st.lists(st.text(max_size=20), max_size=6))
def test_any_lines_are_scored(lines):
    lines = [line for line in lines if EOS not in line.split()]
    found = list(score(language_model(), VOCABULARY, lines))
    assert len(found) == len(lines)
    for scored, line in zip(found, lines, strict=True):
        assert scored.tokens == len(line.split()) + 1
        assert math.isfinite(scored.log_prob)
        assert set(scored.unknown) == set(line.split()) - (set(WORDS) - {UNK})


def test_a_vocabulary_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"score: .* 2 words, but the model 11 labels"):
        score(language_model(), Vocabulary([EOS, "a"], [1, 1]), ["a"])
