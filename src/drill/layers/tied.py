"""A softmax whose matrix is the input embedding: weight tying."""

from torch import Tensor, nn

from drill.layers.base import MatrixLayer
from drill.layers.label_source import LabelSource, label_width


class TiedSoftmax(MatrixLayer):
    """softmax(E h + b): g_out = E (V, d), the input embedding itself (weight tying).

    Adds V parameters; needs d_h = d. The same as DeepResidual of depth 0.

    Args:
        embedding: the model's nn.Embedding (V, d), shared, or a label source.
        bias: use the output bias b.
    """

    scales_with_embedding = True

    def __init__(self, embedding: nn.Embedding | LabelSource, *, bias: bool = True) -> None:
        d = label_width(type(self).__name__, embedding)
        super().__init__(embedding, hidden_size=d, bias=bias, joint_size=d)

    def labels(self, rows: Tensor | None = None, check: bool = True) -> Tensor:
        return self.label_rows(rows, check)  # (V, d)
