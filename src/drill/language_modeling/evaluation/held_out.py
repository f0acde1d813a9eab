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
    predictions,
)
from drill.language_modeling.new_words import extend_model
from drill.language_modeling.run import LanguageModelRun


@dataclass(frozen=True)
class WordScores:
    """How well new words are predicted, at their occurrences in a text."""

    tokens: int  # occurrences
    loss: float  # mean -log p of the word that occurs, in nats
    among: float  # the same given that a new word occurs; a guess has log N of N words
    rank: float  # its mean rank among all labels, from 1; equal scores share the mean of theirs
    median_rank: float
    mass: float  # mean probability of all new words together


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of held-out words in a text."""

    types: int  # how many of them occur
    labels: WordScores  # as labels of the model
    backoff: WordScores  # by the model without them: each has an equal share of <unk>
    mass_elsewhere: float  # mean probability of all of them where another word occurs
    text: Perplexity  # of the whole text with the new labels

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
    """Score the words that ``added`` has and ``run`` has not, in a text as ``added`` reads it."""
    bptt = run.settings.training["bptt"]
    known, unknown = len(run.vocabulary), run.vocabulary.ids[UNK]
    data = check_and_batchify("score_held_out", added.model, ids, batch_size)
    new = (data[1:] >= known).flatten()  # (tokens,)
    if not new.any():
        raise DataError("no held-out word occurs in the text; score another split")
    share = math.log(len(added.vocabulary) - known)

    as_labels: list[Numbers] = []
    as_unknown: list[Numbers] = []
    nll, elsewhere, done = 0.0, 0.0, 0
    for log_probs, targets in predictions(added.model, data, bptt, autocast):
        where = targets >= known
        nll -= log_probs.gather(1, targets[:, None]).sum(dtype=torch.float64).item()
        mass = log_probs[:, known:].logsumexp(1)
        elsewhere += mass[~where].exp().sum(dtype=torch.float64).item()
        as_labels += _scored(log_probs[where], targets[where], mass[where])
        done += len(targets)
        if progress is not None:
            progress(done, 2 * len(new))
    read = data.where(data < known, unknown)
    for log_probs, targets in predictions(run.model, read, bptt, autocast):
        chosen = log_probs[new[done - len(new) :][: len(targets)]]
        unk = chosen[:, unknown]
        known_words = chosen.index_fill(1, torch.tensor([unknown], device=chosen.device), -math.inf)
        # Any new word stands for the one that occurs: all have the same probability.
        new_words = (unk - share)[:, None].expand(-1, len(added.vocabulary) - known)
        target = torch.full_like(unk, known, dtype=torch.int64)
        as_unknown += _scored(torch.cat([known_words, new_words], 1), target, unk)
        done += len(targets)
        if progress is not None:
            progress(done, 2 * len(new))
    return HeldOutScores(
        types=int(data[1:].flatten()[new].unique().numel()),
        labels=_word_scores(as_labels),
        backoff=_word_scores(as_unknown),
        mass_elsewhere=elsewhere / max(1, int((~new).sum())),
        text=Perplexity(nll, len(new), data.shape[1]),
    )


def held_out_run(run: LanguageModelRun) -> LanguageModelRun:
    """The run with its held-out words as labels."""
    words = run.vocabulary.held_out
    if not words:
        raise SettingsError(
            "has no held-out words",
            key=str(run.folder.path),
            hint="train with data.held_out, such as 100",
        )
    model, vocabulary = extend_model(
        run.model, run.vocabulary, run.settings.labels, words, run.vocabulary.descriptions
    )
    return replace(run, model=model, vocabulary=vocabulary)


Numbers = tuple[float, float, float, float]  # loss, loss among new words, rank, mass


def _scored(log_probs: Tensor, targets: Tensor, log_masses: Tensor) -> Iterator[Numbers]:
    log_p = log_probs.gather(1, targets[:, None])  # (M, 1)
    above, equal = (log_probs > log_p).sum(1), (log_probs == log_p).sum(1)
    columns = (-log_p[:, 0], log_masses - log_p[:, 0], above + (equal + 1) / 2, log_masses.exp())
    return zip(*(column.tolist() for column in columns), strict=True)


def _word_scores(occurrences: list[Numbers]) -> WordScores:
    losses, among, ranks, masses = zip(*occurrences, strict=True)
    middle = mean(ranks), median(ranks)
    return WordScores(len(ranks), mean(losses), mean(among), *middle, mean(masses))
