"""Small language models over every layer of the layers' own table, with no parameter at zero."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drill.data import EOS, UNK, Vocabulary
from drill.language_modeling.evaluation.gradient_statistics import Statistics, gradient_statistics
from drill.language_modeling.scoring import line_start
from drill.models import AwdLstm
from drill.models.encoder import State
from drill.models.language_model import LanguageModel
from drill.training.precision import evaluating
from tests.layers.table import CASES, ONE_EACH, D, V
from tests.models.lstm_reference import OFF

DROPOUTS = dict.fromkeys(OFF, 0.5)

every_layer = pytest.mark.parametrize(
    "name", [*ONE_EACH, "sigsoftmax", "softcap", "deep residual over descriptions"]
)


def language_model(
    name: str = "deep residual locked", dtype: torch.dtype = torch.float64, seed: int = 0
) -> LanguageModel:
    """In train mode with every dropout on, so that an evaluation which leaves one on shows."""
    embedding = nn.Embedding(V, D)
    layer = CASES[name].build(embedding)
    encoder = AwdLstm(embedding, 6, 2, output_size=layer.hidden_size, **DROPOUTS)
    model = LanguageModel(encoder, layer)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.empty(parameter.shape).uniform_(-0.7, 0.7, generator=generator)
    return model.to(dtype).train()


def measured(name: str = "deep residual locked") -> tuple[LanguageModel, Statistics]:
    """A model, and the statistics of its gradients on a text."""
    model = language_model(name)
    return model, gradient_statistics(model, text(100), batch_size=4)


def text(tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(V, size=tokens).astype(np.uint16)


def plain_losses(model: LanguageModel, ids: np.ndarray) -> Tensor:
    """-log p of every id but the first, (N - 1,): one forward over the whole text, no segments."""
    stream = torch.from_numpy(ids.astype(np.int64))[:, None]
    model.eval()
    with torch.no_grad():
        log_probs, _ = model.log_probs(stream[:-1])
    model.train()
    return -log_probs.gather(-1, stream[1:, :, None]).flatten()


def bits(model: nn.Module) -> list[bytes]:
    """Every parameter and buffer, byte for byte."""
    tensors = (*model.parameters(), *model.buffers())
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


# -- words for their labels ----------------------------------------------------------------------

WORDS = ["the", "boat", EOS, "is", UNK, "late", "and", "lit", "a", "lamp", "sea"]
assert len(WORDS) == V
VOCABULARY = Vocabulary(WORDS, [1] * V)
CLOSED = Vocabulary([word if word != UNK else "grey" for word in WORDS], [1] * V)


def begun(model: LanguageModel) -> State:
    """The state in which its lines begin."""
    return line_start("test", model, WORDS.index(EOS))


def log_probs_after(model: LanguageModel, words: list[str], start: State) -> Tensor:
    """log p of every next word (V,) after <eos> and ``words``, nothing dropped, by one forward."""
    ids = torch.tensor([WORDS.index(word) for word in (EOS, *words)])[:, None]
    with evaluating(model), torch.no_grad():
        return model.log_probs(ids, start)[0][-1, 0]
