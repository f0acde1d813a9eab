"""From text to batches: corpora, the vocabulary, cached ids, segments."""

from drill.data.batches import (
    LengthState,
    Segment,
    SequenceLengths,
    columns,
    evaluation_segments,
    inputs_and_targets,
    sequence_lengths,
    training_segments,
)
from drill.data.cache import cache_folder, encoded
from drill.data.corpora import (
    CORPORA,
    NAMES,
    Corpus,
    Ids,
    Published,
    corpus_from_file,
    corpus_from_folder,
    data_folders,
    load_corpus,
    read_corpus,
    refuse_missing,
)
from drill.data.download import download
from drill.data.encoded_pairs import KEEP_ALL, FilterReport, Filters, Pairs, encode_pairs
from drill.data.files import DataError
from drill.data.numbers_and_dates import ParallelSplits, generate_pairs, numbers_and_dates_corpus
from drill.data.pair_batches import IGNORE, Padding, PairBatch, PairBatches
from drill.data.parallel_corpora import (
    GENERATED,
    PARALLEL_CORPORA,
    PARALLEL_NAMES,
    read_parallel_corpus,
    read_parallel_split,
    refuse_missing_pairs,
)
from drill.data.parallel_text import ParallelText
from drill.data.subwords import BEGIN, END, PAD, Subwords
from drill.data.translation_data import (
    TranslationData,
    learnt_subwords,
    pairs_checksum,
    target_counts,
    translation_data,
)
from drill.data.vocabulary import EOS, UNK, Vocabulary

__all__ = [
    "BEGIN",
    "CORPORA",
    "END",
    "EOS",
    "GENERATED",
    "IGNORE",
    "KEEP_ALL",
    "NAMES",
    "PAD",
    "PARALLEL_CORPORA",
    "PARALLEL_NAMES",
    "UNK",
    "Corpus",
    "DataError",
    "FilterReport",
    "Filters",
    "Ids",
    "LengthState",
    "Padding",
    "PairBatch",
    "PairBatches",
    "Pairs",
    "ParallelSplits",
    "ParallelText",
    "Published",
    "Segment",
    "SequenceLengths",
    "Subwords",
    "TranslationData",
    "Vocabulary",
    "cache_folder",
    "columns",
    "corpus_from_file",
    "corpus_from_folder",
    "data_folders",
    "download",
    "encode_pairs",
    "encoded",
    "evaluation_segments",
    "generate_pairs",
    "inputs_and_targets",
    "learnt_subwords",
    "load_corpus",
    "numbers_and_dates_corpus",
    "pairs_checksum",
    "read_corpus",
    "read_parallel_corpus",
    "read_parallel_split",
    "refuse_missing",
    "refuse_missing_pairs",
    "sequence_lengths",
    "target_counts",
    "training_segments",
    "translation_data",
]
