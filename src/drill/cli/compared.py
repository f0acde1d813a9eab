"""Models side by side on rare and frequent words of the same text."""

from collections.abc import Sequence

from torch import Tensor

from drill.analysis.frequency import EDGES, Band, BandChange, compare_bands, frequency_bands
from drill.build import Run
from drill.data import EOS, columns
from drill.evaluation import token_losses
from drill.generation import generate

BATCH = 20
"""Columns of the test text: one would lose no context and take ten times as long."""


class Compared:
    """Collects, run by run, the loss of every test token; ``<eos>`` is no word and left out."""

    def __init__(self, edges: Sequence[int] = EDGES, prompts: Sequence[str] = ("",)) -> None:
        self.edges = edges
        self.left_out = (EOS,)
        self.prompts = prompts
        self.bands: dict[str, list[Band]] = {}
        self.losses: dict[str, Tensor] = {}
        self.samples: dict[str, list[str]] = {}
        self._runs: dict[str, Run] = {}

    def add(self, name: str, run: Run, bands: bool = True, samples: int = 0) -> None:
        if bands:
            self.losses[name] = token_losses(run.model, run.ids.test, batch_size=BATCH)
            self.bands[name] = frequency_bands(
                self.losses[name],
                self._targets(run),
                run.vocabulary.counts,
                edges=self.edges,
                exclude=[run.vocabulary.ids[word] for word in self.left_out],
            )
            self._runs[name] = run
        if samples:
            self.samples[name] = [
                self._sample(run, self.prompts[i % len(self.prompts)], seed=i)
                for i in range(samples)
            ]

    def changes(self) -> dict[str, list[BandChange]]:
        """Every run against the first one, where both have read the same words."""
        names = list(self._runs)
        if len(names) < 2:
            return {}
        first = self._runs[names[0]]
        targets, counts = self._targets(first), first.vocabulary.counts
        return {
            name: compare_bands(
                self.losses[names[0]],
                self.losses[name],
                targets,
                counts,
                edges=self.edges,
                exclude=[first.vocabulary.ids[word] for word in self.left_out],
            )
            for name in names[1:]
            if self._runs[name].vocabulary == first.vocabulary
            and len(self.losses[name]) == len(self.losses[names[0]])
        }

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
