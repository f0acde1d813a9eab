"""Translators: translate lines, beam search, sampling, BLEU, export."""

from drill.errors import NotExportable
from drill.translation.bleu import Scores, corpus_scores
from drill.translation.export import export_translator, exported_weights
from drill.translation.inference import Translation, translate
from drill.translation.search.beam_search import beam_search
from drill.translation.search.decoding import Hypothesis, Search, cached_head
from drill.translation.search.sampling import sample

__all__ = [
    "Hypothesis",
    "NotExportable",
    "Scores",
    "Search",
    "Translation",
    "beam_search",
    "cached_head",
    "corpus_scores",
    "export_translator",
    "exported_weights",
    "sample",
    "translate",
]
