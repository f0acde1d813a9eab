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

from drill.kernels.loss.chunk_plan import Chunk, fits_in_one_chunk, plan
from drill.kernels.loss.head import Gradients, Head, Wanted, new_gradients
from drill.kernels.loss.passes import TorchEngine, empty_sums
from drill.kernels.loss.products import add_product, engine_named, padded_weight
from drill.kernels.loss.token_sweep import rows_at_once, swept_nll
from drill.kernels.runtime.autograd import require_plain_backward


def forward_pass(
    head: Head,
    keep: bool,
    saved: Tensor | None = None,  # room for the saved logits, flat
) -> tuple[Tensor, Tensor, Tensor]:  # losses (N,), lse (N,), saved logits (flat)
    if keep and fits_in_one_chunk(head):
        return _whole_forward(head, saved)
    hidden, weight, bias, targets, settings = head
    passes, dtype = engine_named(settings.engine), settings.dtype
    tiles, saved_size, _ = plan(head, keep)
    if saved is None:
        saved = hidden.new_empty(saved_size, dtype=dtype)
    sums = empty_sums(hidden, head.exact, settings.smoothing)
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
        own = targets[tile.rows]
        passes.reduce(logits, part, own, tile.left, sums.rows(tile.rows), settings, first)
    losses, lse = passes.finish(sums, targets, settings, head.labels)
    return losses, lse, saved


def backward_pass(
    head: Head,
    scale: Tensor,  # (N,), gradient of each token's loss
    lse: Tensor,  # (N,)
    saved: Tensor | None,  # flat; overwritten; None: compute all logits again
    wanted: Wanted,
) -> Gradients:
    if fits_in_one_chunk(head):
        return _whole_backward(head, scale, lse, saved, wanted)
    dtype = head.weight.dtype
    grads = new_gradients(head, wanted, head.labels, dtype)
    tiles, _, by_label = plan(head, keep=True)
    if by_label is None or dtype == lse.dtype or not any(wanted[1:]):
        _sweep(tiles, head, scale, lse, saved, grads)
    else:
        # Sums over blocks of rows would need a float32 copy of weight's whole gradient, so the
        # labels get a sweep of their own, in chunks that hold all rows.
        if grads.hidden is not None:
            _sweep(tiles, head, scale, lse, saved, Gradients(grads.hidden, None, None))
        _sweep(by_label, head, scale, lse, None, grads._replace(hidden=None))
    return grads.finished(head)


def _sweep(
    tiles: list[Chunk],
    head: Head,
    scale: Tensor,
    lse: Tensor,
    saved: Tensor | None,
    grads: Gradients,  # written; that of the bias is added to
) -> None:
    """Differentiate every chunk and feed it to the gradients that are asked for."""
    hidden, weight, bias, targets, settings = head
    passes, dtype, labels = engine_named(settings.engine), settings.dtype, head.labels
    to_hidden, to_weight = _Sum(grads.hidden, lse.dtype), _Sum(grads.weight, lse.dtype)
    for_bias = grads.bias is not None
    spare: Tensor | None = None
    for tile in tiles:
        rows, left = tile.rows, tile.left
        h, w = hidden[rows].to(dtype), weight[tile.labels].to(dtype)
        part = None if bias is None else bias[tile.labels]
        if tile.saved and saved is not None:
            logits = tile.view(saved[tile.saved])
            part = None if _takes_bias(logits, passes) else part
        else:
            spare = _room(spare, tile, hidden, dtype)
            logits = tile.view(spare)
            part = _multiply(h, w, part, logits, passes)
        summed = passes.differentiate(
            logits, part, targets[rows], left, lse[rows], scale[rows], settings, labels, for_bias
        )
        if grads.bias is not None and summed is not None:
            grads.bias[tile.labels] += summed
        last_column, last_block = tile.right == labels, tile.bottom == hidden.shape[0]
        to_hidden.add(rows, logits, w, first=left == 0, last=last_column)
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


def _whole_forward(head: Head, saved: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """``forward_pass`` with one chunk, written out: at this size every microsecond shows."""
    hidden, weight, bias, targets, settings = head
    w = padded_weight(weight, settings.dtype)
    shape = hidden.shape[0], w.shape[0]
    logits = hidden.new_empty(shape, dtype=w.dtype) if saved is None else saved.view(shape)
    torch.mm(hidden.to(w.dtype), w.t(), out=logits)
    own = logits[:, : head.labels]
    losses, lse = engine_named(settings.engine).whole(own, bias, targets, settings)
    return losses, lse, logits


def _whole_backward(
    head: Head, scale: Tensor, lse: Tensor, saved: Tensor | None, wanted: Wanted
) -> Gradients:
    """``backward_pass`` with one chunk. The padding of the logits is 0 and stays so."""
    hidden, weight, bias, targets, settings = head
    w = padded_weight(weight, settings.dtype)
    h = hidden.to(w.dtype)
    logits = torch.mm(h, w.t()) if saved is None else saved.view(h.shape[0], w.shape[0])
    own, passes = logits[:, : head.labels], engine_named(settings.engine)
    bias_grad = passes.differentiate(
        own, bias, targets, 0, lse, scale, settings, head.labels, summed=wanted[2]
    )
    grads = new_gradients(head, (*wanted[:2], False), w.shape[0], weight.dtype)
    if grads.hidden is not None:
        add_product(grads.hidden, logits, w, add=False)
    if grads.weight is not None:
        add_product(grads.weight, logits.t(), h, add=False)
    return grads._replace(bias=bias_grad).finished(head)


def _spread(grad: Tensor, share: Tensor | None, targets: Tensor, exact: torch.dtype) -> Tensor:
    """The gradient of each token's loss (N,), from that of the reduced loss."""
    scale = grad.to(exact)
    return (scale if share is None else scale * share).expand(targets.shape)


class _NLL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reduction: str, *given: Any) -> Tensor:  # a Head, one by one
        head = Head(*given)
        losses, lse, ctx.saved = forward_pass(head, keep=True)
        passes = engine_named(head.settings.engine)
        loss, share = passes.gather(losses, head.targets, head.settings, reduction)
        ctx.save_for_backward(*head[:4], lse, share)
        ctx.settings = head.settings
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("nll", grad)
        saved, ctx.saved = ctx.saved, None  # overwritten now; a second backward computes them again
        hidden, weight, bias, targets, lse, share = ctx.saved_tensors
        head = Head(hidden, weight, bias, targets, ctx.settings)
        scale = _spread(grad, share, targets, lse.dtype)
        return None, *backward_pass(head, scale, lse, saved, ctx.needs_input_grad[1:4]), None, None


def chunked_nll(reduction: str, head: Head) -> Tensor:  # () or, with reduction "none", (N,)
    """The loss by the plan of this module, or by ``token_sweep`` where that serves."""
    if not wants_gradients(*head[:3]):
        with torch.cuda.device_of(head.hidden):
            losses, _, _ = forward_pass(head, keep=False)
            passes = engine_named(head.settings.engine)
            return passes.gather(losses, head.targets, head.settings, reduction)[0]
    rows = rows_at_once(reduction, head)
    with torch.cuda.device_of(head.hidden):  # where Triton launches
        if rows > 0:
            return swept_nll(reduction, head, rows)
        return cast(Tensor, _NLL.apply(reduction, *head))


def wants_gradients(*tensors: Tensor | None) -> bool:
    """Whether anything will be differentiated, so that logits are worth keeping."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
