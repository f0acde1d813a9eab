"""Negative log-likelihood of a linear head, without the N x V logits in memory.

    nll_n = -log softmax(h_n W^T + b)[y_n]

Shapes: N tokens, V labels, k the width shared by ``hidden`` and ``weight``.

Three implementations give the same result:

``reference``  plain PyTorch with the logits in memory; the others are tested against it
``chunked``    pure PyTorch on any device, memory bounded whatever N and V are
``triton``     the same chunks with two Triton kernels between the matrix products (CUDA)
``auto``       the one that :func:`choose` returns

Which route a call takes, the first line that fits:

``reference``                                     this file, all logits in memory
inside ``torch.compile``                          ``compile_op``: ``chunked`` as an operator
nothing to differentiate                          ``chunked``, nothing saved
``triton``, the logits fit into ``memory``        ``chunked`` with one chunk, which is saved
mean or sum; no float16, no bfloat16 on a CPU     ``token_sweep``: gradients with the logits
anything else                                     ``chunked``, as many chunks saved as fit
"""

import logging
import operator
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.errors import require
from drill.kernels.loss.checks import IGNORE_INDEX, check_head, check_targets
from drill.kernels.loss.chunked import chunked_nll
from drill.kernels.loss.compile_op import compiled_nll
from drill.kernels.loss.head import Head, NllOptions
from drill.kernels.runtime.checks import is_integer, is_number, one_of
from drill.kernels.runtime.dispatch import (
    Choice,
    compute_dtype,
    log_once,
    require_triton,
    triton_missing,
)

Implementation = Literal["auto", "reference", "chunked", "triton"]
Reduction = Literal["none", "mean", "sum"]

DEFAULT_MEMORY = 2**30
"""Bytes that ``chunked`` and ``triton`` may use beyond inputs and gradients."""

_SMALL_LOGITS = 4 * 2**20
"""Chunks do not help below this many bytes of logits."""

logger = logging.getLogger("drill")


def nll(
    hidden: Tensor,  # (..., k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
    bias: Tensor | None = None,  # (V,)
    *,
    reduction: Reduction = "mean",
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    sigsoftmax: bool = False,
    impl: Implementation = "auto",
    memory: int = DEFAULT_MEMORY,
    check: bool = True,
) -> Tensor:
    """Cross entropy of ``softmax(hidden @ weight.T + bias)``, as a mean, a sum or per token.

    Equals ``F.cross_entropy(F.linear(hidden, weight, bias), targets, ...)`` with two differences:
    the result has at least the precision of float32, and a batch in which every target is ignored
    gives 0 with zero gradients instead of NaN.

    Under autocast the products run in autocast's dtype and gradients have the dtype of the
    parameters; half-precision label gradients are accumulated in float32.

    Args:
        hidden: (..., k).
        weight: (V, k).
        targets: (...), label ids.
        bias: (V,).
        reduction: "mean" over the tokens that are not ignored, "sum" or "none".
        ignore_index: a target that is left out.
        label_smoothing: as in ``F.cross_entropy``.
        sigsoftmax: normalise exp(z) sigmoid(z) of the logits z, not exp(z).
        impl: "reference", "chunked", "triton" or "auto".
        memory: most bytes that "chunked" and "triton" use beyond inputs and gradients.
        check: raise IndexError if a target is no label; on a GPU this waits for the device. Without
            it (and inside ``torch.compile`` or a CUDA graph, which cannot wait) the loss of such a
            token is NaN.

    Returns:
        A scalar; with "none" a loss per token, (...).
    """
    label_smoothing, memory, ignore_index = check_settings(
        reduction, label_smoothing, impl, memory, ignore_index
    )
    check_head("nll", hidden, weight, bias)
    check_targets(hidden, targets, weight.shape[0], ignore_index, check)
    targets = targets.long()  # small integers would wrap around ignore_index
    rows, flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1).contiguous()
    dtype = compute_dtype(hidden)
    if impl == "auto":
        impl = choose(rows.shape[0], weight.shape[0], dtype, hidden.device).impl
    if impl == "triton":
        require_triton(hidden.device, dtype)

    if impl == "reference":
        losses = _reference(rows, weight, flat, bias, ignore_index, label_smoothing, sigsoftmax)
        return reduce_losses(losses.view(targets.shape), targets, reduction, ignore_index)
    settings = NllOptions(ignore_index, label_smoothing, dtype, impl, memory, sigsoftmax)
    head = Head(rows, weight, None if bias is None else bias.contiguous(), flat, settings)
    if torch.compiler.is_compiling():
        losses = compiled_nll(head)
        return reduce_losses(losses.view(targets.shape), targets, reduction, ignore_index)
    loss = chunked_nll(reduction, head)
    return loss.view(targets.shape) if reduction == "none" else loss


