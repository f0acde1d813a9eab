"""Words for the labels of the small models, and what such a model expects after some of them."""

import torch

from drill.data import EOS, UNK, Vocabulary
from drill.models import LanguageModel
from tests.layers.table import V

WORDS = ["the", "boat", EOS, "is", UNK, "late", "and", "lit", "a", "lamp", "sea"]
assert len(WORDS) == V
VOCABULARY = Vocabulary(WORDS, [1] * V)
CLOSED = Vocabulary([word if word != UNK else "grey" for word in WORDS], [1] * V)


def log_probs_after(model: LanguageModel, words: list[str]) -> torch.Tensor:
    """log p of every next word (V,) after <eos> and ``words``, nothing dropped, by one forward."""
    ids = torch.tensor([WORDS.index(word) for word in (EOS, *words)])[:, None]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        found = model.log_probs(ids)[0][-1, 0]
    for module, mode in modes:
        module.training = mode
    return found
