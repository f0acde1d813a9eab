"""Translations sampled at random."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from drill.models.token_sampling import draw
from drill.models.translator import Translator
from drill.translation.search.decoding import (
    Batch,
    Head,
    Hypothesis,
    OnProgress,
    Search,
    Sources,
    TokenMask,
    search_batches,
)


@torch.no_grad()
def sample(
    model: Translator,
    sources: Sources,
    search: Search = Search(),  # noqa: B008 - it is frozen
    *,
    first: int = 0,
    head: Head | None = None,
    progress: OnProgress | None = None,
) -> list[list[Hypothesis]]:
    """Sample ``search.n_best`` translations of every source, token by token.

    Args:
        model: the translator.
        sources: sentences as ids: (B, S) padded on the right, or a list for each.
        search: options of the search.
        first: number of the first source, if a text is translated in parts.
        head: from ``cached_head``, to share encoded labels between calls.
        progress: called before every batch with the number of sentences done.

    Returns:
        For every source its samples; ``log_prob`` and ``score`` are log p of the model, without
        temperature and truncation.
    """
    samples = search.n_best
    entropy = np.random.SeedSequence(search.seed).entropy

    def find(head: Head, batch: Batch) -> dict[int, list[Hypothesis]]:
        transformer, writable = model.transformer, TokenMask(model, search)
        cache = transformer.start(transformer.encode(batch.source), samples)
        limit = torch.tensor(batch.limits, device=batch.source.device)
        u = _uniform(entropy, batch, samples, first)  # (B, K, L)
        written = torch.full_like(u, search.eos, dtype=torch.int64)
        log_prob = torch.zeros_like(u[..., 0])
        ids = torch.full_like(written[..., 0], search.bos)
        going = torch.ones_like(ids, dtype=torch.bool)
        for t in range(u.shape[2]):
            scores = head(transformer.step(ids.flatten(), cache)).unflatten(0, (-1, samples))
            at_limit = limit <= t + 1 if t + 1 >= min(batch.limits) else None
            log_p = writable(scores, at_limit).double()  # (B, K, V)
            if not log_p.amax(-1).isfinite().all():
                raise FloatingPointError(
                    f"sample: the model gives NaN for a probability at token {t + 1}, or 0 for "
                    "all that may be written; look at its weights, or search in float32"
                )
            ids = draw(log_p, u[..., t], search.temperature, search.top_k, search.top_p)
            ids = torch.where(going, ids, search.eos)
            chosen = log_p.gather(-1, ids[..., None])[..., 0]
            log_prob += torch.where(going, chosen, 0.0)
            written[..., t] = ids
            going &= ids != search.eos
            if not going.any():
                break
        ends = (written == search.eos).int().argmax(-1)  # the first <eos>
        rows = zip(batch.indices, written.tolist(), ends.tolist(), log_prob.tolist(), strict=True)
        return {
            index: [
                Hypothesis(tuple(ids[:end]), value, value)
                for ids, end, value in zip(*row, strict=True)
            ]
            for index, *row in rows
        }

    return search_batches("sample", model, sources, search, samples, head, progress, find)


def _uniform(entropy: Any, batch: Batch, samples: int, first: int) -> Tensor:
    """A number in [0, 1) for every token that may be drawn, (B, samples, L)."""
    u = np.zeros((len(batch.indices), samples, max(batch.limits)))
    for row, index, limit in zip(u, batch.indices, batch.limits, strict=True):
        for i in range(samples):
            stream = np.random.SeedSequence(entropy, spawn_key=(first + index, i))
            row[i, :limit] = np.random.default_rng(stream).random(limit)
    return torch.from_numpy(u).to(batch.source.device)
