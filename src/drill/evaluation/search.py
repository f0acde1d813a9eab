"""Translations out of a translator: beam search, greedy search, sampling.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^alpha        |y| counts the <eos>

A beam has ``beam`` places. At each step they go to the likeliest continuations of what stands in
them; one that ends keeps its place and the others share what is left, so the search is over when
all places have ended, or when nothing that still grows can overtake. With one place it is greedy.
"""

from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor

from drill.evaluation.perplexity import lower_precision
from drill.evaluation.sampling import sample
from drill.evaluation.search_steps import (
    Batch,
    Decoding,
    Head,
    Hypothesis,
    Sources,
    Writable,
    batches,
    begin,
    encoded_once,
    ready,
)
from drill.layers.settings import positive
from drill.translator import Translator

__all__ = ["Decoding", "Hypothesis", "beam_search", "encoded_once", "greedy", "sample"]

LEAVE_AT = 8
"""Sentences that are done leave the batch when they are one in so many: leaving copies the rest."""


@torch.no_grad()
def beam_search(
    model: Translator,
    sources: Sources,
    decoding: Decoding,
    *,
    beam: int = 4,
    n_best: int = 1,
    length_penalty: float = 0.6,
    head: Head | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` translations of every source, in the order of the sources, the best first.

        beam_search(model, [[5, 9, 2]], Decoding(bos=1, eos=2))

    beam            places; more find better scores, which are not always better translations
    n_best          at most ``beam``; fewer come back where fewer can be written
    length_penalty  alpha: 0 ranks by probability, which favours the short; more, the long
    head            what ``encoded_once`` gives, where labels are to serve several calls

    Sentences of about one length are searched together; alone they have the same translations, up
    to rounding. The model comes back in the mode it was in.
    """
    if positive("beam_search", "n_best", n_best) > positive("beam_search", "beam", beam):
        raise ValueError(
            f"beam_search: {n_best} translations were asked for, but the beam has {beam} places; "
            f"pass beam={n_best}"
        )
    found: dict[int, list[Hypothesis]] = {}
    work = batches("beam_search", model, sources, decoding)
    with ready(model, head) as scores:
        for batch in work:
            with lower_precision(batch.source.device, decoding.autocast):
                found |= _search(model, scores, batch, decoding, beam, n_best, length_penalty)
    return [found[place] for place in range(len(found))]


def greedy(
    model: Translator, sources: Sources, decoding: Decoding, *, head: Head | None = None
) -> list[Hypothesis]:
    """The likeliest token after each, for every source: a beam of one place."""
    found = beam_search(model, sources, decoding, beam=1, length_penalty=0.0, head=head)
    return [hypotheses[0] for hypotheses in found]


# -- the beam -------------------------------------------------------------------------------------


@dataclass
class _Beam:
    """b sentences with K places each; L is the longest translation allowed."""

    place: Tensor  # (b,) where a sentence stands among the sources
    limit: Tensor  # (b,) tokens it may have
    alive: Tensor  # (b, K) log p of what still grows, -inf where nothing does
    written: Tensor  # (b, K, L) its tokens
    score: Tensor  # (b, K) of what has ended, the best first, -inf where nothing has
    log_prob: Tensor  # (b, K)
    length: Tensor  # (b, K)
    ended: Tensor  # (b, K, L) its tokens

    @classmethod
    def fresh(cls, batch: Batch, beam: int, eos: int, dtype: torch.dtype) -> "_Beam":
        b, device = len(batch.places), batch.source.device
        empty = torch.full((b, beam), -torch.inf, dtype=dtype, device=device)
        alive = empty.clone()
        alive[:, 0] = 0.0  # all places begin alike, so only one of them may go on
        tokens = torch.full((b, beam, max(batch.limits)), eos, device=device)
        return cls(
            torch.tensor(batch.places, device=device),
            torch.tensor(batch.limits, device=device),
            alive,
            tokens,
            empty,
            empty,
            torch.zeros_like(alive, dtype=torch.int64),
            tokens,
        )

    def advance(self, log_p: Tensor, length: int, eos: int, penalty: float | Tensor) -> Tensor:
        """Writes token number ``length`` from log p (b, K, V); gives the place each grew from."""
        K, V = log_p.shape[1:]
        log_prob, index = (self.alive[..., None] + log_p).flatten(1).topk(K)  # sorted, (b, K)
        parent, token = index // V, index % V
        left = K - (self.score != -torch.inf).sum(1, keepdim=True)  # places that have not ended
        real = (torch.arange(K, device=token.device) < left) & (log_prob != -torch.inf)
        ends = real & (token == eos)
        self.written = _take(self.written, parent)
        self.written[:, :, length - 1] = torch.where(real, token, eos)
        self.alive = log_prob.masked_fill(~real | ends, -torch.inf)

        score = (log_prob / penalty).masked_fill(~ends, -torch.inf)
        self.score, order = torch.cat([self.score, score], 1).topk(K)
        self.log_prob = torch.cat([self.log_prob, log_prob], 1).gather(1, order)
        lengths = torch.cat([self.length, torch.full_like(token, length)], 1)
        self.length = lengths.gather(1, order)
        self.ended = _take(torch.cat([self.ended, self.written], 1), order)
        return parent

    def select(self, sentences: Tensor) -> "_Beam":
        return _Beam(*(getattr(self, each.name)[sentences] for each in fields(self)))

    def hypotheses(self, n_best: int) -> dict[int, list[Hypothesis]]:
        """By place among the sources."""
        columns = (self.ended, self.length, self.log_prob, self.score)
        rows = zip(*(column[:, :n_best].tolist() for column in columns), strict=True)
        return {
            place: [
                Hypothesis(tuple(ids[: length - 1]), log_prob, score)
                for ids, length, log_prob, score in zip(*row, strict=True)
                if score != -torch.inf
            ]
            for place, row in zip(self.place.tolist(), rows, strict=True)
        }


def _search(
    model: Translator,
    head: Head,
    batch: Batch,
    decoding: Decoding,
    K: int,
    n_best: int,
    alpha: float,
) -> dict[int, list[Hypothesis]]:
    device = batch.source.device
    steps = begin(model, batch.source, K, decoding.cache)
    writable = Writable(model, decoding, device)
    ids = torch.full((len(batch.places) * K,), decoding.bos, device=device)
    found: dict[int, list[Hypothesis]] = {}
    beam: _Beam | None = None
    for length in range(1, max(batch.limits) + 1):
        log_p = head(steps.step(ids)).unflatten(0, (-1, K))  # (b, K, V)
        if beam is None:
            beam = _Beam.fresh(batch, K, decoding.eos, log_p.dtype)
        at_limit = beam.limit == length if length in batch.limits else None
        log_p = writable(log_p, at_limit)
        parent = beam.advance(log_p, length, decoding.eos, _penalty(length, alpha))
        done = _settled(beam, length, n_best, alpha)
        wrong = beam.alive.isnan().sum() + beam.score.isnan().sum()
        count, broken = torch.stack([done.sum(), wrong]).tolist()  # one wait for the device
        if broken:
            raise FloatingPointError(
                f"beam_search: the model gives NaN for a probability at token {length}; look at "
                "its weights, or search in float32"
            )
        if count == len(done):
            break
        if K > 1:
            steps.reorder((torch.arange(len(done), device=device)[:, None] * K + parent).flatten())
        if count * LEAVE_AT >= len(done):
            found |= beam.select(done.nonzero()[:, 0]).hypotheses(n_best)
            going = (~done).nonzero()[:, 0]
            beam = beam.select(going)
            steps.select(going)
        ids = beam.written[:, :, length - 1].flatten()
    assert beam is not None
    return _all_ended(found | beam.hypotheses(n_best))


def _settled(beam: _Beam, length: int, n_best: int, alpha: float) -> Tensor:
    """(b,) whether nothing that still grows can enter the ``n_best``.

    log p only falls, so what grows scores at most as if it were to end now or at the limit with the
    log p it has: the penalty is largest at one of the two.
    """
    best = beam.alive.amax(1)
    bound = torch.maximum(best / _penalty(length + 1, alpha), best / _penalty(beam.limit, alpha))
    return (best == -torch.inf) | (beam.score[:, n_best - 1] > bound)


def _penalty(length: int | Tensor, alpha: float) -> float | Tensor:
    return cast(float | Tensor, ((5 + length) / 6) ** alpha)


def _all_ended(found: dict[int, list[Hypothesis]]) -> dict[int, list[Hypothesis]]:
    for place, hypotheses in found.items():
        if not hypotheses:
            raise ValueError(
                f"beam_search: the model gives <eos> no probability, so no translation of sentence "
                f"{place} ends within its limit; look at the bias of its label"
            )
    return found


def _take(tokens: Tensor, order: Tensor) -> Tensor:
    """Rows of (b, n, L) by (b, K) -> (b, K, L)."""
    return tokens.gather(1, order[..., None].expand(-1, -1, tokens.shape[2]))
