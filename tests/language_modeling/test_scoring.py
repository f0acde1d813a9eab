"""Scored lines: against the model's own probabilities, word by word."""

import math

import numpy as np
import pytest
import torch

from drill.data import EOS, UNK, DataError
from drill.language_modeling.scoring import LINES as SAMPLED
from drill.language_modeling.scoring import LONGEST, score
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.models.token_sampling import draw
from drill.training.precision import evaluating
from tests.language_modeling.models import (
    CLOSED,
    VOCABULARY,
    WORDS,
    begun,
    every_layer,
    language_model,
    log_probs_after,
)

END = WORDS.index(EOS)
LINES = [
    "the boat is late", "", "a lamp", "the whale is lit and the fish is late", "sea",
    "  the   boat is late \n", " ".join(["the", "sea", "is", "a", "lamp"] * 4),
]  # fmt: skip


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


@pytest.mark.parametrize(
    ("tokens", "lines"), [(1, 1), (5, 2), (16, 1000), (5, 1000), (10_000, 1000)]
)
def test_together_or_alone_in_chunks_or_whole_it_is_the_same(tokens, lines, monkeypatch):
    model = language_model()
    start = begun(model)
    alone = [next(score(model, VOCABULARY, [line], start=start)).log_probs for line in LINES]
    monkeypatch.setattr("drill.language_modeling.scoring.TOKENS_PER_BATCH", tokens)
    together = [s.log_probs for s in score(model, VOCABULARY, LINES, lines_per_block=lines)]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize(("tokens", "lines_per_block", "count"), [(10**6, 10, 10), (50, 1000, 3)])
def test_lines_are_read_as_they_are_needed(monkeypatch, tokens, lines_per_block, count):
    """A block ends with its lines, or with its tokens where lines are long."""
    monkeypatch.setattr("drill.language_modeling.scoring.TOKENS_PER_BLOCK", tokens)
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield "the boat " * 10

    stream = score(language_model(), VOCABULARY, lines(), lines_per_block=lines_per_block)
    assert read == []
    next(stream)
    assert len(read) == count
    assert len(list(stream)) == 99


@pytest.mark.parametrize(
    ("lines", "vocabulary", "error", "message"),
    [
        ("the boat", VOCABULARY, TypeError, "string"),
        (["the", f"a {EOS}"], VOCABULARY, DataError, "line 2"),
        (["the", "a whale"], CLOSED, DataError, "line 2.*'whale'"),
    ],
)
def test_lines_that_cannot_be_scored(lines, vocabulary, error, message):
    with pytest.raises(error, match=message):
        list(score(language_model(), vocabulary, lines))
    with pytest.raises(ValueError, match="lines_per_block"):
        score(language_model(), VOCABULARY, LINES, lines_per_block=0)


def test_score_of_nan_names_the_line():
    model = language_model("full")
    with torch.no_grad():
        model.encoder.embedding.weight[WORDS.index("sea")] = torch.nan
        model.layer.bias[WORDS.index("sea")] = -100.0  # so that the model itself never writes it
    with pytest.raises(FloatingPointError, match=r"line 5: .* NaN"):
        list(score(model, VOCABULARY, LINES[:6]))


def slow_start(model, longest=LONGEST):
    dice = np.random.default_rng(0).random((longest, SAMPLED))
    states = []
    with evaluating(model), torch.no_grad():
        for column in dice.T:
            read = [END]
            for u in column:
                log_probs, state = model.log_probs(torch.tensor(read)[:, None])
                read.append(int(draw(log_probs[-1, 0], torch.tensor(u))))
                if read[-1] == END:
                    break
            states.append(state)
    parts = [torch.cat([state[i][j] for state in states], 1) for i in (0, 1) for j in (0, 1)]
    return [part.mean(1, keepdim=True) for part in parts]


@pytest.mark.parametrize("name", ["tied", "deep residual locked", "mixture standard"])
def test_line_start_is_the_mean_state_after_sampled_lines(name):
    model = language_model(name)
    found = [part for layer in begun(model) for part in layer]
    torch.testing.assert_close(found, slow_start(model))


def test_line_start_cuts_endless_lines(monkeypatch):
    monkeypatch.setattr("drill.language_modeling.scoring.LONGEST", 10)
    model = language_model("tied")
    with torch.no_grad():
        model.layer.bias[END] = -torch.inf
    found = [part for layer in begun(model) for part in layer]
    torch.testing.assert_close(found, slow_start(model, 10))
