"""Results of the paper by recipe: Pappas & Henderson, ICML 2019, tables 1, 2 and 4.

Its perplexities divide by all tokens, so compare them with our ``*_all_tokens`` ones; those of
dynamic evaluation divide by the predicted tokens, as our ``perplexity`` does. Compare its BLEU with
our ``tokenised_bleu``. Most of its rows are finetuned models (`drill finetune`).
"""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

FINETUNED = "-finetune"  # what `drill finetune` adds to the name of a recipe


class Perplexities(NamedTuple):
    valid: float
    test: float


_FIGURES = tomllib.loads(
    resources.files("drill.report.results").joinpath("paper.toml").read_text("utf-8")
)
PAPER: Mapping[str, Perplexities] = {
    name: Perplexities(*both) for name, both in _FIGURES["perplexities"].items()
}
PAPER_BLEU: Mapping[str, float] = _FIGURES["bleu"]
"""English-German, newstest2014, over tokenised text; of the test alone."""
