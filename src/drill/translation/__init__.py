"""Translators: beam search, sampling, BLEU, export; translate.py translates lines."""

from drill.errors import NotExportable
from drill.translation.bleu import Scores, corpus_scores
from drill.translation.export_marian import export_marian, marian_weights
from drill.translation.search.beam_search import beam_search, greedy
from drill.translation.search.decoding import Decoding, Hypothesis, cached_head
from drill.translation.search.sampling import sample

__all__ = [
    "Decoding",
    "Hypothesis",
    "NotExportable",
    "Scores",
    "beam_search",
    "cached_head",
    "corpus_scores",
    "export_marian",
    "greedy",
    "marian_weights",
    "sample",
]
