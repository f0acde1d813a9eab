"""Models side by side on rare and frequent words of the same text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drill.analysis.frequency import EDGES, Band, BandChange, compare_bands, frequency_bands
from drill.build import Run
from drill.data import EOS, UNK, columns
from drill.evaluation import token_losses
from drill.generation import generate

NO_WORDS = (EOS, UNK)

BATCH = 20
"""Columns of the test text: one would lose no context and take ten times as long."""


class Compared:
    """Collects, run by run, the loss of every test token.

    ``<eos>`` and ``<unk>`` are left out: neither is a word, and how often they occur says nothing
    about words of that frequency.
    """

    def __init__(self, edges: Sequence[int] = EDGES, prompts: Sequence[str] = ("",)) -> None:
        self.edges = edges
        self.prompts = prompts
        self.bands: dict[str, list[Band]] = {}
        self.losses: dict[str, Tensor] = {}
        self.samples: dict[str, list[str]] = {}
        self._runs: dict[str, Run] = {}

    @property
    def left_out(self) -> list[str]:
        """What no band holds, of the tokens that the runs know."""
        return [
            word for word in NO_WORDS if any(word in run.vocabulary for run in self._runs.values())
        ]

    def add(self, name: str, run: Run, bands: bool = True, samples: int = 0) -> None:
        if bands:
            self.losses[name] = token_losses(run.model, run.ids.test, batch_size=BATCH)
            self.bands[name] = frequency_bands(
                self.losses[name],
                self._targets(run),
                run.vocabulary.counts,
                edges=self.edges,
                exclude=self._excluded(run),
            )
            self._runs[name] = run
        if samples:
            self.samples[name] = [
                self._sample(run, self.prompts[i % len(self.prompts)], seed=i)
                for i in range(samples)
            ]

    def changes(self) -> dict[str, list[BandChange]]:
        """Every run against the first one that has read the same words, where that is another."""
        found = {}
        for name, run in self._runs.items():
            base = next(other for other in self._runs if self._same_text(self._runs[other], run))
            if base != name:
                found[name] = compare_bands(
                    self.losses[base],
                    self.losses[name],
                    self._targets(run),
                    run.vocabulary.counts,
                    edges=self.edges,
                    exclude=self._excluded(run),
                )
        return found

    @classmethod
    def _same_text(cls, first: Run, second: Run) -> bool:
        same_words = first.vocabulary == second.vocabulary
        return same_words and torch.equal(cls._targets(first), cls._targets(second))

    @staticmethod
    def _excluded(run: Run) -> list[int]:
        return [run.vocabulary.ids[word] for word in NO_WORDS if word in run.vocabulary]

    @staticmethod
    def _targets(run: Run) -> Tensor:
        """The words that ``token_losses`` predicts, in its order: column after column."""
        return columns(run.ids.test, BATCH)[1:].t().flatten()

    @staticmethod
    def _sample(run: Run, prompt: str, seed: int) -> str:
        """The line that begins with ``prompt``."""
        pieces = generate(
            run.model, run.vocabulary, prompt=prompt, tokens=40, temperature=0.8, seed=seed
        )
        text = prompt + "".join(pieces)
        return text.split("\n")[0] if prompt else text
