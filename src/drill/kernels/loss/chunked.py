"""The bounded-memory plan behind ``impl="chunked"`` and ``impl="triton"``.

Forward iterates over chunks of labels and saves, per token, the log-sum-exp and the target's logit.
Backward iterates again, turns each chunk of logits into its gradient in place and multiplies it
twice. As many chunks of logits as fit into ``memory`` are saved for backward; the others are
computed again, which costs about one more product:

    everything fits:  3 products of N x V x k  (as plain PyTorch, with fewer passes)
    nothing fits:     4 products

A chunk has all tokens, so a label's gradient is complete after one product: it is summed in
float32 inside the product and rounded once. If the float32 sums of hidden's half-precision
gradient exceed their part of ``memory``, tokens are taken in blocks and labels get a sweep of
their own: 5 products, and no more memory.

Shapes: N tokens, V labels, k width; R rows of a block, C labels of a chunk.
"""

from typing import Any, cast

import torch
from torch import Tensor

from drill.kernels.loss.chunk_plan import Chunk, NllOptions, fits_in_one_chunk, plan
from drill.kernels.loss.passes import TorchEngine, empty_sums
from drill.kernels.loss.products import add_product, engine_named, padded_weight
from drill.kernels.loss.token_sweep import rows_at_once, swept_nll
from drill.kernels.runtime.autograd import require_plain_backward

_ROWS_FIRST = torch.contiguous_format

_EXACT = 'impl="reference"'


def forward_pass(
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    settings: NllOptions,
    keep: bool,
    saved: Tensor | None = None,  # room for the saved logits, flat
) -> tuple[Tensor, Tensor, Tensor]:  # losses (N,), lse (N,), saved logits (flat)
    ignore_index, smoothing, dtype, engine, _ = settings
    passes = engine_named(engine)
    labels = weight.shape[0]
    if keep and fits_in_one_chunk(hidden, labels, settings):
        return _whole_forward(hidden, weight, bias, targets, settings, saved)
    exact = torch.promote_types(dtype, torch.float32)
    tiles, saved_size, _ = plan(hidden, labels, settings, keep)
    if saved is None:
        saved = hidden.new_empty(saved_size, dtype=dtype)
    sums = empty_sums(hidden, exact, smoothing)
    spare: Tensor | None = None
    for tile in tiles:
        if tile.saved:
            logits = tile.view(saved[tile.saved])
        else:
            spare = _room(spare, tile, hidden, dtype)
            logits = tile.view(spare)
        part = None if bias is None else bias[tile.labels]
        part = _multiply(
            hidden[tile.rows].to(dtype), weight[tile.labels].to(dtype), part, logits, passes
        )
        first = tile.left == 0
        passes.reduce(logits, part, targets[tile.rows], tile.left, sums.rows(tile.rows), first)
    losses, lse = passes.finish(sums, targets, ignore_index, smoothing, labels)
    return losses, lse, saved