def reduce_losses(
    losses: Tensor,  # (...), 0 where ignored
    targets: Tensor,  # (...)
    reduction: Reduction,
    ignore_index: int,
) -> Tensor:
    """The mean over the tokens that are not ignored, their sum, or the losses as they are."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (targets.long() != ignore_index).sum().clamp(min=1)


def choose(tokens: int, labels: int, dtype: torch.dtype, device: torch.device) -> Choice:
    """The implementation that ``impl="auto"`` takes for this size, dtype and device, and why."""
    size = tokens * labels * dtype.itemsize
    if device.type == "cuda":
        missing = triton_missing(device, dtype)
        if missing is None:
            choice = Choice("triton", f"CUDA device, {dtype}, Triton is installed")
        else:
            choice = Choice("chunked", f"CUDA device, but {missing}")
    elif device.type != "meta" and size > _SMALL_LOGITS:
        choice = Choice("chunked", f"the logits would take {size / 2**20:.0f} MiB")
    else:
        choice = Choice("reference", f"the logits take only {size / 2**20:.1f} MiB")
    if not torch.compiler.is_compiling():
        logger.debug("nll: auto -> %s (%s)", *choice)
        if device.type == "cuda" and choice.impl != "triton":
            log_once("nll", *choice)
    return choice


def check_settings(
    reduction: str, label_smoothing: float, impl: str, memory: int, ignore_index: int
) -> tuple[float, int, int]:
    """Raise ValueError or TypeError for invalid settings.

    Returns:
        label_smoothing, memory and ignore_index as Python numbers: NumPy's overflow, and kernels do
        not take them.
    """
    memory, ignore_index = _whole("memory", memory), _whole("ignore_index", ignore_index)
    fits = -(2**63) <= ignore_index < 2**63
    require(fits, "nll", "ignore_index", "a number of 64 bits", ignore_index)
    one_of("nll", "reduction", reduction, get_args(Reduction))
    one_of("nll", "impl", impl, get_args(Implementation))
    number = isinstance(label_smoothing, torch.SymFloat) or is_number(label_smoothing)
    require(number, "nll", "label_smoothing", "a number", label_smoothing, TypeError)
    require(0.0 <= label_smoothing <= 1.0, "nll", "label_smoothing", "in [0, 1]", label_smoothing)
    require(memory >= 1, "nll", "memory", "a positive number of bytes", memory)
    if not isinstance(label_smoothing, float | torch.SymFloat):
        label_smoothing = float(label_smoothing)
    return label_smoothing, memory, ignore_index


def _whole(name: str, value: int) -> int:
    whole = isinstance(value, torch.SymInt) or is_integer(value)
    require(whole, "nll", name, "a whole number", value, TypeError)
    return value if isinstance(value, int | torch.SymInt) else operator.index(value)


def _reference(
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (N,)
    bias: Tensor | None,  # (V,)
    ignore_index: int,
    label_smoothing: float,
    sigsoftmax: bool,
) -> Tensor:  # (N,)
    logits = F.linear(hidden, weight)  # (N, V) <- the tensor the other implementations avoid
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
    if sigsoftmax:
        logits = logits + F.logsigmoid(logits)
    return token_losses(logits, targets, ignore_index, label_smoothing)


def token_losses(
    logits: Tensor,  # (N, V)
    targets: Tensor,  # (N,)
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:  # (N,)
    """F.cross_entropy per token; a target out of range gives NaN and no device-side assert."""
    outside = (targets != ignore_index) & ((targets < 0) | (targets >= logits.shape[1]))
    losses = F.cross_entropy(
        logits,
        torch.where(outside, ignore_index, targets).long(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    return torch.where(outside, torch.nan, losses)
