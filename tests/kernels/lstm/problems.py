"""Problems for LSTM layers, their solutions, and how far two solutions are apart."""

import torch
from torch import nn

from drill.kernels.lstm.lstm import lstm
from drill.kernels.lstm.weights import Weights


def problem(steps, batch, width, hidden, device="cpu", dtype=torch.float64):
    """x, h0, c0, weights and gradients of the three results, all from one seed."""
    torch.manual_seed(steps * 1000 + batch)
    module = nn.LSTM(width, hidden)
    weights = Weights(*(p.detach().to(device, dtype).requires_grad_() for p in module.parameters()))
    x = torch.randn(steps, batch, width).to(device, dtype).requires_grad_()
    h, c = (torch.randn(1, batch, hidden).mul(0.3).to(device, dtype).requires_grad_() for _ in "hc")
    wanted = [torch.randn(steps, batch, hidden), *(torch.randn(1, batch, hidden) for _ in "hc")]
    return x, h, c, weights, [w.to(device, dtype) for w in wanted]


def solve(impl, x, h, c, weights, wanted, **options):
    """Output, h, c, and the gradients of everything: values alone.

    Results that hold their graph keep its streams, and torch warns of gradients from another one.
    """
    results = lstm(x, h, c, weights, impl, **options)
    gradients = differentiate(results, wanted, [x, h, c, *weights])
    return [*(r.detach() for r in results), *gradients]


def differentiate(results, wanted, leaves):
    loss = sum((r.to(w.dtype) * w).sum() for r, w in zip(results, wanted, strict=True))
    return torch.autograd.grad(loss, leaves)


def errors(found, truth):
    pairs = zip(found, truth, strict=True)
    return [((a.double() - b).norm() / b.norm()).item() for a, b in pairs]


def same_bits(found, wanted):
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
