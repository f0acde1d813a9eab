"""Softmaxes over an increasing function of each logit, over any matrix layer.

    p(y | h) = softmax( f(z) ),    z = labels() context(h) + b

A plain softmax of joint width k has log-probabilities of rank k + 2 at most over any contexts: k
of the product, one of the bias and one of the normaliser. A nonlinear f has no such limit and costs
one pass over the logits. f is increasing, so the labels keep their order.
"""

import abc
import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.runtime.dispatch import upcast
from drill.layers.base import MatrixLayer
from drill.layers.checks import check_integer, check_positive
from drill.layers.label_source import factory_kwargs
from drill.layers.losses import LossOptions, adversarial_delta, head_nll, target_rows
from drill.layers.wrappers.base import ScoreLayer

SOFTPLUS_INVERSE_OF_ONE = math.log(math.expm1(1.0))
"""softplus(SOFTPLUS_INVERSE_OF_ONE) = 1."""


class PointwiseLayer(ScoreLayer):
    """p(y | h) = softmax(f(z)); a layer defines f."""

    copies = 6

    @abc.abstractmethod
    def transform(self, logits: Tensor) -> Tensor:
        """f, elementwise and increasing; finite logits in at least float32."""

    def inverse(self, scores: Tensor) -> Tensor:
        """z with f(z) = ``scores`` or those shifted, before training; the identity by default."""
        return scores

    @torch.no_grad()
    def init_bias(self, counts: Tensor | Sequence[float]) -> None:
        super().init_bias(counts)
        bias = cast(Tensor, self.bias)
        bias.copy_(self.inverse(bias))

    def inputs(self, hidden: Tensor) -> tuple[Tensor]:
        return (self.layer.context(hidden),)

    def scores(self, inputs: tuple[Tensor, ...], weight: Tensor) -> Tensor:
        logits = upcast(F.linear(inputs[0], weight))
        bias = self.layer.bias
        if bias is None:
            return self.transform(logits)
        masked = bias == -torch.inf  # f(-inf) may be finite, and its gradient NaN
        logits = logits + bias.masked_fill(masked, 0.0)
        return self.transform(logits).masked_fill(masked, -torch.inf)

    def score_drop(
        self, epsilon: float, inputs: tuple[Tensor, ...], weight: Tensor, targets: Tensor
    ) -> Tensor:
        (context,), rows = inputs, target_rows(weight, targets)
        logits = (context * rows).sum(-1, dtype=torch.promote_types(rows.dtype, torch.float32))
        if self.layer.bias is not None:
            logits = logits + target_rows(self.layer.bias, targets)
        delta = adversarial_delta(epsilon, context, rows)
        return self.transform(logits) - self.transform(logits - delta)


class SigSoftmax(PointwiseLayer):
    """p(y | h) = exp(z_y) sigmoid(z_y) / sum_v exp(z_v) sigmoid(z_v) (Kanai et al., 2018).

    f(z) = z + log sigmoid(z): slope 2 far below zero, where it squares the odds, and 1 far above,
    where it is a plain softmax. Adds no parameters. The loss has the kernels of a plain softmax.

    Args:
        layer: the MatrixLayer that gives the logits z.
    """

    def checked_nll(self, hidden: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        (context,), weight = self._read(hidden)
        return head_nll(context, weight, targets, self.bias, options, sigsoftmax=True)

    def kernel_summary(self, tokens: int) -> list[str]:
        return self.layer.kernel_summary(tokens)

    def transform(self, logits: Tensor) -> Tensor:
        return logits + F.logsigmoid(logits)

    def inverse(self, scores: Tensor) -> Tensor:
        # exp(z)^2 / (1 + exp(z)) = exp(score), solved for exp(z) and divided by exp(score / 2).
        root = (scores / 2).exp()
        return scores / 2 + ((root + (root.square() + 4).sqrt()) / 2).log()


class SoftcappedSoftmax(PointwiseLayer):
    """p(y | h) = softmax(c tanh(z / c)): logits stay within +-c.

    With c far above the logits it is a plain softmax. Keeps training stable in large models, such
    as Gemma 2. Adds no parameters.

    Args:
        layer: the MatrixLayer that gives the logits z.
        cap: c.
    """

    def __init__(self, layer: MatrixLayer, cap: float = 30.0) -> None:
        super().__init__(layer)
        self.cap = check_positive(type(self).__name__, "cap", cap)

    def transform(self, logits: Tensor) -> Tensor:
        return self.cap * torch.tanh(logits / self.cap)

    def inverse(self, scores: Tensor) -> Tensor:
        """Of centred scores; as near as the cap allows."""
        share = (scores - (scores.max() + scores.min()) / 2) / self.cap
        return self.cap * torch.atanh(share.clamp(-0.999, 0.999))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, cap={self.cap}"


class PiecewiseLinearSoftmax(PointwiseLayer):
    """p(y | h) = softmax(f(z)) with a learnt piecewise linear f, PLIF (Ganea et al., 2019).

        f(z) = -T + sum_i s_i |[-T, z] in piece i|,    s_i = softplus(v_i) > 0

    [-T, T] is divided into ``pieces`` of one width; the outer slopes continue beyond it. One f is
    shared by all labels and contexts. It starts as the identity, a plain softmax. Adds ``pieces``
    parameters.

    Args:
        layer: the MatrixLayer that gives the logits z.
        pieces: number of slopes.
        limit: T; larger than most logits.
    """

    copies = 10

    def __init__(self, layer: MatrixLayer, pieces: int = 1000, *, limit: float = 20.0) -> None:
        super().__init__(layer)
        name = type(self).__name__
        self.pieces = check_integer(name, "pieces", pieces)
        self.limit = check_positive(name, "limit", limit)
        self.slopes = nn.Parameter(torch.zeros(self.pieces, **factory_kwargs(layer.embedding)))

    def transform(self, logits: Tensor) -> Tensor:
        width = 2 * self.limit / self.pieces
        slopes = F.softplus(self.slopes.to(logits.dtype) + SOFTPLUS_INVERSE_OF_ONE)  # (pieces,)
        starts = width * (slopes.cumsum(0) - slopes) - self.limit  # f where each piece starts
        distance = logits + self.limit
        # Outside [-T, T] the first and the last piece go on; NaN stays NaN, but reads a slope.
        piece = (distance.detach() / width).nan_to_num().clamp(0, self.pieces - 1).floor()
        flat = piece.long().flatten()  # the gradient of gather is one scatter_add, without a sort
        start, slope = (x.gather(0, flat).view_as(logits) for x in (starts, slopes))
        return start + slope * (distance - width * piece)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pieces={self.pieces}, limit={self.limit}"