def backward_pass(
    scale: Tensor,  # (N,), gradient of each token's loss
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    lse: Tensor,  # (N,)
    saved: Tensor | None,  # flat; overwritten; None: compute all logits again
    settings: NllOptions,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    inputs = (scale, hidden, weight, bias, targets, lse)
    if fits_in_one_chunk(hidden, weight.shape[0], settings):
        return _whole_backward(*inputs, saved, settings, wanted)
    for_hidden, for_weight, for_bias = wanted
    hidden_grad = torch.empty_like(hidden, memory_format=_ROWS_FIRST) if for_hidden else None
    weight_grad = torch.empty_like(weight, memory_format=_ROWS_FIRST) if for_weight else None
    bias_grad = lse.new_zeros(weight.shape[0]) if for_bias else None
    tiles, _, by_label = plan(hidden, weight.shape[0], settings, keep=True)
    if by_label is None or weight.dtype == lse.dtype or not (for_weight or for_bias):
        _sweep(tiles, inputs, saved, settings, hidden_grad, weight_grad, bias_grad)
    else:
        # Sums over blocks of rows would need a float32 copy of weight's whole gradient, so the
        # labels get a sweep of their own, in chunks that hold all rows.
        if hidden_grad is not None:
            _sweep(tiles, inputs, saved, settings, hidden_grad, None, None)
        _sweep(by_label, inputs, None, settings, None, weight_grad, bias_grad)
    if bias_grad is not None and bias is not None:
        bias_grad = bias_grad.to(bias.dtype)
    return hidden_grad, weight_grad, bias_grad


def _sweep(
    tiles: list[Chunk],
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor],
    saved: Tensor | None,
    settings: NllOptions,
    hidden_grad: Tensor | None,  # (N, k), written
    weight_grad: Tensor | None,  # (V, k), written
    bias_grad: Tensor | None,  # (V,), added to
) -> None:
    """Differentiate every chunk and feed it to the gradients that are asked for."""
    scale, hidden, weight, bias, targets, lse = inputs
    ignore_index, smoothing, dtype, engine, _ = settings
    passes = engine_named(engine)
    to_hidden, to_weight = _Sum(hidden_grad, lse.dtype), _Sum(weight_grad, lse.dtype)
    spare: Tensor | None = None
    for tile in tiles:
        h, w = hidden[tile.rows].to(dtype), weight[tile.labels].to(dtype)
        part = None if bias is None else bias[tile.labels]
        if tile.saved and saved is not None:
            logits = tile.view(saved[tile.saved])
            part = None if _takes_bias(logits, passes) else part
        else:
            spare = _room(spare, tile, hidden, dtype)
            logits = tile.view(spare)
            part = _multiply(h, w, part, logits, passes)
        summed = passes.differentiate(
            logits,
            part,
            targets[tile.rows],
            tile.left,
            lse[tile.rows],
            scale[tile.rows],
            ignore_index,
            smoothing,
            weight.shape[0],
            summed=bias_grad is not None,
        )
        if bias_grad is not None and summed is not None:
            bias_grad[tile.labels] += summed
        last_column, last_block = tile.right == weight.shape[0], tile.bottom == hidden.shape[0]
        to_hidden.add(tile.rows, logits, w, first=tile.left == 0, last=last_column)
        to_weight.add(tile.labels, logits.t(), h, first=tile.top == 0, last=last_block)


def _takes_bias(logits: Tensor, passes: TorchEngine) -> bool:
    """Whether products add the bias on their way: plain PyTorch would need passes of its own.

    Not in half precision, where logits are rounded before the exact bias is added.
    """
    return type(passes) is TorchEngine and logits.dtype.itemsize >= 4


def _multiply(
    h: Tensor, w: Tensor, bias: Tensor | None, logits: Tensor, passes: TorchEngine
) -> Tensor | None:
    """logits = h w^T, with the bias where ``_takes_bias``; gives the bias that is still to add."""
    if bias is None or not _takes_bias(logits, passes):
        torch.mm(h, w.t(), out=logits)
        return bias
    torch.addmm(bias.to(logits.dtype), h, w.t(), out=logits)
    return None


class _Sum:
    """Rows of a gradient as a sum of products, in float32 until the last one is in."""

    def __init__(self, out: Tensor | None, exact: torch.dtype) -> None:
        self.out = out
        self.exact = exact
        self.wide: Tensor | None = None

    def add(self, rows: slice, a: Tensor, b: Tensor, first: bool, last: bool) -> None:
        if self.out is None:
            return
        out = self.out[rows]
        if (first and last) or out.dtype == self.exact:
            add_product(out, a, b, add=not first)
            return
        if self.wide is None or self.wide.shape != out.shape:
            self.wide = torch.empty_like(out, dtype=self.exact)
        add_product(self.wide, a, b, add=not first)
        if last:
            out.copy_(self.wide)


def _room(spare: Tensor | None, tile: Chunk, like: Tensor, dtype: torch.dtype) -> Tensor:
    if spare is None or spare.numel() < tile.size:
        return like.new_empty(tile.size, dtype=dtype)
    return spare


