"""What all searches share: batches of sources, and one decoder step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from drill.data import DataError
from drill.models.transformer.transformer import Memory, Transformer
from drill.models.translator import Translator
from drill.translation.search.output_head import FoldedHead, Head

Sources = Tensor | Sequence[Sequence[int]]
"""Sentences as ids: (B, S) padded on the right, or a list for each."""

Progress = Callable[[int], None]
"""Called before every batch with the sentences that are found; an exception ends the search."""

SCORES_PER_TOKEN = 1 << 14
"""Log-probabilities, hypotheses x labels, that a step may hold for each of ``batch_tokens``.

Of 32,000 labels and a beam of 4 this many are 8 tokens: only shorter sentences feel it. A beam
takes 3 to 4 times the memory of these numbers, sampling 10 times."""


@dataclass(frozen=True)
class Decoding:
    """Options of every search.

    Attributes:
        bos, eos: ids that a sentence begins and ends with.
        max_ratio, max_extra: a translation has at most max_ratio * source tokens + max_extra
            tokens, <eos> included; at this limit it is forced to end.
        forbidden: ids that are never generated, besides bos and padding.
        batch_tokens: source tokens of a batch, padding included. Batches of short sentences are
            smaller if there are many labels or hypotheses, see ``SCORES_PER_TOKEN``.
        cache: keep keys and values between steps; False recomputes every prefix, for tests.
        autocast: for example torch.bfloat16; by default the model's own precision.
        graph: replay a CUDA graph, which is several times faster where the host is the
            bottleneck; by default on CUDA if the output layer folds. On a CPU True runs the same
            steps without a graph, for tests.
    """

    bos: int
    eos: int
    max_ratio: float = 1.0
    max_extra: int = 50
    forbidden: tuple[int, ...] = ()
    batch_tokens: int = 4096
    cache: bool = True
    autocast: torch.dtype | None = None
    graph: bool | None = None

    def __post_init__(self) -> None:
        if self.graph and not self.cache:
            raise ValueError(
                "Decoding: graph=True needs cache=True; without a cache every step has other shapes"
            )
        if not (0.0 <= self.max_ratio < math.inf and self.max_extra >= 0):
            raise ValueError(
                "Decoding: max_ratio and max_extra are finite numbers of at least 0, not "
                f"{self.max_ratio} and {self.max_extra}"
            )
        if self.batch_tokens < 1:
            raise ValueError(f"Decoding: batch_tokens is at least 1, not {self.batch_tokens}")

    def limit(self, tokens: int) -> int:
        """The longest translation of a source of so many tokens; there is room for an <eos>."""
        return max(1, math.floor(self.max_ratio * tokens + self.max_extra))

    def replays(self, device: torch.device, head: Head) -> bool:
        """Whether a beam over ``head`` is searched by replays."""
        if self.graph and not isinstance(head, FoldedHead):
            raise ValueError(
                "Decoding: graph=True is for output layers that fold, because a graph may read "
                "nothing back; leave graph out for this one"
            )
        if self.graph is not None:
            return self.graph
        return device.type == "cuda" and self.cache and isinstance(head, FoldedHead)

    def never(self, model: Translator) -> list[int]:
        """Every id that no translation holds; ValueError where the ids fit neither each other nor
        the model."""
        labels = model.layer.vocabulary_size
        never = {self.bos, model.transformer.pad, *self.forbidden}
        for name, ids in (("bos", {self.bos}), ("eos", {self.eos}), ("forbidden", never)):
            for each in ids:
                if not 0 <= each < labels:
                    raise ValueError(
                        f"Decoding: {name} {each} is none of the model's {labels} labels"
                    )
        if self.eos in never:
            raise ValueError(
                f"Decoding: eos {self.eos} is bos, padding or forbidden, so no sentence could end"
            )
        return sorted(never)


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    ids       without <bos> and <eos>
    log_prob  log p(ids, <eos> | source), a sum over tokens
    score     what it was ranked by
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float


# -- batches --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Sentences of about one length.

    places  (B,) where they stand among the sources
    source  (B, S) on the model's device
    limits  tokens that each translation may have
    """

    places: tuple[int, ...]
    source: Tensor
    limits: tuple[int, ...]


