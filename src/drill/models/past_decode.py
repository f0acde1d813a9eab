"""Past-decode regularisation (Brahma, 2018): read the last input word back from the prediction.

e = p E                          p: the predicted distribution of the next word, (V,)
r = tanh(W e + b)
loss = -log softmax(r E^T + c)[x]        x: the word that p was predicted from
"""

import torch
from torch import Tensor, nn

from drill.kernels.loss.nll import nll
from drill.layers.label_source import LabelSource, factory_kwargs, label_count, label_vectors


class PastDecode(nn.Module):
    """The loss of decoding input words from the distributions predicted after them.

    Args:
        embedding: the model's nn.Embedding (V, d) or label source, shared.
    """

    def __init__(self, embedding: nn.Embedding | LabelSource) -> None:
        super().__init__()
        self.embedding = embedding
        width = embedding.embedding_dim
        self.map = nn.Linear(width, width, **factory_kwargs(embedding))
        self.bias = nn.Parameter(torch.zeros(label_count(embedding), **factory_kwargs(embedding)))

    def forward(
        self,
        probs: Tensor,  # (..., V)
        ids: Tensor,  # (...)
        check: bool = True,
    ) -> Tensor:
        """The mean loss of ``ids``, each the last input word before its distribution."""
        weight = label_vectors(self.embedding)
        expected = probs.to(weight.dtype) @ weight  # (..., d)
        return nll(torch.tanh(self.map(expected)), weight, ids, self.bias, check=check)
