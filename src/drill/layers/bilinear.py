"""The bilinear map of Gulordava et al. (2018)."""

from torch import Tensor, nn

from drill.errors import require
from drill.layers.base import MatrixLayer
from drill.layers.checks import check_integer
from drill.layers.label_map import DropoutAt, LabelMap
from drill.layers.label_source import LabelSource, factory_kwargs, label_width


class Bilinear(MatrixLayer):
    """softmax(E W h + b): g_out = E W (V, d_h), a linear map between label and hidden space.

    Adds d*d_h + V parameters.

    Args:
        embedding: the model's nn.Embedding (V, d), shared, or a label source.
        hidden_size: d_h, which may differ from d; d by default.
        dropout: dropout probability of the map.
        locked: variational dropout: one mask over the d dimensions for all labels, drawn for every
            call. False: standard dropout.
        dropout_at: "input" or "output" of the map.
        residual: add E; needs d_h = d.
        init_range: W is initialised uniformly in +-init_range.
        map_bias: add a bias to E W.
        bias: use the output bias b.
    """

    scales_with_embedding = True
    map_parameters = ("label_map",)

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource,
        hidden_size: int | None = None,
        *,
        dropout: float = 0.0,
        locked: bool = True,
        dropout_at: DropoutAt = "input",
        residual: bool = False,
        init_range: float = 0.1,
        map_bias: bool = False,
        bias: bool = True,
    ) -> None:
        name = type(self).__name__
        d = label_width(name, embedding)
        d_h = d if hidden_size is None else check_integer(name, "hidden_size", hidden_size)
        if residual:
            require(
                d_h == d, name, "hidden_size", f"the embedding's width {d} with residual=True", d_h
            )
        super().__init__(embedding, d_h, bias, joint_size=d_h)
        self.residual = residual
        self.label_map = LabelMap(
            d,
            d_h,
            dropout=dropout,
            locked=locked,
            dropout_at=dropout_at,
            init_range=init_range,
            map_bias=map_bias,
            **factory_kwargs(embedding),
        )

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        E = self.label_rows(rows, check)  # (V, d)
        Y = self.label_map(E)  # (V, d_h)
        return (Y + E).to(Y.dtype) if self.residual else Y  # autocast widens the sum

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, residual={self.residual}"
