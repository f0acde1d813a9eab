"""Compare trained models: loss or accuracy on rare and frequent words, calibration, labels."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drill.data import SubwordVocabulary, Vocabulary, columns
from drill.data.parallel.dataset import target_counts
from drill.data.parallel.parallel_text import read_lines
from drill.data.parallel.word_tokenizer import LANGUAGES
from drill.errors import RunFolderError, SettingsError
from drill.language_modeling.evaluation.calibration import Calibration
from drill.language_modeling.evaluation.frequency_bands import (
    compare_bands,
    default_edges,
    excluded_words,
    frequency_bands,
)
from drill.language_modeling.generation import generate
from drill.language_modeling.run import LanguageModelRun
from drill.report.analysis.label_vectors import (
    Neighbours,
    NormBand,
    label_norms,
    label_vectors,
    nearest_labels,
    typical_labels,
)
from drill.report.analysis.word_accuracy import AccuracyBand, subword_bands, word_bands
from drill.report.tables.band_tables import TextBands
from drill.training.run.folder import RunFolder
from drill.training.run.weights import settings_of
from drill.translation.evaluate import DecodingInfo, read_decoding_info
from drill.translation.run import TranslationRun

Say = Callable[[str], None]

# -- language models -------------------------------------------------------------------------------

BATCH = 20
"""Batch size of the test text: 1 would lose no context and take ten times as long."""

NEAREST = 5
"""Labels that are listed next to a label."""


class Compared:
    """Collects the test losses of runs, their calibration and labels, and generated samples.

    Args:
        edges: training counts at which bands begin; by the vocabulary by default.
        words: whose nearest labels are listed; one of each band by default.
    """

    def __init__(
        self,
        edges: Sequence[int] | None = None,
        prompts: Sequence[str] = ("",),
        words: Sequence[str] = (),
    ) -> None:
        self.edges = edges
        self.prompts = prompts
        self.words = words
        self.without_labels: list[str] = []  # runs whose layer has no label matrix
        self.samples: dict[str, list[str]] = {}
        self._texts: list[_Text] = []

    def add(self, name: str, run: LanguageModelRun, bands: bool = True, samples: int = 0) -> None:
        if bands:
            size = max(1, min(BATCH, len(run.ids.test) // 2))  # the same for all runs on a text
            targets = columns(run.ids.test, size)[1:].t().flatten()
            left_out = excluded_words(run.vocabulary, run.settings.data["corpus"])
            text = self._text(run.vocabulary, targets, left_out)
            self._add_labels(name, run, text)  # first: an unknown word is an error
            text.losses[name] = run.token_losses(run.ids.test, batch_size=size)
            text.calibration[name] = run.calibration(run.ids.test, batch_size=size)
        if samples:
            self.samples[name] = [
                self._sample(run, self.prompts[i % len(self.prompts)], seed=i)
                for i in range(samples)
            ]

    def texts(self) -> list[TextBands]:
        """The bands of every text, and each run against the first one that has read it."""
        return [text.bands(self.edges) for text in self._texts]

    def _text(self, vocabulary: Vocabulary, targets: Tensor, left_out: tuple[str, ...]) -> "_Text":
        """The text of an earlier run with the same words, or a new one."""
        for text in self._texts:
            same = text.vocabulary == vocabulary and text.left_out == left_out
            if same and torch.equal(text.targets, targets):
                return text
        self._texts.append(_Text(vocabulary, targets, left_out))
        return self._texts[-1]

    def _add_labels(self, name: str, run: LanguageModelRun, text: "_Text") -> None:
        vectors = label_vectors(run.model.encoder.embedding, run.model.layer)
        if vectors is None:
            self.without_labels.append(name)
            return
        vocabulary, options = run.vocabulary, text.band_options(self.edges)
        text.norms[name] = label_norms(vectors, vocabulary.counts, **options)
        labels = [_label(name, vocabulary, word) for word in self.words]
        text.nearest[name] = [
            nearest_labels(vectors, label, vocabulary.display, vocabulary.counts, top=NEAREST)
            for label in labels or typical_labels(vocabulary.counts, **options)
        ]

    @staticmethod
    def _sample(run: LanguageModelRun, prompt: str, seed: int) -> str:
        """The line that begins with ``prompt``."""
        pieces = generate(
            run.model, run.vocabulary, prompt=prompt, tokens=40, temperature=0.8, seed=seed
        )
        text = prompt + "".join(pieces)
        return text.split("\n")[0] if prompt else text


@dataclass
class _Text:
    """A text, and the losses of the runs that were evaluated on it.

    targets  (N,) ids that ``token_losses`` predicts, in its order
    losses   (N,) of each run; the others are as in ``TextBands``
    """

    vocabulary: Vocabulary
    targets: Tensor
    left_out: tuple[str, ...]
    losses: dict[str, Tensor] = field(default_factory=dict)
    calibration: dict[str, Calibration] = field(default_factory=dict)
    norms: dict[str, list[NormBand]] = field(default_factory=dict)
    nearest: dict[str, list[Neighbours]] = field(default_factory=dict)

    def band_options(self, edges: Sequence[int] | None) -> dict[str, Any]:
        exclude = [self.vocabulary.ids[word] for word in self.left_out]
        return {"edges": edges or default_edges(self.vocabulary), "exclude": exclude}

    def bands(self, edges: Sequence[int] | None) -> TextBands:
        base, *others = self.losses
        words = (self.targets, self.vocabulary.counts)
        options = self.band_options(edges)
        return TextBands(
            {name: frequency_bands(x, *words, **options) for name, x in self.losses.items()},
            {
                name: compare_bands(self.losses[base], self.losses[name], *words, **options)
                for name in others
            },
            self.left_out,
            self._bits_per_byte(),
            self.calibration,
            self.norms,
            self.nearest,
        )

    def _bits_per_byte(self) -> dict[str, float]:
        """Of every run, where the vocabulary is of subwords."""
        sizes = self.vocabulary.token_bytes
        if sizes is None:
            return {}
        bits = math.log(2.0) * float(sizes[self.targets.numpy()].sum())
        return {name: float(x.double().sum()) / bits for name, x in self.losses.items()}


def _label(name: str, vocabulary: Vocabulary, word: str) -> int:
    """The id of a word; of subwords, that of its first one."""
    if isinstance(vocabulary, SubwordVocabulary):
        return vocabulary.subwords.encode(f" {word}")[0]
    if word not in vocabulary:
        raise SettingsError(f"is not in the vocabulary of {name}", key=f"--word {word}")
    return vocabulary.ids[word]


# -- translators -----------------------------------------------------------------------------------

SPLIT = "test"


def accuracy_bands(
    run: TranslationRun, references: Sequence[str], hypotheses: Sequence[str], say: Say
) -> dict[str, list[AccuracyBand]]:
    """Accuracy of words, for languages with a word tokenizer, and of subwords."""
    language = run.settings.data["target"]
    trained, pairs = run.split("train")
    found = {}
    if language in LANGUAGES:
        found["word"] = word_bands(hypotheses, references, trained.target, language)
    else:
        say(
            f"there is no word tokenizer for {language}, only for {' and '.join(LANGUAGES)}: "
            "subwords alone are counted"
        )
    counts = target_counts(pairs, len(run.subwords))
    found["subword"] = subword_bands(hypotheses, references, run.subwords, counts)
    return found


def stored_bands(run: TranslationRun, say: Say) -> dict[str, list[AccuracyBand]]:
    """``accuracy_bands`` of the translations of the test text in a run folder."""
    path = run.folder.hypotheses(SPLIT, run.settings.data["target"])
    if not path.exists():
        raise RunFolderError(
            "is missing", key=str(path), hint=f"write it with `{_again(run.folder.path)}`"
        )
    return accuracy_bands(run, run.split(SPLIT)[0].target, read_lines(path), say)


def check_same_search(folders: Iterable[Path], say: Say) -> None:
    """SettingsError where the stored translations of runs were made with different searches."""
    made = {folder: _decoding_info(RunFolder(folder), say) for folder in folders}
    for folder, info in made.items():
        if info is None and len(made) > 1:
            say(
                f"{folder}: the search that made its translations is unknown, so they may not be "
                f"comparable; `{_again(folder)}` makes them again"
            )
    known = [(folder, info) for folder, info in made.items() if info is not None]
    for folder, info in known[1:]:
        first, wanted = known[0]
        if info.search != wanted.search:
            raise SettingsError(
                f"translations of {first} were made with {wanted.search}, those of {folder} with "
                f"{info.search}, so they are not comparable",
                key="--bands",
                hint=f"run `{_again(folder)} --beam {wanted.beam} --length-penalty "
                f"{wanted.length_penalty:g}`",
            )


def _decoding_info(run: RunFolder, say: Say) -> DecodingInfo | None:
    """How translations were made; a remark where the weights are not those of the run's test."""
    language = settings_of(run).data["target"]
    if not run.hypotheses(SPLIT, language).exists():  # ``stored_bands`` raises
        return None
    made = read_decoding_info(run, SPLIT, language)
    tested = (run.test_row() or {}).get("weights")
    if made is not None and tested not in (None, made.weights):
        say(
            f"{run.path}: its translations were made with the {made.weights} weights, its test "
            f"with the {tested} ones; `{_again(run.path)}` makes them again"
        )
    return made


def _again(folder: Path) -> str:
    return f"drill evaluate {folder} --split {SPLIT}"
