"""The dropouts of recurrent encoders: entries are lost with probability p, others grow by 1/(1-p).

What differs is what one draw decides: a dimension for all steps, or a word wherever it stands. The
single weights of a recurrent matrix are dropped where that is read, in ``drill.kernels.lstm``.
"""

from torch import Tensor

from drill.kernels.runtime.dropout_masks import draw_mask, masked


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """x * m with one mask m (1, B, H) for all T steps of x (T, B, H), fresh for every call.

    Between recurrent layers: what a sequence loses, it loses at every step (variational dropout).
    """
    return masked(x, draw_mask((1, *x.shape[1:]), p, x)) if p > 0.0 else x


def row_dropout(vectors: Tensor, ids: Tensor, rows: int, p: float) -> Tensor:
    """m[ids] * vectors with a mask m (rows, 1): a word is lost wherever it stands.

    On looked-up ``vectors`` (T, B, d) of ``ids`` (T, B): the same as dropping whole rows of the
    table (rows, d) before the lookup, without touching the table, which labels may share.
    """
    return masked(vectors, draw_mask((rows, 1), p, vectors)[ids]) if p > 0.0 else vectors