def _whole_forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    settings: NllOptions,
    saved: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``forward_pass`` with one chunk, written out: at this size every microsecond shows."""
    ignore_index, smoothing, dtype, engine, _ = settings
    w = padded_weight(weight, dtype)
    shape = hidden.shape[0], w.shape[0]
    logits = hidden.new_empty(shape, dtype=dtype) if saved is None else saved.view(shape)
    torch.mm(hidden.to(dtype), w.t(), out=logits)
    losses, lse = engine_named(engine).whole(
        logits[:, : weight.shape[0]], bias, targets, ignore_index, smoothing
    )
    return losses, lse, logits


def _whole_backward(
    scale: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    lse: Tensor,
    saved: Tensor | None,
    settings: NllOptions,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``backward_pass`` with one chunk. The padding of the logits is 0 and stays so."""
    ignore_index, smoothing, dtype, engine, _ = settings
    for_hidden, for_weight, for_bias = wanted
    labels = weight.shape[0]
    h, w = hidden.to(dtype), padded_weight(weight, dtype)
    logits = torch.mm(h, w.t()) if saved is None else saved.view(h.shape[0], w.shape[0])
    bias_grad = engine_named(engine).differentiate(
        logits[:, :labels],
        bias,
        targets,
        0,
        lse,
        scale,
        ignore_index,
        smoothing,
        labels,
        for_bias,
    )
    hidden_grad = weight_grad = None
    if for_hidden:
        hidden_grad = torch.empty_like(hidden, memory_format=_ROWS_FIRST)
        add_product(hidden_grad, logits, w, add=False)
    if for_weight:
        weight_grad = weight.new_empty(w.shape)
        add_product(weight_grad, logits.t(), h, add=False)
        weight_grad = weight_grad[:labels]
    if bias_grad is not None and bias is not None:
        bias_grad = bias_grad.to(bias.dtype)
    return hidden_grad, weight_grad, bias_grad


def _spread(grad: Tensor, share: Tensor | None, targets: Tensor, exact: torch.dtype) -> Tensor:
    """The gradient of each token's loss (N,), from that of the reduced loss."""
    scale = grad.to(exact)
    return (scale if share is None else scale * share).expand(targets.shape)


class _NLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        reduction: str,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: NllOptions,
    ) -> Tensor:
        losses, lse, saved = forward_pass(hidden, weight, bias, targets, settings, keep=True)
        passes = engine_named(settings.engine)
        loss, share = passes.gather(losses, targets, settings.ignore_index, reduction)
        ctx.save_for_backward(hidden, weight, bias, targets, lse, share)
        ctx.saved = saved
        ctx.settings = settings
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("nll", grad, _EXACT)
        saved, ctx.saved = ctx.saved, None  # overwritten now; a second backward computes them again
        hidden, weight, bias, targets, lse, share = ctx.saved_tensors
        scale = _spread(grad, share, targets, lse.dtype)
        wanted = ctx.needs_input_grad[1:4]
        grads = backward_pass(
            scale, hidden, weight, bias, targets, lse, saved, ctx.settings, wanted
        )
        return None, *grads, None, None


def chunked_nll(
    reduction: str,
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    settings: NllOptions,
) -> Tensor:  # () or, with reduction "none", (N,)
    """The loss by the plan of this module, or by ``token_sweep`` where that serves."""
    if not wants_gradients(hidden, weight, bias):
        with torch.cuda.device_of(hidden):
            losses, _, _ = forward_pass(hidden, weight, bias, targets, settings, keep=False)
            passes = engine_named(settings.engine)
            return passes.gather(losses, targets, settings.ignore_index, reduction)[0]
    rows = rows_at_once(reduction, hidden, weight, settings)
    with torch.cuda.device_of(hidden):  # where Triton launches
        if rows > 0:
            return swept_nll(reduction, hidden, weight, bias, targets, settings, rows)
        return cast(Tensor, _NLL.apply(reduction, hidden, weight, bias, targets, settings))


def wants_gradients(*tensors: Tensor | None) -> bool:
    """Whether anything will be differentiated, so that logits are worth keeping."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
