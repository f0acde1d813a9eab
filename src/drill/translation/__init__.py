"""Translators: train, beam search, BLEU, translate, export."""

from drill.errors import NotExportable
from drill.translation.bleu import Scores, corpus_scores
from drill.translation.export_marian import export_marian, marian_weights
from drill.translation.search.decoding import Decoding, Hypothesis, encoded_once
from drill.translation.search.search import beam_search, greedy, sample

__all__ = [
    "Decoding",
    "Hypothesis",
    "NotExportable",
    "Scores",
    "beam_search",
    "corpus_scores",
    "encoded_once",
    "export_marian",
    "greedy",
    "marian_weights",
    "sample",
]
