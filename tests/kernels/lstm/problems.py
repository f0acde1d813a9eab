"""Problems for LSTM layers and stacks of them, their solutions, and how far apart two are."""

from itertools import pairwise

import torch
from torch import nn

from drill.kernels.lstm.lstm import lstm
from drill.kernels.lstm.persistent import recurrence
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


def stack(sizes, steps, batch, device="cpu", dtype=torch.float64, trained=True):
    """x, states and weights of layers of these widths, and gradients of all results."""
    torch.manual_seed(steps * 1000 + batch)
    modules = [nn.LSTM(i, o) for i, o in pairwise(sizes)]
    x = torch.randn(steps, batch, sizes[0]).to(device, dtype).requires_grad_(trained)
    states, weights, wanted = [], [], []
    for each in modules:
        pair = (torch.randn(1, batch, each.hidden_size).mul(0.3) for _ in "hc")
        states.append(tuple(t.to(device, dtype).requires_grad_(trained) for t in pair))
        own = (p.detach().to(device, dtype).requires_grad_(trained) for p in each.parameters())
        weights.append(Weights(*own))
        wanted += [torch.randn(1, batch, each.hidden_size).to(device, dtype) for _ in "hc"]
    wanted.insert(0, torch.randn(steps, batch, sizes[-1]).to(device, dtype))
    return x, states, weights, wanted


def flat(results):
    output, ends = results
    return [output, *(tensor for pair in ends for tensor in pair)]


def one_by_one(x, states, weights, impl):
    ends = []
    for i, ((h, c), own) in enumerate(zip(states, weights, strict=True)):
        x, h, c = lstm(x, h, c, own, impl, keep_padding=i + 1 < len(weights))
        ends.append((h, c))
    return x, ends


def gradients(results, given, wanted):
    x, states, weights = given
    leaves = [x, *(t for pair in states for t in pair), *(t for each in weights for t in each)]
    return differentiate(flat(results), wanted, leaves)


def solved(results, given, wanted):
    """All results and all gradients."""
    return [*flat(results), *gradients(results, given, wanted)]


def set_interleave(monkeypatch, interleave):
    """The last two layers, where they are large enough; or none."""
    monkeypatch.setattr(recurrence, "recorded", lambda: interleave)
    loaded = set() if interleave else Everything()
    monkeypatch.setattr(recurrence, "_loaded", loaded)


class Everything(set):
    def __contains__(self, shape):
        return True
