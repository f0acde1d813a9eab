"""The loss in one sweep over the tokens: gradients are computed with the logits.

A block holds whole rows of logits, so their gradient is known before the next block takes their
place. Nothing is saved for backward, which only multiplies: 3 products of N x V x k whatever
``memory`` is, where ``chunked`` computes the logits twice if they do not fit.

On a GPU the passes of ``chunked`` do the work, on blocks as large as ``memory`` allows. On a CPU a
block stays in the caches, where the N x V logits of ``chunked`` are fresh memory in every step, and
the passes are written out:

    e = exp(l - max l),  m = sum e,  loss = log m + max l - l_y        per token, l its logits
    d loss / d l = (e - m onehot(y)) / m

The factor 1 / m is given to hidden states and their gradients, k numbers a token; on the logits it
would be one more pass over V numbers.

Shapes: N tokens, V labels, k width; R rows of a block.
"""

import logging
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from drill.kernels.loss.chunk_plan import MIN_BLOCK, ROW_BYTES, fits_in_one_chunk
from drill.kernels.loss.head import Gradients, Head, NllOptions, Wanted, new_gradients
from drill.kernels.loss.passes import target_column
from drill.kernels.loss.products import add_product, engine_named, padded_weight
from drill.kernels.runtime.autograd import require_plain_backward
from drill.kernels.runtime.padding import aligned

logger = logging.getLogger("drill")

BLOCK_ELEMENTS = 2**21
"""Logits worked on at once by a CPU."""
FEWEST_ROWS = 64
"""With fewer tokens each product of a CPU would read all labels for little work."""


