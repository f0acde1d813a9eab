"""Language models over AWD-LSTM, RHN or GPT: train, evaluate, adapt, generate.

run          train in a run folder, and load it again
build        settings -> model and text
train        the task for the training loop: its step, validation and test
step         the training step, launched or replayed as CUDA graphs
untie        shared labels first, then a matrix of its own
evaluation/  perplexity, dynamic evaluation, cache pointer, loss by frequency, calibration
scoring      log-probabilities of single lines
generation   samples
new_words    new labels for a trained model
"""

from drill.language_modeling.evaluation.cache_pointer import cache_perplexity, cache_search
from drill.language_modeling.evaluation.calibration import Calibration, calibration
from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.evaluation.frequency_bands import compare_bands, frequency_bands
from drill.language_modeling.evaluation.gradient_statistics import (
    StaleStatistics,
    Statistics,
    gradient_statistics,
)
from drill.language_modeling.evaluation.grid_search import Cell, GridSearch
from drill.language_modeling.evaluation.perplexity import Perplexity, perplexity, token_losses
from drill.language_modeling.scoring import Scored, score

__all__ = [
    "Calibration",
    "Cell",
    "GridSearch",
    "Perplexity",
    "Scored",
    "StaleStatistics",
    "Statistics",
    "cache_perplexity",
    "cache_search",
    "calibration",
    "compare_bands",
    "dynamic_perplexity",
    "dynamic_search",
    "frequency_bands",
    "gradient_statistics",
    "perplexity",
    "score",
    "token_losses",
]
