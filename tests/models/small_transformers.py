"""Small Transformers and ids for them."""

import pytest
import torch
from torch import Tensor, nn

from drill.models import Transformer
from drill.models.transformer.transformer import Memory

V, d, B, S, T, PAD = 29, 12, 3, 7, 5, 0

both_norms = pytest.mark.parametrize("norm", ["pre", "post"])


def make(norm: str = "pre", dropout: float = 0.0, shared: bool = True, **options) -> Transformer:
    """In float64, with no parameter at zero, so that each of them counts."""
    source = nn.Embedding(V, d, dtype=torch.float64)
    target = None if shared else nn.Embedding(V + 4, d, dtype=torch.float64)
    sizes = {"layers": 2, "heads": 3, "feedforward": 17, **options}
    model = Transformer(source, target, norm=norm, dropout=dropout, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.6, 0.6)
    return model


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(1, V, (rows, length))


def padded(rows: Tensor, extra: int) -> Tensor:
    return torch.cat([rows, rows.new_full((rows.shape[0], extra), PAD)], dim=1)


def ragged(length: int) -> Tensor:
    """B rows, each one shorter than the one above it."""
    rows = ids(B, length)
    for i in range(B):
        rows[i, length - i :] = PAD
    return rows


def trained(
    impl: str, norm: str, device: str, half: bool = False, change=lambda model: None, **options
) -> list[Tensor]:
    """Hidden states and all gradients of a model in float32, changed; none depends on impl."""
    torch.manual_seed(3)
    model = make(norm, impl=impl, **options).to(device, torch.float32)
    change(model)
    with torch.autocast(device, torch.bfloat16, enabled=half):
        hidden = model(ragged(S).to(device), ids(B, T).to(device))
    (hidden * torch.linspace(-1, 1, d, device=hidden.device)).sum().backward()
    return [hidden.detach(), *(parameter.grad for parameter in model.parameters())]


def repeated(memory: Memory, times: int) -> Memory:
    """Every sentence repeated ``times`` times."""
    return Memory(*(tensor.repeat_interleave(times, 0) for tensor in memory))
