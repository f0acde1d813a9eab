"""Compare trained models: loss or accuracy on rare and frequent words, calibration, labels."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from drill.data import SubwordVocabulary, Vocabulary, batchify
from drill.data.parallel.moses_words import LANGUAGES
from drill.data.parallel.pairs import target_counts
from drill.errors import SettingsError
from drill.language_modeling.evaluation import frequency_bands as by_frequency
from drill.language_modeling.run import LanguageModelRun
from drill.report.analysis.label_vectors import (
    label_norms,
    label_vectors,
    nearest_labels,
    typical_labels,
)
from drill.report.analysis.word_accuracy import AccuracyBand, subword_bands, word_bands
from drill.report.tables.band_tables import TextBands
from drill.training.precision import resolve_precision
from drill.training.progress import perplexity_of
from drill.translation.run import TranslationRun

Say = Callable[[str], None]

# -- language models -------------------------------------------------------------------------------

BATCH = 20  # batch size of the test text: 1 would lose no context and take ten times as long
NEAREST = 5  # labels that are listed next to a label


@dataclass
class RunComparison:
    """Collects the test losses of runs, their calibration and labels.

    Bands begin at ``edges``, by default those of the vocabulary. Nearest labels are those of
    ``words``, by default of one word of each band.
    """

    edges: Sequence[int] | None = None
    words: Sequence[str] = ()
    _texts: dict[tuple[Hashable, ...], tuple[TextBands, Tensor]] = field(
        default_factory=dict, init=False
    )
    """By words and targets: the text, and its losses (N,) by the first run."""

    @property
    def texts(self) -> list[TextBands]:
        """Runs that have read the same text are in one."""
        return [text for text, _ in self._texts.values()]

    def add(self, name: str, run: LanguageModelRun) -> dict[str, Any]:
        """Returns the losses of the run as a row of evaluations.jsonl has them."""
        vocabulary, ids = run.vocabulary, run.ids.test
        batch_size = max(1, min(BATCH, len(ids) // 2))  # the same for all runs on a text
        targets = batchify(ids, batch_size)[1:].t().flatten()  # as ``token_losses`` predicts them
        left_out = by_frequency.excluded_words(vocabulary, run.settings.data["corpus"])
        options: dict[str, Any] = {
            "edges": self.edges or by_frequency.default_edges(vocabulary),
            "exclude": [vocabulary.ids[word] for word in left_out],
        }
        labels = [_label(name, vocabulary, word) for word in self.words]
        losses = run.token_losses(ids, batch_size=batch_size)
        words = (vocabulary.fingerprint, vocabulary.counts.tobytes(), left_out)
        text, base = self._texts.setdefault(
            (*words, targets.numpy().tobytes()), (TextBands({}, left_out=left_out), losses)
        )
        text.losses[name] = by_frequency.frequency_bands(
            losses, targets, vocabulary.counts, **options
        )
        if base is not losses:
            text.changes[name] = by_frequency.compare_bands(
                base, losses, targets, vocabulary.counts, **options
            )
        if vocabulary.token_bytes is not None:
            bits = math.log(2.0) * float(vocabulary.token_bytes[targets.numpy()].sum())
            text.bits_per_byte[name] = float(losses.double().sum()) / bits
        text.calibration[name] = run.calibration(ids, batch_size=batch_size)
        vectors = label_vectors(run.model.encoder.embedding, run.model.layer)
        text.norms[name] = label_norms(vectors, vocabulary.counts, **options)
        text.nearest[name] = [
            nearest_labels(vectors, label, vocabulary.display, vocabulary.counts, top=NEAREST)
            for label in labels or typical_labels(vocabulary.counts, **options)
        ]
        loss = float(losses.double().mean())
        device = next(run.model.parameters()).device
        return {
            "precision": resolve_precision(run.settings.training["precision"], device),
            "tokens": len(losses),
            "loss": loss,
            "perplexity": perplexity_of(loss),
            "batch_size": batch_size,
            "bands": [asdict(band) for band in text.losses[name]],
        }


def _label(name: str, vocabulary: Vocabulary, word: str) -> int:
    """The id of a word; of subwords, that of its first one."""
    if isinstance(vocabulary, SubwordVocabulary):
        return vocabulary.subwords.encode(f" {word}")[0]
    if word not in vocabulary:
        raise SettingsError(f"is not in the vocabulary of {name}", key=f"--word {word}")
    return vocabulary.ids[word]


# -- translators -----------------------------------------------------------------------------------


def accuracy_bands(
    run: TranslationRun, references: Sequence[str], hypotheses: Sequence[str], say: Say
) -> dict[str, list[AccuracyBand]]:
    """Accuracy of words, for languages with a word tokenizer, and of subwords."""
    language = run.settings.data["target"]
    training, pairs = run.split("train")
    bands = {}
    if language in LANGUAGES:
        bands["word"] = word_bands(hypotheses, references, training.target, language)
    else:
        say(
            f"there is no word tokenizer for {language}, only for {' and '.join(LANGUAGES)}: "
            "subwords alone are counted"
        )
    counts = target_counts(pairs, len(run.subwords))
    bands["subword"] = subword_bands(hypotheses, references, run.subwords, counts)
    return bands
