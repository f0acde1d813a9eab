"""How good a language model is: one question a file."""

from drill.evaluation.cache import cache_perplexity, cache_search
from drill.evaluation.dynamic import dynamic_perplexity, dynamic_search
from drill.evaluation.gradients import StaleStatistics, Statistics, gradient_statistics
from drill.evaluation.grid import Cell, Search
from drill.evaluation.perplexity import Perplexity, perplexity, token_losses
from drill.evaluation.scoring import Scored, score

__all__ = [
    "Cell",
    "Perplexity",
    "Scored",
    "Search",
    "StaleStatistics",
    "Statistics",
    "cache_perplexity",
    "cache_search",
    "dynamic_perplexity",
    "dynamic_search",
    "gradient_statistics",
    "perplexity",
    "score",
    "token_losses",
]
