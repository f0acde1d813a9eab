"""How good a language model is: one question a file."""

from drill.evaluation.perplexity import Perplexity, perplexity, token_losses

__all__ = ["Perplexity", "perplexity", "token_losses"]
