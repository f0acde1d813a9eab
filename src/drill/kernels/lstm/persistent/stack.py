"""LSTM layers by the persistent kernel, one on top of the other: bfloat16, float32 cell states.

i, f, g, o = gates of  W_ih x_t + b + (W_hh * m) h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)

x of a later layer is h of the one below, times a mask that is the same at all steps. Products with
inputs and gradients of weights are matrix products over all steps at once; the recurrence alone is
a kernel of its own.

That kernel leaves half of the device idle. What no step waits for runs there, on a second stream:
weights of later layers are prepared during the steps of the first one, gradients of weights are
computed during the steps of the layer below. If a pass is captured, the last two layers fit on the
device together, the lower one has at least 577 units and the sequence 35 steps, they overlap, the
upper one a piece behind (``can_interleave``); the first launched pass of a shape loads the products
that this takes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drill.kernels.lstm.persistent.stack_backward import BackwardPass
from drill.kernels.lstm.persistent.stack_forward import ForwardPass, SavedLayer
from drill.kernels.lstm.weights import Weights, by_layer


def persistent_layers(
    x: Tensor,  # (T, B, i)
    states: Sequence[tuple[Tensor, ...]],  # h and c of each layer, (1, B, H)
    weights: Sequence[Weights],  # of each layer
    drop: float = 0.0,
    between: float = 0.0,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """h of the last layer (T, B, p), bfloat16, and h and c of each after the last step (1, B, H).

    ``drop`` is the share of the entries of each W_hh that this call loses, ``between`` that of the
    units between two layers, the same at all steps; the others grow by 1 / (1 - share). x and the
    output may be wider than i and H, with zeros there.
    """
    layers = zip(states, weights, strict=True)
    given = [tensor for (h, c), each in layers for tensor in (h[0], c[0], *each)]
    with torch.autocast(x.device.type, enabled=False), torch.cuda.device_of(x):
        x = x.to(torch.bfloat16)
        lowest = _lowest_trained(x, given)
        output, *ends = PersistentLayers.apply(x, drop, between, lowest, *given)
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return output, [(h[None], c[None]) for h, c in pairs]


def _lowest_trained(x: Tensor, given: Sequence[Tensor]) -> int:
    """The first layer that backward goes through: it, or what is below, asks for a gradient.

    As many as there are layers where nobody asks.
    """
    layers = len(given) // 6
    if not torch.is_grad_enabled():  # within ``apply`` Parameters would seem to ask all the same
        return layers
    if x.requires_grad:
        return 0
    return next((i // 6 for i, each in enumerate(given) if each.requires_grad), layers)


class PersistentLayers(torch.autograd.Function):
    """x, and h, c (B, H) and weights of each layer, to output and h, c of each.

    Those from ``lowest`` on are saved for backward.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, drop: float, between: float, lowest: int, *given: Tensor
    ) -> tuple[Tensor, ...]:
        layers = by_layer([tensor.contiguous() for tensor in given])
        made = ForwardPass(x, layers, lowest, drop, between)
        made.run()
        ctx.save_for_backward(*(tensor for each in made.saved[lowest:] for tensor in each))
        ctx.layouts, ctx.lowest, ctx.drop = made.layouts[lowest:], lowest, drop
        # Not saved: backward does not read their values, so they may change before it.
        trained = given[6 * lowest :]
        ctx.like = by_layer([torch.empty_like(tensor, device="meta") for tensor in trained])
        ctx.set_materialize_grads(False)
        return made.saved[-1].h[1:], *(tensor for pair in made.ends for tensor in pair)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, doutput: Tensor | None, *dends: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        needs_x, _, _, _, *needs = ctx.needs_input_grad
        tensors, size = ctx.saved_tensors, len(SavedLayer._fields)
        saved = [SavedLayer(*tensors[i : i + size]) for i in range(0, len(tensors), size)]
        # Layers below the lowest are no part of this: those above are a stack of their own.
        frozen = [None] * (6 * ctx.lowest)
        made = BackwardPass(saved, ctx.layouts, ctx.like, ctx.drop, needs_x, needs[len(frozen) :])
        made.run(doutput, dends[2 * ctx.lowest :])
        return made.dx, None, None, None, *frozen, *made.found
