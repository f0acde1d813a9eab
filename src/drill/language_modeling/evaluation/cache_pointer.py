"""The continuous cache pointer (Grave, Joulin & Usunier, ICLR 2017): recent words are likelier.

    p(y_t) = lambda p_cache(y_t) + (1 - lambda) p_vocab(y_t)
    p_cache(y_t) = sum_{j in window} softmax_j(theta h_t . h_j) [y_j = y_t]

h_j is the encoder's last output before dropout, y_j the word that followed it. Nothing is trained.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from drill.data import evaluation_segments, inputs_and_targets
from drill.errors import check_value
from drill.files import OnProgress
from drill.language_modeling.evaluation.grid_search import Cell, GridSearch
from drill.language_modeling.evaluation.perplexity import Perplexity, Text, single_stream
from drill.models.language_model import LanguageModel
from drill.training.precision import autocast_to, check_nan, evaluating

THETAS = (0.3, 0.5, 0.7, 1.0, 1.5)
LAMBDAS = (0.05, 0.1, 0.15, 0.2, 0.3)

CHUNK = 2000  # tokens that are encoded at a time
SCORES = 2**22  # scores h_t . h_j in memory at a time
SHORTEST_BLOCK = 128  # a block of q tokens computes window + q scores each, of which window count


def cache_perplexity(
    model: LanguageModel,
    ids: Text,
    *,
    window: int = 500,
    theta: float = 1.0,
    lambda_: float = 0.1,
    autocast: torch.dtype | None = None,
    progress: OnProgress | None = None,
) -> Perplexity:
    """The perplexity of a text, read as one stream, with a cache of its last words.

    Args:
        model: in any mode; it is left as it was.
        ids: the text, (N,).
        window: words in the cache.
        theta: weight of similarity; 0 counts words.
        lambda_: the cache's share of the probability.
        autocast: of the model, for example torch.bfloat16; similarities keep their precision.
        progress: called with the tokens done and all there are.

    Returns:
        Loss and perplexity of all predicted tokens.
    """
    check_cache_settings(window, [theta], [lambda_])
    data = single_stream("cache_perplexity", model, ids)
    vocabulary, pointer = _read(model, data, window, [theta], autocast, progress)
    losses = _mixed(vocabulary, pointer[0], lambda_)
    check_nan("cache_perplexity", losses)
    return Perplexity(losses.sum().item(), len(losses), 1)


def cache_search(
    model: LanguageModel,
    ids: Text,
    *,
    window: int = 500,
    thetas: Sequence[float] = THETAS,
    lambdas: Sequence[float] = LAMBDAS,
    limit: int | None = None,
    autocast: torch.dtype | None = None,
    progress: OnProgress | None = None,
) -> GridSearch:
    """Every theta with every lambda on a validation text, which is read once for all.

    best = cache_search(model, valid, window=500).best
    result = cache_perplexity(model, test, window=500, **best.settings)

    Args:
        model: as of ``cache_perplexity``, and so are window and autocast.
        ids: the validation text, (N,).
        window: words in the cache.
        thetas: weights of similarity to try.
        lambdas: shares of the cache to try.
        limit: predict the first ``limit`` tokens only.
        autocast: of the model.
        progress: called with the tokens done and all there are.

    Returns:
        All cells of the grid; ``best`` has the settings of the lowest loss.
    """
    check_cache_settings(window, thetas, lambdas)
    if not (thetas and lambdas):
        raise ValueError("cache_search: there are no settings to try; give a theta and a lambda_")
    data = single_stream("cache_search", model, ids, limit)
    vocabulary, pointers = _read(model, data, window, thetas, autocast, progress)
    check_nan("cache_search", vocabulary)
    cells = []
    for theta, pointer in zip(thetas, pointers, strict=True):
        for lambda_ in lambdas:
            nll = _mixed(vocabulary, pointer, lambda_).sum().item()
            result = Perplexity(nll, len(data) - 1, 1) if math.isfinite(nll) else None
            cells.append(Cell({"theta": theta, "lambda_": lambda_}, result))
    return GridSearch(cells)


@torch.no_grad()
def _read(
    model: LanguageModel,
    data: Tensor,  # (N, 1)
    window: int,
    thetas: Sequence[float],
    autocast: torch.dtype | None,
    progress: OnProgress | None,
) -> tuple[Tensor, Tensor]:
    """The model's -log p (M,) and the cache's log p (thetas, M), NaN where the cache is empty."""
    segments = evaluation_segments(len(data), CHUNK)
    state = model.initial_state(1)
    wide = next(model.parameters()).dtype
    vocabulary, pointer = [], []
    h_cached, y_cached = None, data.new_empty(0)
    block = block_length(min(window, len(data)))
    with evaluating(model), model.layer.cached_labels():
        for segment in segments:
            inputs, targets = inputs_and_targets(data, segment)
            with autocast_to(data.device, autocast):
                encoded = model.encoder(inputs, state)
                nll = model.layer.nll(encoded.output, targets, reduction="none", check=False)
            state = encoded.state
            vocabulary.append(nll[:, 0])
            # theta h_t . h_j in bfloat16 would be off by whole units
            h = encoded.raw[:, 0].to(wide)
            h = h if h_cached is None else torch.cat([h_cached, h])  # (cached + length, w)
            y = torch.cat([y_cached, targets[:, 0]])
            scale = torch.tensor(thetas, dtype=h.dtype, device=h.device)
            for first in range(len(y_cached), len(y), block):
                after = min(first + block, len(y))
                start = max(0, first - window)
                pointer.append(
                    pointer_log_probs(h[start:after], y[start:after], first - start, window, scale)
                )
            h_cached, y_cached = h[-window:], y[-window:]
            if progress is not None:
                progress(segment.start + segment.length, len(data) - 1)
    return torch.cat(vocabulary), torch.cat(pointer, dim=1)


def pointer_log_probs(
    h: Tensor,  # (K, w)
    y: Tensor,  # (K,)
    cached: int,
    window: int,
    thetas: Tensor,  # (m,)
) -> Tensor:
    """The cache's log p of each y_t, t = cached .. K - 1, for every theta: (m, K - cached).

        log sum_{j matches} exp(theta h_t . h_j) - log sum_j exp(theta h_t . h_j)

    j runs over the ``window`` positions before t and matches if y_j = y_t: -inf if none does, NaN
    if there is no position before t.
    """
    t = torch.arange(cached, len(y), device=y.device)[:, None]
    j = torch.arange(len(y), device=y.device)
    outside = (j >= t) | (j < t - window)  # (K - cached, K)
    no_match = outside | (y != y[cached:, None])
    scores = h[cached:] @ h.t()
    log_probs = []
    for theta in thetas:
        scaled = theta * scores
        log_total = scaled.masked_fill(outside, -torch.inf).logsumexp(dim=1)
        log_probs.append(scaled.masked_fill(no_match, -torch.inf).logsumexp(dim=1) - log_total)
    return torch.stack(log_probs)


def block_length(window: int) -> int:
    """How many tokens look into the cache at once: SCORES bounds q * (window + q)."""
    fits = (math.isqrt(window * window + 4 * SCORES) - window) // 2
    return max(1, min(fits, max(window, SHORTEST_BLOCK)))


def _mixed(vocabulary: Tensor, pointer: Tensor, lambda_: float) -> Tensor:
    """-log p of every token, (M,) in float64; the first has an empty cache."""
    share = torch.tensor(lambda_, dtype=torch.float64, device=vocabulary.device)
    log_p = -vocabulary.double()
    mixed = torch.logaddexp(share.log() + pointer.double(), (-share).log1p() + log_p)
    first = torch.arange(len(log_p), device=log_p.device) == 0
    return -torch.where(first, log_p, mixed)


def check_cache_settings(window: int, thetas: Sequence[float], lambdas: Sequence[float]) -> None:
    """Raise ValueError for invalid settings."""
    name = "cache_perplexity"
    check_value(window >= 1, f"{name}: window", "at least 1", window)
    for theta in thetas:
        check_value(math.isfinite(theta), f"{name}: theta", "a finite number", theta)
    for lambda_ in lambdas:
        check_value(0.0 <= lambda_ <= 1.0, f"{name}: lambda_", "in [0, 1]", lambda_)
