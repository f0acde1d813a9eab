"""Words for the labels of the small models, and what such a model expects after some of them."""

import torch

from drill.data import EOS, UNK, Vocabulary
from drill.language_modeling.scoring import line_start
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.training.precision import evaluating
from tests.layers.table import V

WORDS = ["the", "boat", EOS, "is", UNK, "late", "and", "lit", "a", "lamp", "sea"]
assert len(WORDS) == V
VOCABULARY = Vocabulary(WORDS, [1] * V)
CLOSED = Vocabulary([word if word != UNK else "grey" for word in WORDS], [1] * V)


def begun(model: LanguageModel) -> State:
    """The state in which its lines begin."""
    return line_start("test", model, WORDS.index(EOS))


def log_probs_after(model: LanguageModel, words: list[str], start: State) -> torch.Tensor:
    """log p of every next word (V,) after <eos> and ``words``, nothing dropped, by one forward."""
    ids = torch.tensor([WORDS.index(word) for word in (EOS, *words)])[:, None]
    with evaluating(model), torch.no_grad():
        return model.log_probs(ids, start)[0][-1, 0]
