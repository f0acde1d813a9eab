"""Where lines begin: against lines that are written one by one, each read from its beginning."""

import numpy as np
import pytest
import torch

from drill.data import EOS
from drill.language_modeling.generation import chosen, generate, kept
from drill.language_modeling.line_start import LINES, LONGEST, line_start, repeated
from drill.language_modeling.perplexity import perplexity
from drill.language_modeling.scoring import score
from drill.training.precision import evaluating
from tests.language_modeling.models import bits, every_layer, language_model, plain_losses, text
from tests.translation.words import VOCABULARY, WORDS, begun

END = WORDS.index(EOS)


def slow_start(model, longest=LONGEST):
    dice = np.random.default_rng(0).random((longest, LINES))
    states = []
    with evaluating(model), torch.no_grad():
        for column in dice.T:
            read = [END]
            for u in column:
                log_probs, state = model.log_probs(torch.tensor(read)[:, None])
                read.append(chosen(log_probs[-1, 0].exp().numpy(), u))
                if read[-1] == END:
                    break
            states.append(state)
    parts = [torch.cat([state[i][j] for state in states], 1) for i in (0, 1) for j in (0, 1)]
    return [part.mean(1, keepdim=True) for part in parts]


@pytest.mark.parametrize("name", ["tied", "deep residual locked", "mixture standard"])
def test_it_is_the_mean_state_after_lines_that_the_model_writes(name):
    model = language_model(name)
    found = [part for layer in begun(model) for part in layer]
    torch.testing.assert_close(found, slow_start(model))


def test_a_model_that_never_ends_a_line_is_stopped(monkeypatch):
    monkeypatch.setattr("drill.language_modeling.line_start.LONGEST", 10)
    model = language_model("tied")
    with torch.no_grad():
        model.layer.bias[END] = -torch.inf
    found = [part for layer in begun(model) for part in layer]
    torch.testing.assert_close(found, slow_start(model, 10))


@every_layer
def test_it_is_the_same_every_time_and_leaves_the_model_as_it_was(name):
    model = language_model(name)
    before, modes = bits(model), [module.training for module in model.modules()]
    dice = torch.random.get_rng_state()
    first, second = begun(model), begun(model)
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert bits(model) == before
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), dice)


def test_a_state_is_repeated_for_every_sequence():
    start = begun(language_model())
    for one, many in zip(start, repeated(start, 3), strict=True):
        for a, b in zip(one, many, strict=True):
            assert b.shape == (1, 3, a.shape[-1])
            assert torch.equal(b, a.expand(-1, 3, -1))


def test_generate_and_score_begin_in_this_state(monkeypatch):
    """In one far from zero: the log p of every first word is that of a pass from it."""
    model = language_model("tied").eval()
    far = tuple(tuple(part + 2.0 for part in layer) for layer in model.initial_state(1))
    for module in ("generation", "scoring"):
        monkeypatch.setattr(f"drill.language_modeling.{module}.line_start", lambda *_: far)
    with torch.no_grad():
        wanted, zero = (
            model.log_probs(torch.tensor([[END]]), state)[0][0, 0] for state in (far, None)
        )
    assert (wanted - zero).abs().max() > 0.1

    lines = ["" if word == EOS else word for word in VOCABULARY.words]
    scored = torch.tensor([each.log_probs[0] for each in score(model, VOCABULARY, lines)])
    assert torch.allclose(scored, wanted.float(), atol=1e-6)

    seen = []

    def kept_and_seen(log_probs, *options):
        seen.append(torch.from_numpy(log_probs.copy()))
        return kept(log_probs, *options)

    monkeypatch.setattr("drill.language_modeling.generation.kept", kept_and_seen)
    list(generate(model, VOCABULARY, tokens=1, seed=0, allow_unknown=True))
    assert torch.allclose(seen[0], wanted, atol=1e-9)


def test_a_text_read_as_one_stream_still_begins_from_zero():
    model, ids = language_model("tied"), text(40)
    truth = float(plain_losses(model, ids).mean())
    assert perplexity(model, ids, batch_size=1).loss == pytest.approx(truth)


def test_nan_is_told_in_the_name_of_who_asked():
    model = language_model("tied")
    with torch.no_grad():
        model.layer.bias[0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"^score: the model gives NaN"):
        line_start("score", model, END)
