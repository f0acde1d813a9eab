"""The cache pointer against a loop over tokens, in float64."""

import math

import numpy as np
import pytest
import torch

from drill.data import DataError
from drill.language_modeling.evaluation import cache_pointer
from drill.language_modeling.evaluation.cache_pointer import (
    SCORES,
    cache_perplexity,
    cache_search,
)
from drill.language_modeling.evaluation.perplexity import perplexity
from drill.models.language_model import LanguageModel
from tests.language_modeling.models import every_layer, language_model, plain_losses, text
from tests.layers.table import V, one_of_each_layer

STRONG = {"theta": 0.8, "lambda_": 0.3}


def slow_cache(
    model: LanguageModel, ids: np.ndarray, window: int, theta: float, lambda_: float
) -> float:
    """p = lambda sum_j softmax_j(theta h_t . h_j) [y_j = y_t] + (1 - lambda) p_vocab by token."""
    stream = torch.tensor(ids.astype(int))
    model.eval()
    with torch.no_grad():
        h = model.encoder(stream[:-1, None]).raw[:, 0]
    model.train()
    p_vocab = (-plain_losses(model, ids)).exp()
    y, nll = stream[1:], 0.0
    for t in range(len(y)):
        p = float(p_vocab[t])
        cached = range(max(0, t - window), t)
        if cached:
            scores = [math.exp(theta * float(h[t] @ h[j])) for j in cached]
            match = sum(s for s, j in zip(scores, cached, strict=True) if y[j] == y[t])
            p = lambda_ * match / sum(scores) + (1 - lambda_) * p
        nll -= math.log(p)
    return nll


@every_layer
def test_every_layer_is_as_token_by_token(name, monkeypatch):
    monkeypatch.setattr(cache_pointer, "CHUNK", 7)
    model, ids = language_model(name), text(45)
    truth = slow_cache(model, ids, 12, **STRONG)
    found = cache_perplexity(model, ids, window=12, **STRONG)
    assert found.nll == pytest.approx(truth, rel=1e-9)
    assert (found.tokens, found.batch_size) == (44, 1)
    assert found.nll != pytest.approx(perplexity(model, ids, batch_size=1).nll, rel=1e-3)


@pytest.mark.parametrize(
    ("window", "chunk"),
    [
        (1, 1), (1, 100), (3, 2), (10, 9), (10, 10), (10, 11), (43, 44), (44, 44), (100, 1),
        (100, 100),
    ],
)  # fmt: skip
def test_neither_chunks_nor_their_blocks_change_the_result(window, chunk, monkeypatch):
    monkeypatch.setattr(cache_pointer, "CHUNK", chunk)
    model, ids = language_model(), text(45)
    truth = slow_cache(model, ids, window, **STRONG)
    for scores in (SCORES, 4 * window):  # at once, and a few queries at a time
        monkeypatch.setattr(cache_pointer, "SCORES", scores)
        found = cache_perplexity(model, ids, window=window, **STRONG)
        assert found.nll == pytest.approx(truth, rel=1e-9)


def test_new_word_has_no_probability_in_the_cache():
    model = language_model()
    assert cache_perplexity(model, np.arange(V), lambda_=1.0).nll == math.inf
    known = cache_perplexity(model, np.zeros(20, int), lambda_=1.0)
    first = plain_losses(model, np.zeros(2, int)).item()  # nothing is in the cache yet
    assert known.nll == pytest.approx(first, rel=1e-9)


# -- the search -----------------------------------------------------------------------------------


@one_of_each_layer
def test_search_finds_what_single_evaluations_find(name):
    model, ids = language_model(name), np.tile(text(9), 10)
    found = cache_search(model, ids, window=12, thetas=(0.3, 2.0), lambdas=(0.0, 0.2, 0.6))
    assert len(found.cells) == 6
    for cell in found.cells:
        alone = cache_perplexity(model, ids, window=12, **cell.settings)
        assert cell.result.nll == pytest.approx(alone.nll, rel=1e-9)
    assert found.best.result.loss == min(cell.result.loss for cell in found.cells)
    assert found.best.settings["lambda_"] > 0


def test_limit_reads_the_beginning_only():
    model, ids = language_model(), text(60)
    few = cache_search(model, ids, thetas=(1.0,), lambdas=(0.1,), limit=20)
    assert few == cache_search(model, ids[:21], thetas=(1.0,), lambdas=(0.1,))
    assert few.best.result.tokens == 20


@pytest.mark.gpu
def test_on_a_gpu_it_is_the_same():
    model, ids = language_model(), text(300)
    truth = cache_perplexity(model, ids, window=50, **STRONG).nll
    found = cache_perplexity(model.cuda(), ids, window=50, **STRONG).nll
    assert found == pytest.approx(truth, rel=1e-9)


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("window", 0), ("theta", math.nan), ("lambda_", 1.1), ("lambda_", math.nan)],
)
def test_invalid_settings_raise(option, value):
    with pytest.raises(ValueError, match=option):
        cache_perplexity(language_model(), text(60), **{option: value})


def test_several_columns_and_an_empty_grid_raise():
    with pytest.raises(DataError, match="a batch of 4"):
        cache_perplexity(language_model(), torch.zeros(20, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="no settings to try"):
        cache_search(language_model(), text(60), thetas=())


def test_autocast_is_for_the_model_not_for_similarities(calls_of):
    model, ids = language_model("tied", torch.float32), text(120)
    calls = calls_of(cache_pointer, "pointer_log_probs")
    exact = cache_perplexity(model, ids, window=20, **STRONG)
    coarse = cache_perplexity(model, ids, window=20, autocast=torch.bfloat16, **STRONG)
    assert coarse.nll != exact.nll
    assert coarse.loss == pytest.approx(exact.loss, rel=0.02)
    searched = cache_search(
        model, ids, window=20, thetas=[0.8], lambdas=[0.3], autocast=torch.bfloat16
    )
    assert searched.best.result == coarse
    assert {call.arguments[0].dtype for call in calls} == {torch.float32}
