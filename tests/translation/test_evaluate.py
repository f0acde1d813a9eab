"""The loss of a validation text, in batches that fit."""

import numpy as np
import pytest
import torch

from drill.data import IGNORE_INDEX, PairBatches, ParallelText, encode_pairs
from drill.models.translator import Translator
from drill.translation.evaluate import translation_loss
from tests.helpers.translators import small_data, small_training, small_translator


@pytest.fixture
def batches(calls_of):
    """Tokens of the longer side of every batch that a loss was taken of."""
    calls = calls_of(Translator, "loss")
    return lambda: [max(x.numel() for x in call.arguments[1:3]) for call in calls]


def test_validation_loss_does_not_depend_on_batches_or_smoothing():
    data, model = small_data(), small_translator("plain", dtype=torch.float64).eval()
    whole = translation_loss(model, data.valid)
    assert whole.tokens == sum(len(data.valid.target(i)) + 1 for i in range(len(data.valid)))
    assert translation_loss(model, data.valid, max_tokens=10).nll == pytest.approx(whole.nll)
    by_hand = 0.0
    for batch in PairBatches(data.valid, 1000).epoch(0):
        log_p = model.log_probs(batch.source, batch.target_in)
        real = batch.target_out != IGNORE_INDEX
        by_hand -= float(log_p[real].gather(1, batch.target_out[real][:, None]).sum().detach())
    assert whole.nll == pytest.approx(by_hand)


def test_one_long_pair_makes_no_other_batch_larger(batches):
    data, model = small_data(), small_translator("plain", dtype=torch.float64)
    lines = ["abc"] * 40 + ["abcde" * 30, "cb" * 50]
    pairs = encode_pairs(ParallelText(lines, lines), data.subwords)
    lengths = np.maximum(*pairs.lengths) + 1
    assert translation_loss(model, pairs, max_tokens=20).tokens == int(lengths.sum())
    *ordinary, long, longest = sorted(batches())
    assert [long, longest] == sorted(lengths[-2:].tolist())  # each on its own
    assert max(ordinary) <= 20 < min(lengths[-2:])
    assert len(ordinary) == -(-40 // (20 // int(lengths[0])))


def test_validation_takes_no_larger_batches_than_training(tmp_path, batches):
    small_training(tmp_path, max_tokens=24, max_steps=1)
    of_validation = batches()[: len(list(PairBatches(small_data().valid, 24).epoch(0)))]
    assert max(of_validation) <= 24
