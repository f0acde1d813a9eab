"""Translations sampled at random."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from drill.layers.checks import check_integer
from drill.models.sampling import check_sampling, draw
from drill.models.translator import Translator
from drill.translation.search.decoding import (
    Batch,
    Decoding,
    Head,
    Hypothesis,
    OnProgress,
    Sources,
    TokenMask,
    searched,
)


@torch.no_grad()
def sample(
    model: Translator,
    sources: Sources,
    decoding: Decoding,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    first: int = 0,
    head: Head | None = None,
    progress: OnProgress | None = None,
) -> list[list[Hypothesis]]:
    """Sample translations token by token.

    Args:
        model: the translator.
        sources: sentences as ids: (B, S) padded on the right, or a list for each.
        decoding: options of every search.
        samples: translations of every source.
        temperature: sample from p^(1/temperature), normalised; 0 is greedy.
        top_k: sample from the top_k likeliest tokens only.
        top_p: sample from the likeliest tokens that make up this probability.
        seed: of the random numbers. Each sample has its own stream, so it does not depend on how
            many others there are.
        first: number of the first source, if a text is translated in parts.
        head: from ``cached_head``, to share encoded labels between calls.
        progress: called before every batch with the number of sentences done.

    Returns:
        For every source its samples; ``log_prob`` and ``score`` are log p of the model, without
        temperature and truncation.
    """
    check_integer("sample", "samples", samples)
    check_sampling("sample", temperature, top_k, top_p, seed)
    entropy = np.random.SeedSequence(seed).entropy

    def search(head: Head, batch: Batch) -> dict[int, list[Hypothesis]]:
        transformer, writable = model.transformer, TokenMask(model, decoding)
        cache = transformer.start(transformer.encode(batch.source), samples)
        limit = torch.tensor(batch.limits, device=batch.source.device)
        u = _uniform(entropy, batch, samples, first)  # (B, K, L)
        written = torch.full_like(u, decoding.eos, dtype=torch.int64)
        log_prob = torch.zeros_like(u[..., 0])
        ids = torch.full_like(written[..., 0], decoding.bos)
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
            ids = draw(log_p, u[..., t], temperature, top_k, top_p)
            ids = torch.where(going, ids, decoding.eos)
            chosen = log_p.gather(-1, ids[..., None])[..., 0]
            log_prob += torch.where(going, chosen, 0.0)
            written[..., t] = ids
            going &= ids != decoding.eos
            if not going.any():
                break
        ends = (written == decoding.eos).int().argmax(-1)  # the first <eos>
        rows = zip(batch.indices, written.tolist(), ends.tolist(), log_prob.tolist(), strict=True)
        return {
            index: [
                Hypothesis(tuple(ids[:end]), value, value)
                for ids, end, value in zip(*row, strict=True)
            ]
            for index, *row in rows
        }

    return searched("sample", model, sources, decoding, samples, head, progress, search)


def _uniform(entropy: Any, batch: Batch, samples: int, first: int) -> Tensor:
    """A number in [0, 1) for every token that may be drawn, (B, samples, L)."""
    u = np.zeros((len(batch.indices), samples, max(batch.limits)))
    for row, index, limit in zip(u, batch.indices, batch.limits, strict=True):
        for i in range(samples):
            own = np.random.SeedSequence(entropy, spawn_key=(first + index, i))
            row[i, :limit] = np.random.default_rng(own).random(limit)
    return torch.from_numpy(u).to(batch.source.device)
