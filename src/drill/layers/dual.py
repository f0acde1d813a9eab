"""The dual nonlinear map of Pappas et al. (2018): a joint space of labels and contexts."""

from typing import Any

from torch import Tensor, nn

from drill.errors import require
from drill.layers.base import MatrixLayer
from drill.layers.checks import check_integer
from drill.layers.label_map import Activation, DropoutAt, LabelMap
from drill.layers.label_source import LabelSource, factory_kwargs, label_width


class DualNonlinear(MatrixLayer):
    """softmax(act(E U + b_u) . act(W h + b_w) + b): a joint space of labels and contexts.

    Adds d*k + k*d_h + 2*k + V parameters.

    Args:
        embedding: the model's nn.Embedding (V, d), shared, or a label source.
        hidden_size: d_h; d by default.
        joint_size: k; d by default.
        activation: sigmoid, relu, tanh, gelu, silu or none.
        dropout: dropout probability of the label side.
        locked: variational dropout: one mask over the d dimensions for all labels, drawn for every
            call. False: standard dropout.
        dropout_at: "input" or "output" of the label map.
        residual: add E on the label side and h on the other; needs d = k = d_h.
        init_range: U and W are initialised uniformly in +-init_range.
        map_bias: use b_u and b_w.
        bias: use the output bias b.
    """

    map_parameters = ("label_map",)

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        hidden_size: int | None = None,
        joint_size: int | None = None,
        *,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        locked: bool = True,
        dropout_at: DropoutAt = "input",
        residual: bool = False,
        init_range: float = 0.1,
        map_bias: bool = True,
        bias: bool = True,
    ) -> None:
        name = type(self).__name__
        d = label_width(name, embedding)
        d_h = d if hidden_size is None else check_integer(name, "hidden_size", hidden_size)
        k = d if joint_size is None else check_integer(name, "joint_size", joint_size)
        if residual:
            require(k == d, name, "joint_size", f"the embedding's width {d} with residual=True", k)
            require(k == d_h, name, "joint_size", f"hidden_size {d_h} with residual=True", k)
        super().__init__(embedding, d_h, bias, joint_size=k)
        self.residual = residual
        options: dict[str, Any] = {
            "activation": activation,
            "locked": locked,
            "dropout_at": dropout_at,
            "init_range": init_range,
            "map_bias": map_bias,
            **factory_kwargs(embedding),
        }
        self.label_map = LabelMap(d, k, dropout=dropout, **options)
        self.context_map = LabelMap(d_h, k, **options)  # the model's encoder has its own dropout

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        E = self.label_rows(rows, check)  # (V, d)
        Y = self.label_map(E)  # (V, k)
        return (Y + E).to(Y.dtype) if self.residual else Y  # autocast widens the sum

    def context(self, hidden: Tensor) -> Tensor:
        hidden = super().context(hidden)
        Y = self.context_map(hidden)  # (..., k)
        return Y + hidden if self.residual else Y

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, residual={self.residual}"
