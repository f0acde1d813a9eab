"""Beam search.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^alpha        |y| counts the <eos>

A beam has ``beam_size`` hypotheses. Each step extends them by their likeliest continuations; one
that ends keeps its slot. The search is over when all have ended, or when no open hypothesis can
overtake the best ones. A beam of 1 is greedy.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from drill.errors import require
from drill.models.transformer.decoding_cache import KeyValueCache
from drill.models.transformer.transformer import ALIGNED
from drill.models.translator import Translator
from drill.training.cuda_graphs import GraphCapture
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

DROP_DONE_AT = 8
"""Done sentences leave the batch when they are one in this many: leaving copies the rest."""

DROP_DONE_REPLAY_AT = 2
"""The same for CUDA graphs: what is left needs a new one, which takes as long as some tokens."""

CHECK_DONE_EVERY = 8
"""Tokens between two looks at what is done, for CUDA graphs: a look waits for the device."""

STEPS_PER_GRAPH = 2
"""Tokens in one CUDA graph: a beam is reordered between two halves of its memory, so after two
tokens all is where it was."""

INITIAL_CAPACITY = 64
"""Tokens there is room for at first in a CUDA graph: twice as many when they are used up."""


@torch.no_grad()
def beam_search(
    model: Translator,
    sources: Sources,
    search: Search = Search(),  # noqa: B008 - it is frozen
    *,
    head: Head | None = None,
    progress: OnProgress | None = None,
) -> list[list[Hypothesis]]:
    """Translate by beam search.

        beam_search(model, [[5, 9, 2]], Search(beam_size=8))
        beam_search(model, [[5, 9, 2]], Search(beam_size=1, length_penalty=0.0))  # greedy

    Args:
        model: the translator.
        sources: sentences as ids: (B, S) padded on the right, or a list for each.
        search: options of the search.
        head: from ``cached_head``, to share encoded labels between calls.
        progress: called before every batch with the number of sentences done.

    Returns:
        For every source its best translations, the best first; fewer than ``n_best`` if there are
        no more. Batching changes results by rounding only.
    """
    beam_size, n_best = search.beam_size, search.n_best
    require(n_best <= beam_size, "beam_search", "n_best", f"at most beam_size {beam_size}", n_best)
    graphs: GraphCapture | None = None

    def find(head: Head, batch: Batch) -> dict[int, list[Hypothesis]]:
        nonlocal graphs
        device = batch.source.device
        if graphs is None and search.replays(device, head):
            graphs = GraphCapture(device, instead="search with Search(..., graph=False)")
        return _search(model, head, batch, search, graphs)

    return search_batches("beam_search", model, sources, search, beam_size, head, progress, find)


# -- token by token -------------------------------------------------------------------------------


def _search(
    model: Translator,
    head: Head,
    batch: Batch,
    search: Search,
    graphs: GraphCapture | None,
) -> dict[int, list[Hypothesis]]:
    K, n_best, alpha = search.beam_size, search.n_best, search.length_penalty
    device, last = batch.source.device, max(batch.limits)
    capacity = -(-(last + STEPS_PER_GRAPH) // ALIGNED) * ALIGNED
    room = None if graphs is None else min(INITIAL_CAPACITY, capacity)
    transformer, writable = model.transformer, TokenMask(model, search)
    cache = transformer.start(transformer.encode(batch.source), K, room)
    weight = transformer.target_embedding.weight
    dtype = torch.promote_types(weight.dtype, torch.float32)
    # A replay may write some tokens past the last; nothing grows there, but it takes room.
    beam = Beam.fresh(batch, K, search.eos, alpha, last + STEPS_PER_GRAPH, dtype)
    ids = torch.full((len(batch.indices) * K,), search.bos, device=device)
    first = torch.arange(len(batch.indices), device=device)[:, None] * K  # row of each sentence

    def turn(ending: bool = True) -> None:
        """One token of every hypothesis; ``ending`` where some may be at their limit."""
        log_p = head(transformer.step(ids, cache)).unflatten(0, (-1, K))  # (b, K, V)
        at_limit = beam.limit == beam.index + 1 if ending else None
        parent = beam.advance(writable(log_p, at_limit), search.eos)
        beam.mark_done(n_best)
        if K > 1:
            cache.reorder((first[: len(parent)] + parent).flatten())
        ids.copy_(beam.last().flatten())

    finished: dict[int, list[Hypothesis]] = {}
    replays = None if graphs is None else Replays(graphs, turn, cache)
    look_every = 1 if replays is None else CHECK_DONE_EVERY
    drop_at = DROP_DONE_AT if replays is None else DROP_DONE_REPLAY_AT
    length, look = 0, 0  # tokens written; the number at which the next look is due
    while length < last:
        if replays is None:
            length += 1
            turn(length in batch.limits)
        else:
            length += replays(length)
        if length < min(look, last):
            continue
        look = length + look_every
        going, wrong = torch.stack([(~beam.done).sum(), beam.wrong[0]]).tolist()
        if wrong:
            raise FloatingPointError(
                f"beam_search: the model gives NaN for a probability at token {wrong}; look at "
                "its weights, or search in float32"
            )
        if going == 0:
            break
        done = len(beam.done) - going
        if done * drop_at >= len(beam.done):
            finished |= beam.select(beam.done.nonzero()[:, 0]).hypotheses(n_best)
            stay = (~beam.done).nonzero()[:, 0]
            beam = beam.select(stay)
            cache.select(stay)
            ids = beam.last().flatten()
            if replays is not None:
                replays.moved = True
    finished |= beam.hypotheses(n_best)
    for index, hypotheses in finished.items():
        if not hypotheses:
            raise FloatingPointError(
                f"beam_search: the model gives <eos> no probability, so no translation of sentence "
                f"{index} ends within its limit; look at the bias of its label"
            )
    return finished


class Replays:
    """Tokens as a CUDA graph of two; wherever tensors have moved, a token is launched first."""

    def __init__(
        self,
        graphs: GraphCapture,
        turn: Callable[[], None],
        cache: KeyValueCache,
    ) -> None:
        self.graphs, self.turn, self.cache = graphs, turn, cache
        self.graph: Callable[[], None] | None = None
        self.moved = True

    def __call__(self, length: int) -> int:
        """Write the tokens after the first ``length``; returns how many."""
        room, needed = self.cache.room, length + STEPS_PER_GRAPH
        if needed > room:
            self.cache.reserve(max(needed, 2 * room))
        if needed > room or self.moved:
            self.graphs.warm_up(self.turn)
            self.moved, self.graph = False, None
            return 1
        self.graph = self.graph or self.graphs.capture(self.turns)
        self.graph()
        return STEPS_PER_GRAPH

    def turns(self) -> None:
        for _ in range(STEPS_PER_GRAPH):
            self.turn()


# -- open and finished hypotheses -----------------------------------------------------------------


@dataclass
class Beam:
    """b sentences with K hypotheses each, of at most L tokens.

    Nothing is read back from the device and every tensor is changed in place, so that a step can be
    replayed as a CUDA graph.
    """

    source_index: Tensor  # (b,) of a sentence among the sources
    limit: Tensor  # (b,) tokens it may have
    limit_penalty: Tensor  # (b,) the penalty of that many
    alive: Tensor  # (b, K) log p of what still grows, -inf where nothing does
    written: Tensor  # (b, K, L) its tokens
    score: Tensor  # (b, K) of what has ended, the best first, -inf where nothing has
    log_prob: Tensor  # (b, K)
    length: Tensor  # (b, K)
    ended: Tensor  # (b, K, L) its tokens
    done: Tensor  # (b,) whether nothing that still grows can enter the best

    index: Tensor  # (1,) of the token that is being written, from 0
    penalties: Tensor  # (L + 2,) by length: ((5 + length) / 6)^alpha
    wrong: Tensor  # (1,) the first token, from 1, at which a probability was NaN; 0 for none

    @classmethod
    def fresh(
        cls, batch: Batch, beam_size: int, eos: int, alpha: float, room: int, dtype: torch.dtype
    ) -> "Beam":
        b, device = len(batch.indices), batch.source.device
        lengths = torch.arange(room + 2, dtype=torch.float64)
        penalties = (((5 + lengths) / 6) ** alpha).to(device, dtype)
        limit = torch.tensor(batch.limits, device=device)
        empty = torch.full((b, beam_size), -torch.inf, dtype=dtype, device=device)
        alive = empty.clone()
        alive[:, 0] = 0.0  # all places begin alike, so only one of them may go on
        tokens = torch.full((b, beam_size, room), eos, device=device)
        return cls(
            source_index=torch.tensor(batch.indices, device=device),
            limit=limit,
            limit_penalty=penalties[limit],
            alive=alive,
            written=tokens,
            score=empty,
            log_prob=empty.clone(),
            length=torch.zeros_like(alive, dtype=torch.int64),
            ended=tokens.clone(),
            done=torch.zeros(b, dtype=torch.bool, device=device),
            index=torch.zeros(1, dtype=torch.int64, device=device),
            penalties=penalties,
            wrong=torch.zeros(1, dtype=torch.int64, device=device),
        )

    def advance(self, log_p: Tensor, eos: int) -> Tensor:
        """Add a token from log p (b, K, V); returns the parent of each hypothesis, (b, K)."""
        K, V = log_p.shape[1:]
        log_prob, index = (self.alive[..., None] + log_p).flatten(1).topk(K)  # sorted, (b, K)
        parent = index // V
        token = index - parent * V
        left = K - (self.score != -torch.inf).sum(1, keepdim=True)  # places that have not ended
        real = (torch.arange(K, device=token.device) < left) & (log_prob != -torch.inf)
        ends = real & (token == eos)
        self.written.copy_(_take(self.written, parent))
        written = torch.where(real, token, eos)
        self.written.index_copy_(2, self.index, written[..., None])
        self.alive.copy_(log_prob.masked_fill(~real | ends, -torch.inf))

        score = (log_prob / self._penalty()).masked_fill(~ends, -torch.inf)
        score, order = torch.cat([self.score, score], 1).topk(K)
        self.score.copy_(score)
        self.log_prob.copy_(torch.cat([self.log_prob, log_prob], 1).gather(1, order))
        lengths = torch.cat([self.length, (self.index + 1).expand_as(token)], 1)
        self.length.copy_(lengths.gather(1, order))
        self.ended.copy_(_take(torch.cat([self.ended, self.written], 1), order))
        return parent

    def mark_done(self, n_best: int) -> None:
        """Find whose best is known, and go on to the next token.

        log p only falls, so what grows scores at most as if it were to end now or at the limit
        with the log p it has: the penalty is largest at one of the two.
        """
        wrong = (self.alive.isnan() | self.score.isnan()).any()
        self.index += 1
        self.wrong.copy_(torch.where(wrong & (self.wrong == 0), self.index, self.wrong))
        best = self.alive.amax(1)
        bound = torch.maximum(best / self._penalty(), best / self.limit_penalty)
        self.done.copy_((best == -torch.inf) | (self.score[:, n_best - 1] > bound))

    def _penalty(self) -> Tensor:
        """Of a translation that ends with this token, (1,)."""
        return self.penalties.index_select(0, self.index + 1)

    def last(self) -> Tensor:
        """The token written last, (b, K)."""
        return self.written.index_select(2, self.index - 1)[..., 0]

    def select(self, sentences: Tensor) -> "Beam":
        """The beam of some sentences; it goes on with the same token."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        shared = {name: tensors.pop(name) for name in ("index", "penalties", "wrong")}
        return Beam(**{name: t[sentences] for name, t in tensors.items()}, **shared)

    def hypotheses(self, n_best: int) -> dict[int, list[Hypothesis]]:
        """By index among the sources."""
        columns = (self.ended, self.length, self.log_prob, self.score)
        rows = zip(*(column[:, :n_best].tolist() for column in columns), strict=True)
        return {
            index: [
                Hypothesis(tuple(ids[: length - 1]), log_prob, score)
                for ids, length, log_prob, score in zip(*row, strict=True)
                if score != -torch.inf
            ]
            for index, row in zip(self.source_index.tolist(), rows, strict=True)
        }


def _take(tokens: Tensor, order: Tensor) -> Tensor:
    """Rows of (b, n, L) by (b, K) -> (b, K, L)."""
    return tokens.gather(1, order[..., None].expand(-1, -1, tokens.shape[2]))
