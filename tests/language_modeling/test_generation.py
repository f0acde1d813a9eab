"""Generated text: against the model's own probabilities, word by word."""

import math

import pytest
import torch

from drill.data import EOS, UNK, DataError, Vocabulary
from drill.language_modeling.generation import BETWEEN_SAMPLES, generate
from tests.language_modeling.models import (
    CLOSED,
    VOCABULARY,
    WORDS,
    begun,
    every_layer,
    language_model,
    log_probs_after,
)


def as_words(pieces) -> list[str]:
    return [EOS if piece == "\n" else piece.strip() for piece in pieces]


@every_layer
def test_greedy_takes_the_likeliest_word_at_every_step(name):
    model = language_model(name)
    found = as_words(generate(model, VOCABULARY, max_new_tokens=12, temperature=0, allow_unk=True))
    truth: list[str] = []
    start = begun(model)
    for _ in range(12):
        truth.append(WORDS[int(log_probs_after(model, truth, start).argmax())])
    assert found == truth


def test_prompt_is_read_first_and_line_breaks_are_ends():
    model = language_model()
    options = {"prompt": "the boat\nis", "max_new_tokens": 5, "temperature": 0}
    found = as_words(generate(model, VOCABULARY, **options))
    truth, start = ["the", "boat", EOS, "is"], begun(model)
    for _ in range(5):
        scores = log_probs_after(model, truth, start)
        scores[WORDS.index(UNK)] = -math.inf
        truth.append(WORDS[int(scores.argmax())])
    assert found == truth[4:]


def test_pieces_join_to_the_text():
    model = language_model()
    pieces = list(generate(model, VOCABULARY, max_new_tokens=300, seed=0))
    lines = "".join(pieces).split("\n")
    assert len(lines) == 1 + sum(piece == "\n" for piece in pieces)
    assert all(line == " ".join(line.split()) for line in lines)
    assert sum(len(line.split()) + 1 for line in lines) == 301
    after = next(generate(model, VOCABULARY, prompt="the", max_new_tokens=1, temperature=0))
    start = next(generate(model, VOCABULARY, prompt="the\n", max_new_tokens=1, temperature=0))
    assert after == "\n" or after.startswith(" ")
    assert not start.startswith(" ")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_words_are_drawn_with_their_probabilities(temperature):
    model, samples = language_model(), 6000
    options = {"temperature": temperature, "samples": samples, "seed": 3, "allow_unk": True}
    pieces = generate(model, VOCABULARY, prompt="the boat", max_new_tokens=1, **options)
    drawn = as_words(piece for piece in pieces if piece != BETWEEN_SAMPLES)
    p = torch.softmax(log_probs_after(model, ["the", "boat"], begun(model)) / temperature, dim=0)
    assert len(drawn) == samples
    for word, expected in zip(WORDS, p.tolist(), strict=True):
        deviation = math.sqrt(expected * (1 - expected) / samples)
        assert drawn.count(word) / samples == pytest.approx(expected, abs=4.5 * deviation)


def test_unknown_word_is_drawn_only_where_it_is_allowed():
    model = language_model()
    with torch.no_grad():
        model.layer.bias[WORDS.index(UNK)] = 20.0
    assert UNK not in as_words(generate(model, VOCABULARY, max_new_tokens=50, seed=0))
    allowed = as_words(generate(model, VOCABULARY, max_new_tokens=50, seed=0, allow_unk=True))
    assert allowed == [UNK] * 50


def test_tiny_temperature_top_k_1_and_tiny_top_p_are_greedy():
    model = language_model()
    greedy = list(generate(model, VOCABULARY, max_new_tokens=20, temperature=0))
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-300}):
        assert list(generate(model, VOCABULARY, max_new_tokens=20, seed=1, **options)) == greedy


def test_words_come_one_by_one():
    model, calls = language_model(), []
    model.encoder.register_forward_hook(lambda *_: calls.append(1))
    stream = generate(model, VOCABULARY, max_new_tokens=10**9, seed=0)
    assert calls == []
    next(stream)
    begun_after = len(calls)  # the state a line begins in is found before the first word
    for number in range(1, 6):
        next(stream)
        assert len(calls) == begun_after + number


def test_without_a_seed_texts_differ_and_torchs_random_state_stays():
    model = language_model()
    unseeded = {"".join(generate(model, VOCABULARY, max_new_tokens=60)) for _ in range(2)}
    assert len(unseeded) == 2
    before = torch.random.get_rng_state()
    list(generate(model, VOCABULARY, max_new_tokens=5, seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_sample_does_not_depend_on_how_many_there_are():
    model = language_model()

    def samples(count: int, seed: int) -> list[str]:
        options = {"max_new_tokens": 30, "samples": count, "seed": seed}
        pieces = generate(model, VOCABULARY, prompt="the", **options)
        texts = [""]
        for piece in pieces:
            if piece == BETWEEN_SAMPLES:
                texts.append("")
            else:
                texts[-1] += piece
        return texts

    three = samples(3, seed=5)
    assert len(set(three)) == 3
    assert three[:2] == samples(2, seed=5)
    assert three[:1] == samples(1, seed=5)
    assert not set(three) & set(samples(3, seed=6))


@pytest.mark.parametrize("name", ["deep residual 2", "mixture standard", "adaptive deep residual"])
def test_labels_are_encoded_once(name):
    model, calls = language_model(name), []
    inner = getattr(model.layer, "layer", model.layer)
    inner.maps[0].register_forward_hook(lambda *_: calls.append(1))
    list(generate(model, VOCABULARY, max_new_tokens=20, seed=0))
    # Once for the words, and once for where lines begin, which of a model with hooks is not cached.
    assert len(calls) == 2


def test_long_prompt_is_read_in_chunks(monkeypatch):
    model, prompt = language_model(), " ".join(["the", "boat", "is"] * 30)
    options = {"prompt": prompt, "max_new_tokens": 10, "temperature": 0}
    whole = list(generate(model, VOCABULARY, **options))
    monkeypatch.setattr("drill.language_modeling.generation.TOKENS_PER_PART", 7)
    assert list(generate(model, VOCABULARY, **options)) == whole


def test_unknown_words_of_a_prompt():
    model = language_model()
    options = {"max_new_tokens": 10, "temperature": 0}
    found = list(generate(model, VOCABULARY, prompt="the whale", **options))
    assert found == list(generate(model, VOCABULARY, prompt=f"the {UNK}", **options))
    assert VOCABULARY.unknown_words("the whale is a fish") == ["whale", "fish"]
    with pytest.raises(DataError, match="whale"):
        generate(model, CLOSED, prompt="the whale", **options)


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1.0}, {"max_new_tokens": 0}, {"samples": 0}, {"prompt": f"a {EOS} b"}],
)
def test_invalid_options_and_another_vocabulary_raise_before_the_first_word(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        generate(language_model(), VOCABULARY, **options)
    with pytest.raises(ValueError, match="vocabulary"):
        generate(language_model(), Vocabulary([EOS, "a"], [1, 1]))
