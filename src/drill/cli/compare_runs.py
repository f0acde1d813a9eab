"""Models side by side on rare and frequent words of the same text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drill.data import CORPORA, EOS, UNK, Vocabulary, columns
from drill.language_modeling.generation import generate
from drill.language_modeling.perplexity import token_losses
from drill.language_modeling.run import Run
from drill.report.analysis.frequency_bands import EDGES, compare_bands, frequency_bands
from drill.report.tables.band_tables import TextBands

BATCH = 20
"""Columns of the test text: one would lose no context and take ten times as long."""


class Compared:
    """Collects, run by run, the loss of every test token, and samples."""

    def __init__(self, edges: Sequence[int] = EDGES, prompts: Sequence[str] = ("",)) -> None:
        self.edges = edges
        self.prompts = prompts
        self.samples: dict[str, list[str]] = {}
        self._texts: list[_Text] = []

    def add(self, name: str, run: Run, bands: bool = True, samples: int = 0) -> None:
        if bands:
            self._text_of(run).losses[name] = token_losses(
                run.model, run.ids.test, batch_size=_columns(run)
            )
        if samples:
            self.samples[name] = [
                self._sample(run, self.prompts[i % len(self.prompts)], seed=i)
                for i in range(samples)
            ]

    def texts(self) -> list[TextBands]:
        """The bands of every text, and each run against the first one that has read it."""
        return [text.bands(self.edges) for text in self._texts]

    def _text_of(self, run: Run) -> "_Text":
        """That of a run before it which has read the same words, or a new one."""
        read = _Text(run.vocabulary, _targets(run), no_words(run))
        for text in self._texts:
            if text.same_words(read):
                return text
        self._texts.append(read)
        return read

    @staticmethod
    def _sample(run: Run, prompt: str, seed: int) -> str:
        """The line that begins with ``prompt``."""
        pieces = generate(
            run.model, run.vocabulary, prompt=prompt, tokens=40, temperature=0.8, seed=seed
        )
        text = prompt + "".join(pieces)
        return text.split("\n")[0] if prompt else text


def no_words(run: Run) -> tuple[str, ...]:
    """Words that are in no band: their counts say nothing about words of that frequency.

    That is ``<eos>``, and ``<unk>`` where our vocabulary has put it for all words that are rare or
    new. A closed corpus brings it as one of its words; there it stays, as in the paper's figure.
    """
    open_corpus = run.settings.data["corpus"] not in CORPORA
    return (EOS, UNK) if open_corpus and UNK in run.vocabulary else (EOS,)


@dataclass
class _Text:
    """A text as runs of one vocabulary have read it.

    targets  (N,) the words that ``token_losses`` predicts, in its order: column after column
    losses   (N,) of each run
    """

    vocabulary: Vocabulary
    targets: Tensor
    left_out: tuple[str, ...]
    losses: dict[str, Tensor] = field(default_factory=dict)

    def same_words(self, other: "_Text") -> bool:
        return (
            self.vocabulary == other.vocabulary
            and self.left_out == other.left_out
            and torch.equal(self.targets, other.targets)
        )

    def bands(self, edges: Sequence[int]) -> TextBands:
        base, *others = self.losses
        counts, exclude = self.vocabulary.counts, [self.vocabulary.ids[w] for w in self.left_out]
        return TextBands(
            {
                name: frequency_bands(each, self.targets, counts, edges=edges, exclude=exclude)
                for name, each in self.losses.items()
            },
            {
                name: compare_bands(
                    self.losses[base],
                    self.losses[name],
                    self.targets,
                    counts,
                    edges=edges,
                    exclude=exclude,
                )
                for name in others
            },
            self.left_out,
        )


def _columns(run: Run) -> int:
    """The same for all runs that have read a text, however short it is."""
    return max(1, min(BATCH, len(run.ids.test) // 2))


def _targets(run: Run) -> Tensor:
    return columns(run.ids.test, _columns(run))[1:].t().flatten()
