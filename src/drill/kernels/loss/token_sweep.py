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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from drill.kernels.loss.chunk_plan import MIN_BLOCK, ROW_BYTES, NllOptions, fits_in_one_chunk
from drill.kernels.loss.passes import target_column
from drill.kernels.loss.products import add_product, engine_named, padded_weight
from drill.kernels.runtime.autograd import require_plain_backward
from drill.kernels.runtime.padding import aligned

logger = logging.getLogger("drill")

BLOCK_ELEMENTS = 2**21
"""Logits worked on at once by a CPU."""
FEWEST_ROWS = 64
"""With fewer tokens each product of a CPU would read all labels for little work."""

_ROWS_FIRST = torch.contiguous_format


def rows_at_once(reduction: str, hidden: Tensor, weight: Tensor, settings: NllOptions) -> int:
    """Tokens of a block; 0 if one sweep over the tokens cannot compute this loss."""
    tokens = hidden.shape[0]
    missing = _why_not(reduction, hidden, weight, settings)
    if missing is None:
        on_cpu = hidden.device.type == "cpu"
        room = (_cpu_room if on_cpu else _gpu_room)(hidden, weight, settings)
        fewest = FEWEST_ROWS if on_cpu else MIN_BLOCK
        most = max(fewest, BLOCK_ELEMENTS // weight.shape[0]) if on_cpu else tokens
        rows = min(tokens, room, most)
        if rows >= min(tokens, fewest):
            if not on_cpu:  # blocks of one size
                rows = -(-tokens // -(-tokens // rows))
            logger.debug("nll: one sweep, %d of %d tokens at once", rows, tokens)
            return rows
        missing = f"{settings.memory} bytes hold the logits of {max(0, room)} tokens"
    logger.debug("nll: labels in chunks (%s)", missing)
    return 0


def _why_not(reduction: str, hidden: Tensor, weight: Tensor, settings: NllOptions) -> str | None:
    if hidden.shape[0] == 0:
        return "no tokens"
    if reduction == "none":
        return "each token's gradient has a factor of its own, known only in backward"
    if hidden.device.type == "cpu":
        if settings.engine != "chunked":
            return "Triton's kernels are for a GPU"
        if settings.dtype.itemsize < 4 or not settings.dtype == hidden.dtype == weight.dtype:
            return "products in half precision need extra sums in float32"
        return None
    if settings.dtype == torch.float16:
        return "gradients in float16 vanish unless backward scales them"
    if fits_in_one_chunk(hidden, weight.shape[0], settings):
        return "all logits fit"
    return None


def _cpu_room(hidden: Tensor, weight: Tensor, settings: NllOptions) -> int:
    """Rows that fit: besides its logits, each has a copy of its hidden state."""
    each = sum(weight.shape) * settings.dtype.itemsize
    return (settings.memory - ROW_BYTES * hidden.shape[0]) // each


def _gpu_room(hidden: Tensor, weight: Tensor, settings: NllOptions) -> int:
    """Rows that fit next to the labels in the dtype of the products and float32 sums for them."""
    dtype, size = settings.dtype, settings.dtype.itemsize
    (labels, width), padded = weight.shape, aligned(weight.shape[0], weight.device.type)
    once = ROW_BYTES * hidden.shape[0]
    once += padded * width * size if dtype != weight.dtype or padded != labels else 0
    once += padded * width * 4 if weight.dtype.itemsize < 4 else 0
    copies = 0 if settings.engine == "triton" else 12  # plain PyTorch's, in float32
    each = padded * (size + copies) + width * (size if dtype != hidden.dtype else 0)
    return (settings.memory - once) // each


class Swept(NamedTuple):
    """The loss, and the gradients that were asked for."""

    loss: Tensor  # ()
    hidden: Tensor | None  # (N, k)
    weight: Tensor | None  # (V, k)
    bias: Tensor | None  # (V,)


def _sweep(
    reduction: str,
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    settings: NllOptions,
    rows: int,
    wanted: tuple[bool, bool, bool],
) -> Swept:
    dtype, exact = settings.dtype, torch.promote_types(settings.dtype, torch.float32)
    labels, w = weight.shape[0], padded_weight(weight, dtype)
    counted = targets != settings.ignore_index
    share = torch.ones((), dtype=exact, device=hidden.device)  # of a token in the loss
    if reduction == "mean":
        share /= counted.sum().clamp(min=1)
    for_hidden, for_weight, for_bias = wanted
    hidden_grad = torch.empty_like(hidden, memory_format=_ROWS_FIRST) if for_hidden else None
    weight_grad = weight.new_empty(w.shape, dtype=exact) if for_weight else None
    bias_grad = weight.new_zeros(labels, dtype=exact) if for_bias else None
    losses = hidden.new_empty(targets.shape, dtype=exact)
    differentiate = _cpu_block if hidden.device.type == "cpu" else _gpu_block
    block = hidden.new_empty(rows, w.shape[0], dtype=dtype)
    for top in range(0, hidden.shape[0], rows):
        here = slice(top, top + rows)
        h = hidden[here].to(dtype)  # (R, k)
        logits = block[: len(h)]
        torch.mm(h, w.t(), out=logits)
        own = logits[:, :labels]
        losses[here], factor = differentiate(own, bias, targets[here], share, settings, bias_grad)
        if hidden_grad is not None:
            add_product(hidden_grad[here], logits, w, add=False)
            if factor is not None:
                hidden_grad[here] *= factor
        if weight_grad is not None:
            add_product(weight_grad, logits.t(), h if factor is None else h * factor, add=top > 0)
    if weight_grad is not None:
        weight_grad = weight_grad[:labels].to(weight.dtype)
    if bias_grad is not None and bias is not None:
        bias_grad = bias_grad.to(bias.dtype)
    loss = torch.where(counted, losses * share, 0).sum()
    return Swept(loss, hidden_grad, weight_grad, bias_grad)


def _gpu_block(
    logits: Tensor,  # (R, V), become their gradients
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (R,)
    share: Tensor,  # ()
    settings: NllOptions,
    bias_grad: Tensor | None,  # (V,), added to
) -> tuple[Tensor, None]:
    """The losses (R,) and logits' gradients by the passes of ``chunked``."""
    ignore_index, smoothing, _, engine, _ = settings
    passes, (rows, labels) = engine_named(engine), logits.shape
    losses, lse = passes.whole(logits, bias, targets, ignore_index, smoothing)
    summed = passes.differentiate(
        logits,
        bias,
        targets,
        0,
        lse,
        share.expand(rows),
        ignore_index,
        smoothing,
        labels,
        bias_grad is not None,
    )
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
    mass = logits.sub_(peak).exp_().sum(1, keepdim=True)
    losses = torch.where(known, mass.log() + peak - hit, torch.nan)[:, 0]
    # From here on logits are m times their gradients.
    if smoothing:
        logits.sub_(mass * (smoothing / labels))
    logits.scatter_add_(1, column, torch.where(known, mass * (smoothing - 1), 0))
    factor = torch.where(targets == settings.ignore_index, 0, share)[:, None] / mass
    if bias_grad is not None:
        bias_grad.addmv_(logits.t(), factor[:, 0])
    return losses, factor


class _OneSweep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        reduction: str,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: NllOptions,
        rows: int,
    ) -> Tensor:
        ctx.how = (settings, rows, ctx.needs_input_grad[1:4])
        loss, *ctx.made = _sweep(reduction, hidden, weight, bias, targets, *ctx.how)
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.reduction = reduction
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("nll", grad, 'impl="reference"')
        made, ctx.made = ctx.made, None  # returned now; a second backward computes them again
        if made is None:
            _, *made = _sweep(ctx.reduction, *ctx.saved_tensors, *ctx.how)
        if grad.is_cuda or grad.item() != 1.0:  # a GPU multiplies sooner than it answers
            made = [None if each is None else each.mul_(grad) for each in made]
        return None, *made, None, None, None


def swept_nll(
    reduction: str,
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    settings: NllOptions,
    rows: int,
) -> Tensor:  # ()
    """The loss by the sweep of this module, ``rows_at_once`` being its rows."""
    made = _OneSweep.apply(reduction, hidden, weight, bias, targets, settings, rows)
    return cast(Tensor, made)
