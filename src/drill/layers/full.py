"""A softmax with a matrix of its own."""

from numbers import Integral

from torch import Tensor, nn

from drill.layers.base import MatrixLayer
from drill.layers.checks import check_integer, init_uniform
from drill.layers.label_source import (
    FactoryKwargs,
    LabelSource,
    factory_kwargs,
    label_count,
    label_width,
)


class FullSoftmax(MatrixLayer):
    """softmax(W h + b): g_out = W (V, d_h), not shared with the input embedding.

    Adds V*d_h + V parameters.

    Args:
        embedding: V, or the model's embedding, whose size is V.
        hidden_size: d_h; the embedding's width by default.
        bias: use the output bias b.
        init_range: W is initialised uniformly in +-init_range.
    """

    def __init__(
        self,
        embedding: nn.Embedding | LabelSource | int,
        hidden_size: int | None = None,
        *,
        bias: bool = True,
        init_range: float = 0.1,
    ) -> None:
        name, factory = type(self).__name__, FactoryKwargs(device=None, dtype=None)
        if isinstance(embedding, int | Integral):
            if hidden_size is None:
                raise ValueError(f"{name}: hidden_size is required with a number of labels")
            labels = check_integer(name, "the number of labels", embedding)
        else:
            width = label_width(name, embedding)
            labels = label_count(embedding)
            factory = factory_kwargs(embedding)
            hidden_size = width if hidden_size is None else hidden_size
        hidden_size = check_integer(name, "hidden_size", hidden_size)
        W = nn.Embedding(labels, hidden_size, **factory)
        init_uniform(name, "init_range", init_range, [W.weight])
        super().__init__(W, hidden_size, bias, joint_size=hidden_size)

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        return self.label_rows(rows, check)  # (V, d_h)
