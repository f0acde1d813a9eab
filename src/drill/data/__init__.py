"""From text to batches: corpora, the vocabulary, cached ids, segments."""

import importlib
from typing import TYPE_CHECKING, Any

from drill.errors import DataError

if TYPE_CHECKING:
    from drill.data.parallel.batches import PairBatch, PairBatches
    from drill.data.parallel.corpora import read_parallel_corpus
    from drill.data.parallel.pairs import Filters, Pairs, encode_pairs
    from drill.data.parallel.parallel_text import ParallelSplits, ParallelText
    from drill.data.parallel.synthetic import numbers_and_dates_corpus
    from drill.data.subwords import BEGIN, END, PAD, Subwords
    from drill.data.text.batches import (
        Segment,
        SequenceLengths,
        batchify,
        evaluation_segments,
        inputs_and_targets,
        training_segments,
    )
    from drill.data.text.corpora import (
        Corpus,
        Ids,
        corpus_from_file,
        corpus_from_folder,
        load_corpus,
        read_corpus,
    )
    from drill.data.text.vocabulary import (
        EOS,
        UNK,
        SubwordVocabulary,
        Vocabulary,
        load_vocabulary,
    )
    from drill.data.text.word_features import WordFeatures
    from drill.data.text.wordnet import WordNet
    from drill.files import cache_folder
    from drill.kernels.loss.checks import IGNORE_INDEX

__all__ = [
    "BEGIN",
    "END",
    "EOS",
    "IGNORE_INDEX",
    "PAD",
    "UNK",
    "Corpus",
    "DataError",
    "Filters",
    "Ids",
    "PairBatch",
    "PairBatches",
    "Pairs",
    "ParallelSplits",
    "ParallelText",
    "Segment",
    "SequenceLengths",
    "SubwordVocabulary",
    "Subwords",
    "Vocabulary",
    "WordFeatures",
    "WordNet",
    "batchify",
    "cache_folder",
    "corpus_from_file",
    "corpus_from_folder",
    "encode_pairs",
    "evaluation_segments",
    "inputs_and_targets",
    "load_corpus",
    "load_vocabulary",
    "numbers_and_dates_corpus",
    "read_corpus",
    "read_parallel_corpus",
    "training_segments",
]


_MODULES = (
    "subwords",
    "parallel.corpora",
    "parallel.pairs",
    "text.corpora",
    "text.vocabulary",
    "text.word_features",
    "text.wordnet",
    "text.batches",
    "parallel.batches",
)
"""Where the names are; the last two import torch."""


def __getattr__(name: str) -> Any:
    """Names are imported at first use: a list of corpora needs neither numpy nor torch."""
    if name in __all__:
        for module in _MODULES:
            loaded = importlib.import_module(f"drill.data.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
    raise AttributeError(f"module 'drill.data' has no attribute {name!r}")
