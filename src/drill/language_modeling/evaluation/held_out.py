"""Scores of words that training has not seen: ``data.held_out``.

The words are removed from training, where they are ``<unk>``, and become labels afterwards.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import mean, median

import torch
from torch import Tensor

from drill.data import UNK
from drill.errors import DataError, SettingsError
from drill.language_modeling.evaluation.perplexity import (
    Perplexity,
    Text,
    check_and_batchify,
    hidden_states,
)
from drill.language_modeling.new_words import extend_model
from drill.language_modeling.run import LanguageModelRun
from drill.models.language_model import LanguageModel
from drill.training.precision import autocast_to, evaluating


@dataclass(frozen=True)
class WordScores:
    """How well new words are predicted, at their occurrences in a text.

    Attributes:
        tokens: how many occurrences there are.
        loss: mean -log p of the word that occurs, in nats.
        among: mean -log p of that word given that a new one occurs; a guess has log N of N words.
        rank: its mean rank among all labels, from 1; equal scores share the mean of their ranks.
        median_rank: the same by the median.
        mass: mean probability of all new words together.
    """

    tokens: int
    loss: float
    among: float
    rank: float
    median_rank: float
    mass: float


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of held-out words in a text.

    Attributes:
        types: how many of them occur.
        labels: as labels of the model.
        backoff: by the model without them: each has an equal share of the probability of <unk>.
        mass_elsewhere: mean probability of all of them where another word occurs.
        text: the perplexity of the whole text with the new labels.
    """

    types: int
    labels: WordScores
    backoff: WordScores
    mass_elsewhere: float
    text: Perplexity

    @property
    def mixed(self) -> float:
        """Mean -log p if <unk> has its probability shared out as the labels' scores are."""
        return self.backoff.loss - self.backoff.among + self.labels.among


def score_held_out(
    run: LanguageModelRun,
    added: LanguageModelRun,
    ids: Text,
    *,
    batch_size: int,
    autocast: torch.dtype | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HeldOutScores:
    """Score the words that ``added`` has and ``run`` has not.

    Args:
        ids: the text as ``added`` reads it, (N,).
        batch_size: columns that the text is cut into.
        progress: called with the tokens done, and how many there are.
    """
    options = {"bptt": run.settings.training["bptt"], "autocast": autocast}
    known, unknown = len(run.vocabulary), run.vocabulary.ids[UNK]
    data = check_and_batchify("score_held_out", added.model, ids, batch_size)
    new = data[1:] >= known  # (rows - 1, B)
    if not new.any():
        raise DataError("no held-out word occurs in the text; score another split")
    share = math.log(len(added.vocabulary) - known)

    as_labels, as_unknown = _Collected(), _Collected()
    nll, elsewhere, done = 0.0, 0.0, 0
    for log_probs, targets, where in _predictions(added.model, data, new, **options):
        nll -= log_probs.gather(1, targets[:, None]).sum(dtype=torch.float64).item()
        mass = log_probs[:, known:].logsumexp(1)
        elsewhere += mass[~where].exp().sum(dtype=torch.float64).item()
        as_labels.add(log_probs[where], targets[where], mass[where])
        done += len(targets)
        if progress is not None:
            progress(done, 2 * new.numel())
    read = data.where(data < known, unknown)
    for log_probs, _, where in _predictions(run.model, read, new, **options):
        chosen = log_probs[where]
        own = chosen[:, unknown]
        others = chosen.index_fill(1, torch.tensor([unknown], device=chosen.device), -math.inf)
        # Any new word stands for the one that occurs: all have the same probability.
        shared = (own - share)[:, None].expand(-1, len(added.vocabulary) - known)
        targets = torch.full_like(own, known, dtype=torch.int64)
        as_unknown.add(torch.cat([others, shared], 1), targets, own)
        done += len(where)
        if progress is not None:
            progress(done, 2 * new.numel())
    return HeldOutScores(
        types=int(data[1:][new].unique().numel()),
        labels=as_labels.scores(),
        backoff=as_unknown.scores(),
        mass_elsewhere=elsewhere / max(1, int((~new).sum())),
        text=Perplexity(nll, new.numel(), data.shape[1]),
    )


def held_out_run(run: LanguageModelRun) -> LanguageModelRun:
    """The run with its held-out words as labels."""
    words = run.vocabulary.held_out
    if not words:
        raise SettingsError(
            "has no held-out words", key=str(run.folder.path), hint="train with data.held_out=500"
        )
    model, vocabulary = extend_model(
        run.model, run.vocabulary, run.settings.labels, words, run.vocabulary.descriptions
    )
    return replace(run, model=model, vocabulary=vocabulary)


@torch.no_grad()
def _predictions(
    model: LanguageModel, data: Tensor, new: Tensor, bptt: int, autocast: torch.dtype | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """log p (M, V) of M tokens at a time, these tokens, and which of them are new words."""
    done = 0
    with evaluating(model), autocast_to(data.device, autocast), model.layer.cached_labels():
        for hidden in hidden_states(model, data, bptt):
            rows = slice(done, done + len(hidden))
            done += len(hidden)
            log_probs = model.layer.log_probs(hidden.flatten(0, 1))
            yield log_probs, data[1:][rows].flatten(), new[rows].flatten()


class _Collected:
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.among: list[float] = []
        self.ranks: list[float] = []
        self.masses: list[float] = []

    def add(self, log_probs: Tensor, targets: Tensor, log_masses: Tensor) -> None:
        own = log_probs.gather(1, targets[:, None])  # (M, 1)
        above, equal = (log_probs > own).sum(1), (log_probs == own).sum(1)
        self.losses += (-own[:, 0]).tolist()
        self.among += (log_masses - own[:, 0]).tolist()
        self.ranks += (above + (equal + 1) / 2).tolist()
        self.masses += log_masses.exp().tolist()

    def scores(self) -> WordScores:
        ranks = self.ranks
        losses, among, masses = mean(self.losses), mean(self.among), mean(self.masses)
        return WordScores(len(ranks), losses, among, mean(ranks), median(ranks), masses)
