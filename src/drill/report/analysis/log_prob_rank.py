"""The rank of the matrix of log-probabilities that a language model gives to a text.

    A[t, v] = log p(v | y_<t) = h_t . w_v + b_v - log Z_t          (N, V)

One softmax over d-dimensional states has rank at most d + 2: d, one for the bias and one for the
normaliser. A mixture of softmaxes has no such bound (Yang et al., 2018).
"""

from copy import deepcopy
from typing import NamedTuple

import torch

from drill.files import OnProgress
from drill.language_modeling.evaluation import perplexity
from drill.layers.base import MatrixLayer
from drill.models.language_model import LanguageModel
from drill.training.precision import evaluating

ABSOLUTE = 1.0  # the tolerance of the released code: numpy.linalg.matrix_rank(A, tol=True)
RELATIVE = 1e-6  # of the largest singular value
CHUNK = 512  # log-probabilities of this many tokens are computed at a time


class LogProbRank(NamedTuple):
    """Number of singular values above a tolerance."""

    tokens: int  # N, rows of the matrix
    labels: int  # V, columns of the matrix
    bound: int | None  # k + 2 for one softmax over contexts of width k, which it cannot exceed
    absolute: int  # above 1.0
    relative: int  # above 1e-6 of the largest


@torch.no_grad()
def log_prob_rank(
    model: LanguageModel,
    ids: perplexity.Text,
    *,
    batch_size: int = 10,
    bptt: int = 70,
    progress: OnProgress | None = None,
) -> LogProbRank:
    """The rank over a text, in eval mode.

    The output layer is computed in float64: rounding alone would make a matrix of full rank. Takes
    8 V^2 bytes for the Gram matrix, whose eigenvalues are the squares of the singular values.

    Args:
        model: in any mode; it is left as it was.
        ids: the text, (N,).
        batch_size: streams that it is cut into.
        bptt: rows that are encoded at a time.
        progress: called with the tokens done and all there are.

    Returns:
        The rank by two tolerances, and its bound for one softmax.
    """
    data = perplexity.check_and_batchify("log_prob_rank", model, ids, batch_size)
    layer = deepcopy(model.layer).double().eval()
    V, tokens = layer.vocabulary_size, (data.shape[0] - 1) * data.shape[1]
    gram = torch.zeros(V, V, dtype=torch.float64, device=data.device)
    done = 0
    with evaluating(model), layer.cached_labels():
        for hidden, _ in perplexity.hidden_states(model, data, bptt):
            for part in hidden.flatten(0, 1).double().split(CHUNK):
                A = layer.log_probs(part)  # (CHUNK, V)
                gram.addmm_(A.t(), A)
                done += len(part)
            if progress is not None:
                progress(done, tokens)
    squares = torch.linalg.eigvalsh(gram)
    absolute = int((squares > ABSOLUTE**2).sum())
    relative = int((squares > RELATIVE**2 * squares.max()).sum())
    bound = layer.joint_size + 2 if isinstance(layer, MatrixLayer) else None
    return LogProbRank(tokens, V, bound, absolute, relative)