def rows_at_once(reduction: str, head: Head) -> int:
    """Tokens of a block; 0 if one sweep over the tokens cannot compute this loss."""
    tokens = head.hidden.shape[0]
    missing = _why_not(reduction, head)
    if missing is None:
        on_cpu = head.hidden.device.type == "cpu"
        room = _cpu_room(head) if on_cpu else _gpu_room(head)
        fewest = FEWEST_ROWS if on_cpu else MIN_BLOCK
        most = max(fewest, BLOCK_ELEMENTS // head.labels) if on_cpu else tokens
        rows = min(tokens, room, most)
        if rows >= min(tokens, fewest):
            if not on_cpu:  # blocks of one size
                rows = -(-tokens // -(-tokens // rows))
            logger.debug("nll: one sweep, %d of %d tokens at once", rows, tokens)
            return rows
        missing = f"{head.settings.memory} bytes hold the logits of {max(0, room)} tokens"
    logger.debug("nll: labels in chunks (%s)", missing)
    return 0


def _why_not(reduction: str, head: Head) -> str | None:
    hidden, settings = head.hidden, head.settings
    if hidden.shape[0] == 0:
        return "no tokens"
    if reduction == "none":
        return "each token's gradient has a factor of its own, known only in backward"
    if hidden.device.type == "cpu":
        if settings.engine != "chunked":
            return "Triton's kernels are for a GPU"
        if settings.sigsoftmax and settings.smoothing:
            return "smoothing needs the sum of the scores, a logarithm for each"
        if settings.dtype.itemsize < 4 or not settings.dtype == hidden.dtype == head.weight.dtype:
            return "products in half precision need extra sums in float32"
        return None
    if settings.dtype == torch.float16:
        return "gradients in float16 vanish unless backward scales them"
    if fits_in_one_chunk(head):
        return "all logits fit"
    return None


def _cpu_room(head: Head) -> int:
    """Rows that fit: besides its logits, each has a copy of its hidden state."""
    labels, width = head.weight.shape
    each = (labels * (1 + head.settings.sigsoftmax) + width) * head.settings.dtype.itemsize
    return (head.settings.memory - ROW_BYTES * head.hidden.shape[0]) // each


def _gpu_room(head: Head) -> int:
    """Rows that fit next to the labels in the dtype of the products and float32 sums for them."""
    hidden, weight, _, _, (_, _, dtype, engine, memory, sigsoftmax) = head
    size, (labels, width) = dtype.itemsize, weight.shape
    padded = aligned(labels, weight.device.type)
    once = ROW_BYTES * hidden.shape[0]
    once += padded * width * size if dtype != weight.dtype or padded != labels else 0
    once += padded * width * 4 if weight.dtype.itemsize < 4 else 0
    copies = 0 if engine == "triton" else 12 + 12 * sigsoftmax  # plain PyTorch's, in float32
    each = padded * (size + copies) + width * (size if dtype != hidden.dtype else 0)
    return (memory - once) // each


def _sweep(
    reduction: str, head: Head, rows: int, wanted: Wanted
) -> tuple[Tensor, Gradients]:  # (), and those that were asked for
    hidden, weight, bias, targets, settings = head
    labels, w = head.labels, padded_weight(weight, settings.dtype)
    counted = targets != settings.ignore_index
    share = torch.ones((), dtype=head.exact, device=hidden.device)  # of a token in the loss
    if reduction == "mean":
        share /= counted.sum().clamp(min=1)
    grads = new_gradients(head, wanted, w.shape[0], head.exact)
    losses = hidden.new_empty(targets.shape, dtype=head.exact)
    differentiate = _cpu_block if hidden.device.type == "cpu" else _gpu_block
    block = hidden.new_empty(rows, w.shape[0], dtype=w.dtype)
    for top in range(0, hidden.shape[0], rows):
        here = slice(top, top + rows)
        h = hidden[here].to(w.dtype)  # (R, k)
        logits = block[: len(h)]
        torch.mm(h, w.t(), out=logits)
        own = logits[:, :labels]
        losses[here], factor = differentiate(own, bias, targets[here], share, settings, grads.bias)
        if grads.hidden is not None:
            add_product(grads.hidden[here], logits, w, add=False)
            if factor is not None:
                grads.hidden[here] *= factor
        if grads.weight is not None:
            add_product(grads.weight, logits.t(), h if factor is None else h * factor, add=top > 0)
    loss = torch.where(counted, losses * share, 0).sum()
    return loss, grads.finished(head)


def _gpu_block(
    logits: Tensor,  # (R, V), become their gradients
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (R,)
    share: Tensor,  # ()
    settings: NllOptions,
    bias_grad: Tensor | None,  # (V,), added to
) -> tuple[Tensor, None]:
    """The losses (R,) and logits' gradients by the passes of ``chunked``."""
    passes, (rows, labels) = engine_named(settings.engine), logits.shape
    losses, lse = passes.whole(logits, bias, targets, settings)
    scale, for_bias = share.expand(rows), bias_grad is not None
    summed = passes.differentiate(logits, bias, targets, 0, lse, scale, settings, labels, for_bias)
    if bias_grad is not None and summed is not None:
        bias_grad += summed
    return losses, None


def _cpu_block(
    logits: Tensor,  # (R, V), become their gradients times 1 / factor
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (R,)
    share: Tensor,  # ()
    settings: NllOptions,
    bias_grad: Tensor | None,  # (V,), added to
) -> tuple[Tensor, Tensor]:
    """The losses (R,) and the factor share / m (R, 1), 0 for a token that is ignored."""
    labels, smoothing = logits.shape[1], settings.smoothing
    if bias is not None:
        logits.add_(bias)  # faster than addmm, which first writes the bias into every row
    column, known = (x[:, None] for x in target_column(targets, 0, labels))
    hit = logits.gather(1, column)  # (R, 1), as all that is known of a token
    if smoothing:
        hit = (1 - smoothing) * hit + smoothing * logits.mean(1, keepdim=True)
    peak = logits.amax(1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0, peak)  # -inf - -inf would be NaN
    logits.sub_(peak).exp_()
    slope = None
    if settings.sigsoftmax:
        # That of the target from its logit: where exp(z - peak) is 0 the other is 2, whatever z is.
        slope = _times_sigmoid(logits, peak).scatter_(1, column, 2 - hit.sigmoid())
        hit = hit + F.logsigmoid(hit)
        peak = peak + peak.clamp(max=0)
    mass = logits.sum(1, keepdim=True)
    losses = torch.where(known, mass.log() + peak - hit, torch.nan)[:, 0]
    # From here on logits are m times their gradients.
    if smoothing:
        logits.sub_(mass * (smoothing / labels))
    logits.scatter_add_(1, column, torch.where(known, mass * (smoothing - 1), 0))
    if slope is not None:
        logits.mul_(slope)
    factor = torch.where(targets == settings.ignore_index, 0, share)[:, None] / mass
    if bias_grad is not None:
        bias_grad.addmv_(logits.t(), factor[:, 0])
    return losses, factor


def _times_sigmoid(
    e: Tensor,  # (R, V), exp(z - peak); becomes exp(z) sigmoid(z) / exp(peak + min(peak, 0))
    peak: Tensor,  # (R, 1)
) -> Tensor:  # (R, V)
    """Sigsoftmax without another exponential; gives the slope of its scores, 2 - sigmoid(z).

    sigmoid(z) = b e / (a + b e),    a = exp(-max(peak, 0)),  b = exp(min(peak, 0))
    """
    a, b = (-peak).clamp(max=0).exp(), peak.clamp(max=0).exp()
    a.clamp_(min=torch.finfo(e.dtype).tiny)  # e may be 0, too
    part = (e * b).add_(a)
    torch.div(e, part, out=part)
    e.mul_(part)
    return part.mul_(-b).add_(2)


class _OneSweep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reduction: str, rows: int, *given: Any) -> Tensor:  # a Head, one by one
        head, wanted = Head(*given), ctx.needs_input_grad[2:5]
        loss, ctx.made = _sweep(reduction, head, rows, wanted)
        ctx.save_for_backward(*head[:4])
        ctx.how = reduction, head.settings, rows, wanted
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("nll", grad)
        made, ctx.made = ctx.made, None  # returned now; a second backward computes them again
        if made is None:
            hidden, weight, bias, targets = ctx.saved_tensors
            reduction, settings, *rest = ctx.how
            _, made = _sweep(reduction, Head(hidden, weight, bias, targets, settings), *rest)
        if grad.is_cuda or grad.item() != 1.0:  # a GPU multiplies sooner than it answers
            made = [None if each is None else each.mul_(grad) for each in made]
        return None, None, *made, None, None


def swept_nll(reduction: str, head: Head, rows: int) -> Tensor:  # ()
    """The loss by the sweep of this module, ``rows_at_once`` being its rows."""
    return cast(Tensor, _OneSweep.apply(reduction, rows, *head))
