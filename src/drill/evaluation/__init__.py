"""How good a model is, and what it writes: one question a file."""

from drill.evaluation.bleu import Scores, corpus_scores
from drill.evaluation.cache import cache_perplexity, cache_search
from drill.evaluation.dynamic import dynamic_perplexity, dynamic_search
from drill.evaluation.gradients import StaleStatistics, Statistics, gradient_statistics
from drill.evaluation.grid import Cell, Search
from drill.evaluation.perplexity import Perplexity, perplexity, token_losses
from drill.evaluation.scoring import Scored, score
from drill.evaluation.search import (
    Decoding,
    Hypothesis,
    beam_search,
    encoded_once,
    greedy,
    sample,
)
from drill.evaluation.stalls import Stalled

__all__ = [
    "Cell",
    "Decoding",
    "Hypothesis",
    "Perplexity",
    "Scored",
    "Scores",
    "Search",
    "StaleStatistics",
    "Stalled",
    "Statistics",
    "beam_search",
    "cache_perplexity",
    "cache_search",
    "corpus_scores",
    "dynamic_perplexity",
    "dynamic_search",
    "encoded_once",
    "gradient_statistics",
    "greedy",
    "perplexity",
    "sample",
    "score",
    "token_losses",
]
