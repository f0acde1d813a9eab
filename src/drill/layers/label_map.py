"""One trained map of label vectors: act(drop(norm(X)) U + b) [W]."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drill.kernels.label_encoder.options import RMS_EPS, KeptBits, draw_kept_bits
from drill.kernels.runtime.dispatch import compute_dtype
from drill.kernels.runtime.dropout_masks import draw_mask, masked
from drill.layers.checks import (
    check_fraction,
    hooked,
    init_uniform,
    one_of,
)

Activation = Literal["sigmoid", "relu", "tanh", "gelu", "silu", "none"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "none": lambda x: x,
}
DropoutAt = Literal["input", "output"]
Norm = Literal["none", "rms"]
Block = Literal["map", "mlp"]


class LabelMap(nn.Module):
    """f(X) = act(drop(norm(X)) U + b) [W]; ``dropout_at="output"`` drops the result instead.

    X (V, d_in) -> (V, d_out). ``norm="rms"`` divides x by sqrt(mean(x^2)); ``block="mlp"`` has the
    second matrix W. U and W start uniform in +-init_range, b in +-1/sqrt(d_in).
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        activation: Activation = "none",
        dropout: float = 0.0,
        locked: bool = True,
        dropout_at: DropoutAt = "input",
        norm: Norm = "none",
        block: Block = "map",
        init_range: float = 0.1,
        map_bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.activation: str = one_of(name, "activation", activation, tuple(ACTIVATIONS))
        self.dropout = check_fraction(name, "dropout", dropout)
        self.locked = locked
        self.dropout_at: str = one_of(name, "dropout_at", dropout_at, get_args(DropoutAt))
        self.norm: str = one_of(name, "norm", norm, get_args(Norm))
        self.block: str = one_of(name, "block", block, get_args(Block))
        self.linear = nn.Linear(d_in, d_out, map_bias, device, dtype)
        init_uniform(name, "init_range", init_range, [self.linear.weight])
        if map_bias:
            nn.init.uniform_(self.linear.bias, -1 / math.sqrt(d_in), 1 / math.sqrt(d_in))
        self.output: nn.Linear | None = None
        if block == "mlp":  # without a bias, which softmax or the next map's would absorb
            self.output = nn.Linear(d_out, d_out, False, device, dtype)
            init_uniform(name, "init_range", init_range, [self.output.weight])

    def draw_mask(self, X: Tensor) -> Tensor | None:
        """A new dropout mask for labels X (V, .); None without dropout."""
        if not self.drops:
            return None
        linear = self.linear
        width = linear.in_features if self.dropout_at == "input" else linear.out_features
        return draw_mask((1 if self.locked else X.shape[0], width), self.dropout, X)

    def draw_masks(self, X: Tensor, depth: int) -> Tensor | KeptBits | None:
        """Masks of ``depth`` maps like this one with d_in = d_out, for ``encode_labels``."""
        if not self.drops:
            return None
        if self.locked:
            return draw_mask((depth, 1, X.shape[1]), self.dropout, X)
        return draw_kept_bits(X, depth, self.dropout)

    @property
    def drops(self) -> bool:
        return self.training and self.dropout > 0.0

    @property
    def unfusable_reason(self) -> str | None:
        """Why a kernel may not use the weights in place of a call; None if it may."""
        matrices = [each for each in (self.linear, self.output) if each is not None]
        other = next((each for each in matrices if type(each) is not nn.Linear), self.linear)
        if type(self) is not LabelMap or type(other) is not nn.Linear:
            return f"it is a {type(self).__name__} over a {type(other).__name__}"
        if self.output is not None and self.output.bias is not None:
            return "its second matrix has a bias"
        return "it has hooks" if any(map(hooked, (self, *matrices))) else None

    def forward(self, X: Tensor) -> Tensor:
        """f(X) with a new dropout mask."""
        mask = self.draw_mask(X)
        if self.norm == "rms":
            X = F.rms_norm(X, X.shape[-1:], eps=RMS_EPS)
        input_mask, output_mask = (mask, None) if self.dropout_at == "input" else (None, mask)
        if input_mask is None:
            Y = self.linear(X)
        elif self._masks_weight(X, input_mask):
            Y = F.linear(X, masked(self.linear.weight, input_mask), self.linear.bias)
        else:
            Y = self.linear(masked(X, input_mask))
        Y = ACTIVATIONS[self.activation](Y)
        if self.output is not None:
            Y = self.output(Y)
        return Y if output_mask is None else masked(Y, output_mask)

    def _masks_weight(self, X: Tensor, mask: Tensor) -> bool:
        """Whether to compute drop(X) U as X drop(U): a locked mask then has d_out rows to scale.

        Not in half precision, so that X is rounded as in the fused encoder.
        """
        smaller = mask.shape[0] == 1 and X.shape[0] > self.linear.out_features
        plain = type(self.linear) is nn.Linear and not hooked(self.linear)
        return smaller and plain and compute_dtype(X).itemsize >= 4

    def extra_repr(self) -> str:
        return (
            f"activation={self.activation!r}, dropout={self.dropout}, locked={self.locked}, "
            f"dropout_at={self.dropout_at!r}, norm={self.norm!r}, block={self.block!r}"
        )
