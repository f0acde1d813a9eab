"""The state of a beam search: open and finished hypotheses.

Nothing is read back from the device and every tensor is changed in place, so that a step can be
replayed as a CUDA graph.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from drill.translation.search.decoding import Batch, Hypothesis


@dataclass
class Beam:
    """b sentences with K hypotheses each, of at most L tokens."""

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
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        shared = {name: own.pop(name) for name in ("index", "penalties", "wrong")}
        return Beam(**{name: each[sentences] for name, each in own.items()}, **shared)

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
