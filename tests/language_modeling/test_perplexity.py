"""Perplexity: a tiny corpus by hand, both normalisations, every layer, the model left as it was."""

import math

import numpy as np
import pytest
import torch

from drill.data import DataError, batchify
from drill.language_modeling.evaluation.perplexity import (
    TOKENS_PER_LOSS,
    Perplexity,
    perplexity,
    token_losses,
)
from tests.language_modeling.models import every_layer, language_model, plain_losses, text
from tests.layers.table import V


def test_numbers_of_a_tiny_corpus_by_hand():
    """7 tokens at batch size 2: 0 1 2 and 3 4 5, the seventh dropped; 4 predicted, 2 unseen."""
    model, ids = language_model(), text(7)
    left, right = plain_losses(model, ids[:3]), plain_losses(model, ids[3:6])
    nll = float(left.sum() + right.sum())
    found = perplexity(model, ids, batch_size=2, bptt=70)
    assert (found.tokens, found.batch_size) == (4, 2)
    assert found.nll == pytest.approx(nll, abs=1e-12)
    assert found.loss == pytest.approx(nll / 4, abs=1e-12)
    assert found.perplexity == pytest.approx(math.exp(nll / 4), abs=1e-9)
    assert found.loss_all_tokens == pytest.approx(nll / 6, abs=1e-12)
    assert found.perplexity_all_tokens == pytest.approx(math.exp(nll / 6), abs=1e-9)


@every_layer
def test_every_layer_is_exact_whatever_the_segments(name):
    model, ids = language_model(name), text(53)
    truth = plain_losses(model, ids).sum().item()
    for bptt in (1, 7, 200):
        assert perplexity(model, ids, batch_size=1, bptt=bptt).nll == pytest.approx(truth, rel=1e-9)


def test_batchified_ids_keep_their_batch_size():
    model, ids = language_model(), text(50)
    made = perplexity(model, batchify(ids, 4), bptt=5)
    assert made == perplexity(model, ids, batch_size=4, bptt=5)
    assert made.batch_size == 4
    stream = torch.from_numpy(ids.astype(np.int64))
    assert perplexity(model, stream, batch_size=4, bptt=5) == made


def test_token_losses_come_in_reading_order():
    model, ids = language_model(), text(20)
    torch.testing.assert_close(token_losses(model, ids, bptt=6), plain_losses(model, ids))
    found = token_losses(model, ids, batch_size=3, bptt=4)  # streams of 6, 2 tokens dropped
    truth = torch.cat([plain_losses(model, ids[start : start + 6]) for start in (0, 6, 12)])
    torch.testing.assert_close(found, truth)
    assert found.sum().item() == pytest.approx(perplexity(model, ids, batch_size=3).nll)


def test_labels_are_encoded_once():
    model, calls = language_model("deep residual 2"), []
    model.layer.maps[0].register_forward_hook(lambda *_: calls.append(1))
    perplexity(model, text(3 * TOKENS_PER_LOSS), batch_size=8, bptt=70)
    assert len(calls) == 1


# -- precision ------------------------------------------------------------------------------------


def test_many_tokens_are_summed_in_float64():
    """In float32 a sum of 60,000 losses loses digits; here only the losses themselves do."""
    model, ids = language_model("tied"), text(60_001)
    truth = perplexity(model, ids, batch_size=100).nll
    assert perplexity(model.float(), ids, batch_size=100).nll == pytest.approx(truth, rel=3e-7)


def test_autocast_is_close_and_not_the_same():
    model, ids = language_model(dtype=torch.float32), text(200)
    exact = perplexity(model, ids, batch_size=4)
    low = perplexity(model, ids, batch_size=4, autocast=torch.bfloat16)
    assert low.nll != exact.nll
    assert low.loss == pytest.approx(exact.loss, rel=0.02)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.gpu
def test_model_on_a_gpu_reads_ids_from_the_host():
    model, ids = language_model(), text(60)
    truth = perplexity(model, ids, batch_size=3, bptt=7)
    found = perplexity(model.cuda(), ids, batch_size=3, bptt=7)
    assert found.nll == pytest.approx(truth.nll, rel=1e-9)
    assert token_losses(model, ids).device.type == "cpu"


# -- faults ---------------------------------------------------------------------------------------


def test_impossible_token_and_a_loss_beyond_the_floats_make_the_perplexity_infinite():
    model = language_model("tied")
    with torch.no_grad():
        model.layer.bias[int(text(30)[9])] = -torch.inf
    found = perplexity(model, text(30), batch_size=1)
    assert (found.nll, found.perplexity) == (math.inf, math.inf)
    assert Perplexity(nll=2000.0, tokens=1, batch_size=1).perplexity == math.inf  # no overflow


def test_nan_raises():
    model, ids = language_model("full"), text(500)  # its labels are not the words
    with torch.no_grad():
        model.encoder.embedding.weight[3] = torch.nan
    with pytest.raises(FloatingPointError, match=r"NaN for .* of 499 values"):
        perplexity(model, ids, batch_size=1, bptt=70)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (np.array([1, 2, V, 3]), {"batch_size": 1}, f"id {V} "),
        (np.array([1, 2, -1, 3]), {"batch_size": 1}, "id -1 "),
        (text(5), {"batch_size": 4}, "batch size 4"),
        (text(5), {"batch_size": 0}, "batch_size"),
        (text(5), {"batch_size": 1, "bptt": 0}, "bptt"),
    ],
)
def test_texts_that_cannot_be_scored(ids, options, message):
    with pytest.raises(DataError, match=message):
        perplexity(language_model("tied"), ids, **options)
