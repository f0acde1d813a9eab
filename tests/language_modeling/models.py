"""Small language models over every layer of the layers' own table, with no parameter at zero."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drill.language_modeling.evaluation.gradient_statistics import Statistics, gradient_statistics
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from tests.layers.table import CASES, ONE_EACH, D, V

DROPOUTS = dict.fromkeys(
    ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_output", "weight_drop"), 0.5
)

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
