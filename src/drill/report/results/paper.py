"""Results of the paper by recipe: Pappas & Henderson, ICML 2019, tables 1, 2 and 4.

Its perplexities divide by all tokens, so compare them with our ``*_published`` ones; those of
dynamic evaluation divide by the predicted tokens, as our ``perplexity`` does. Compare its BLEU with
our ``tokenised_bleu``. Most of its rows are finetuned models (`drill finetune`).
"""

from collections.abc import Mapping
from typing import NamedTuple

FINETUNED = "-finetune"  # what `drill finetune` adds to the name of a recipe


class Perplexities(NamedTuple):
    valid: float
    test: float


PAPER: Mapping[str, Perplexities] = {
    "ptb-full-finetune": Perplexities(69.9, 66.8),
    "ptb-tied": Perplexities(60.7, 58.8),
    "ptb-tied-finetune": Perplexities(60.0, 57.3),
    "ptb-bilinear-finetune": Perplexities(60.7, 58.5),
    "ptb-dual-finetune": Perplexities(58.8, 56.4),
    "ptb-drill-1-finetune": Perplexities(58.8, 56.2),
    "ptb-drill-2-finetune": Perplexities(58.7, 56.0),
    "ptb-drill-3-finetune": Perplexities(58.5, 55.9),
    "ptb-drill-4": Perplexities(59.6, 57.0),
    "ptb-drill-4-finetune": Perplexities(58.2, 55.7),
    "ptb-drill-4-between-finetune": Perplexities(59.6, 57.5),
    # "No variational dropout" is ambiguous; the paper has one row.
    "ptb-drill-4-no-dropout-finetune": Perplexities(63.4, 60.7),
    "ptb-drill-4-standard-dropout-finetune": Perplexities(63.4, 60.7),
    "ptb-mos-finetune": Perplexities(56.54, 54.44),
    "wt2-tied": Perplexities(69.1, 66.0),
    "wt2-tied-finetune": Perplexities(68.6, 65.8),
    "wt2-drill-4": Perplexities(65.7, 62.8),
    "wt2-drill-4-finetune": Perplexities(64.9, 61.9),
    "wt2-mos-finetune": Perplexities(63.88, 61.45),
    # with dynamic evaluation or a cache
    "ptb-tied-finetune+cache": Perplexities(53.9, 52.8),
    "ptb-tied-finetune+dynamic": Perplexities(51.6, 51.1),
    "ptb-drill-4-finetune+dynamic": Perplexities(49.5, 49.4),
    "ptb-mos-finetune+dynamic": Perplexities(48.33, 47.69),
    "wt2-tied-finetune+cache": Perplexities(53.8, 52.0),
    "wt2-tied-finetune+dynamic": Perplexities(46.4, 44.3),
    "wt2-drill-4-finetune+dynamic": Perplexities(43.9, 42.0),
    "wt2-mos-finetune+dynamic": Perplexities(42.41, 40.68),
}

PAPER_BLEU: Mapping[str, float] = {
    "wmt14-tied": 27.3,
    "wmt14-dual": 27.5,
    "wmt14-drill": 28.1,
}
"""English-German, newstest2014, over tokenised text; of the test alone."""

CURVES: Mapping[str, Mapping[int, float]] = {
    "ptb-tied": {
        1: 338.50, 2: 224.26, 3: 181.96, 4: 149.31, 5: 131.21, 6: 121.66, 8: 106.60, 10: 98.20,
        15: 87.35, 20: 82.10, 30: 76.98, 40: 73.51, 50: 71.95, 60: 66.30, 70: 65.63, 80: 65.14,
        100: 64.36, 150: 63.20, 200: 62.51, 300: 61.78, 400: 61.50, 500: 61.44, 600: 61.45,
    },
    "ptb-drill-4": {
        1: 312.24, 2: 199.97, 3: 164.85, 4: 138.71, 5: 124.02, 6: 115.06, 8: 102.34, 10: 93.34,
        15: 84.38, 20: 79.45, 30: 74.29, 40: 72.57, 50: 70.85, 60: 69.19, 70: 64.63, 80: 63.39,
        100: 62.50, 150: 61.48, 200: 60.86, 300: 60.16, 400: 59.88, 500: 59.72, 600: 59.64,
    },
}  # fmt: skip
"""Epoch -> validation perplexity, divided by all tokens: the authors' logs of their own runs."""