def batches(
    name: str, model: Translator, sources: Sources, decoding: Decoding, hypotheses: int
) -> list[Batch]:
    """Batches of sources, the longest first, so that running out of memory shows at once.

    A batch has at most ``batch_tokens`` source tokens, and a step at most ``batch_tokens`` *
    SCORES_PER_TOKEN log-probabilities over all ``hypotheses`` of each sentence.
    """
    pad, words = model.transformer.pad, model.transformer.source_embedding.num_embeddings
    device = model.transformer.source_embedding.weight.device
    if isinstance(sources, Tensor):
        if sources.dim() != 2:
            raise DataError(
                f"{name}: sources are ids of shape (B, S), not {tuple(sources.shape)}; a single "
                "sentence has one row"
            )
        sources = [row[row != pad].tolist() for row in sources.cpu()]
    for i, row in enumerate(sources):
        for each in (min(row, default=0), max(row, default=0)):
            if not 0 <= each < words:
                raise DataError(
                    f"{name}: id {each} of sentence {i} is none of the model's {words} source "
                    "words; encode the text with the vocabulary the model was trained with"
                )
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    scores = hypotheses * model.layer.vocabulary_size  # of a sentence, at every step
    most = decoding.batch_tokens * SCORES_PER_TOKEN // scores
    made = []
    while order:
        width = max(1, len(sources[order[0]]))
        fit = max(1, min(decoding.batch_tokens // width, most))
        places, order = tuple(order[:fit]), order[fit:]
        rows = [[*sources[i], *[pad] * (width - len(sources[i]))] for i in places]
        limits = tuple(decoding.limit(len(sources[i])) for i in places)
        made.append(Batch(places, torch.tensor(rows, device=device), limits))
    return made


# -- steps ----------------------------------------------------------------------------------------


class Steps(Protocol):
    """K hypotheses of each of B sentences; row b*K + k is hypothesis k of sentence b."""

    def step(self, ids: Tensor) -> Tensor:
        """The next id of every row (B*K,) -> hidden (B*K, d)."""

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row ``rows[i]`` was, (B*K,)."""

    def select(self, sentences: Tensor) -> None:
        """Only these sentences go on, (b,)."""

    def make_room(self, steps: int) -> bool:
        """Whether something has moved so that so many steps fit."""


class CachedSteps:
    """Decoding with a key-value cache: a step costs as much as one token."""

    def __init__(
        self, transformer: Transformer, memory: Memory, hypotheses: int, room: int | None = None
    ) -> None:
        self.transformer = transformer
        self.cache = transformer.start(memory, hypotheses, room)
        self.reorder = self.cache.reorder
        self.select = self.cache.select

    def step(self, ids: Tensor) -> Tensor:
        return self.transformer.step(ids, self.cache)

    def make_room(self, steps: int) -> bool:
        if not self.cache.fixed or steps <= self.cache.room:
            return False
        self.cache.make_room(max(steps, 2 * self.cache.room))
        return True


class WholeSteps:
    """Decoding without a cache: the reference for ``CachedSteps``."""

    def __init__(self, transformer: Transformer, memory: Memory, hypotheses: int) -> None:
        self.transformer = transformer
        self.hypotheses = hypotheses
        self.memory = memory.repeat(hypotheses)
        self.prefixes = memory.mask.new_empty((len(self.memory.mask), 0), dtype=torch.int64)

    def step(self, ids: Tensor) -> Tensor:
        self.prefixes = torch.cat([self.prefixes, ids[:, None]], dim=1)
        return self.transformer.decode(self.prefixes, self.memory)[:, -1]

    def make_room(self, steps: int) -> bool:
        return False

    def reorder(self, rows: Tensor) -> None:
        self.prefixes = self.prefixes[rows]

    def select(self, sentences: Tensor) -> None:
        k = torch.arange(self.hypotheses, device=sentences.device)
        rows = (sentences[:, None] * self.hypotheses + k).flatten()
        self.memory = Memory(self.memory.states[rows], self.memory.mask[rows])
        self.reorder(rows)


def begin(
    model: Translator, source: Tensor, hypotheses: int, cache: bool, room: int | None = None
) -> Steps:
    """``room``: for so many steps at once, in memory that does not move."""
    memory = model.transformer.encode(source)
    if not cache:
        return WholeSteps(model.transformer, memory, hypotheses)
    return CachedSteps(model.transformer, memory, hypotheses, room)


class Writable:
    """Masks labels: some are never generated, and at the limit only <eos> is."""

    def __init__(self, model: Translator, decoding: Decoding, device: torch.device) -> None:
        self.never = torch.tensor(decoding.never(model), device=device)
        labels = torch.arange(model.layer.vocabulary_size, device=device)
        self.goes_on = labels != decoding.eos  # (V,)

    def __call__(self, log_p: Tensor, at_limit: Tensor | None) -> Tensor:
        """log p (B, K, V), -inf where masked; ``at_limit`` (B,) marks rows that must end.

        The others are not renormalised: a score is a sum of the model's log p.
        """
        log_p = log_p.index_fill(-1, self.never, -torch.inf)
        if at_limit is None:
            return log_p
        return log_p.masked_fill(at_limit[:, None, None] & self.goes_on, -torch.inf)
