"""Negative log-likelihood of a mixture of softmaxes over one weight, trained in one sweep.

    nll_n = -log sum_e pi_ne softmax(c_ne W^T + b)[y_n]

A sweep takes all experts of some tokens at once. Then the experts' shares in a token,

    gamma_ne = pi_ne softmax(c_ne W^T + b)[y_n] / p(y_n),

are known as soon as its logits are, and so are all gradients but for the factor of backward (of a
target that is masked, by a bias of -inf, no expert has a share: the loss is inf, its gradients 0):

    P = m (softmax(C W^T + b) - onehot(y))    one row per token and expert, written over the logits
    r = gamma / m
    dC = r P W,   dW = P^T (r C),   db = P^T r,   d log pi = -gamma

Three products of N K x V x k, and one chunk of logits in memory at a time. The factors r
are rows' own, so they go to the small operands. Passes over logits leave m = 1. With m = sum
exp(l - l') for the logits l and some l' near their maximum, P is exp(l - l') but for the target's
place, which a product can write itself (``exp_gemm``).

Where a sweep cannot serve, the losses of the experts are asked of ``nll`` one by one and mixed.

Shapes: N tokens, K experts, V labels, k width; R = K times the tokens of a chunk.
"""

import functools
import logging
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from drill.kernels.loss.checks import IGNORE_INDEX, check_head
from drill.kernels.loss.chunk_plan import ROW_BYTES
from drill.kernels.loss.chunked import wants_gradients
from drill.kernels.loss.head import NllOptions
from drill.kernels.loss.nll import (
    DEFAULT_MEMORY,
    Implementation,
    Reduction,
    choose,
    nll,
    reduce_losses,
)
from drill.kernels.loss.products import add_product, engine_named, padded_weight
from drill.kernels.mixture.passes import ProductAndPass, TorchPasses, at_most, spans
from drill.kernels.runtime.autograd import require_plain_backward
from drill.kernels.runtime.dispatch import compute_dtype, log_once, require_triton
from drill.kernels.runtime.dropout_masks import multiply
from drill.kernels.runtime.padding import aligned

CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
"""Logits of a chunk at most. Every chunk reads and writes the sums of the labels' gradient, so
chunks are larger than where a chunk completes its labels."""
MIN_ROWS = 256
"""With fewer rows in a chunk, those sums would cost more than the products."""
WIDTH_ALIGN = {"cpu": 1, "cuda": 16}
"""Contexts and labels with their bias are padded to this width: GPUs read them in wide words."""

_NO_ROOM = "memory holds no chunk worth a sweep"

logger = logging.getLogger("drill")


def mixture_nll(
    log_prior: Tensor,  # (..., K)
    contexts: Tensor,  # (..., K, k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
    bias: Tensor | None = None,  # (V,)
    *,
    reduction: Reduction = "mean",
    ignore_index: int = IGNORE_INDEX,
    impl: Implementation = "auto",
    memory: int = DEFAULT_MEMORY,
) -> Tensor:
    """Negative log-likelihood of a mixture of K softmaxes.

    Args:
        log_prior: (..., K), log of the experts' weights.
        contexts: (..., K, k).
        weight: (V, k).
        targets: (...), int64. They are not checked: one out of range yields NaN for its token.
        bias: (V,).
        reduction: "mean" over the tokens that are not ignored, "sum" or "none".
        ignore_index: a target that is left out.
        impl: "reference", "chunked", "triton" or "auto".
        memory: most bytes that "chunked" and "triton" use beyond inputs and gradients.

    Returns:
        A scalar; with "none" a loss per token, (...).
    """
    check_head("nll", contexts, weight, bias)
    experts = contexts.shape[-2]
    dtype = compute_dtype(contexts)
    tokens = targets.numel()
    if impl == "auto":
        impl = choose(tokens * experts, weight.shape[0], dtype, contexts.device).impl
    if impl == "triton":
        require_triton(contexts.device, dtype)
    settings = NllOptions(ignore_index, 0.0, dtype, impl, memory)
    tensors = (log_prior, contexts, weight, bias)
    missing = _why_apart(reduction, impl, wants_gradients(*tensors))
    at_once = 0
    if missing is None:  # not asked of a call that sweeps nothing: it may compile a kernel
        at_once = tokens_at_once(tokens, experts, weight, bias, settings)
        missing = _NO_ROOM if at_once == 0 else None
    if missing is not None:
        if not torch.compiler.is_compiling():
            logger.debug("mixture_nll: the experts' losses apart (%s)", missing)
            if missing is _NO_ROOM:
                log_once("mixture_nll", "the experts' losses apart, slower", missing)
        return _apart(*tensors, targets, reduction, settings)
    logger.debug("mixture_nll: one sweep, %d of %d tokens at once", at_once, tokens)
    with torch.cuda.device_of(contexts):  # where Triton launches
        loss = _OneSweep.apply(
            reduction,
            log_prior.reshape(tokens, experts),
            contexts.reshape(tokens * experts, contexts.shape[-1]).contiguous(),
            weight,
            bias,
            targets.reshape(-1).contiguous(),
            settings,
            at_once,
        )
    return cast(Tensor, loss)


def _why_apart(reduction: str, impl: str, trained: bool) -> str | None:
    """Why one sweep cannot serve; None when it can, if memory lets it."""
    if torch.compiler.is_compiling():
        return "torch.compile takes the operator of nll"
    if impl == "reference":
        return 'impl="reference"'
    if not trained:
        return "nothing to differentiate"
    if reduction == "none":
        return "each token's gradient has a factor of its own, known only in backward"
    return None


def tokens_at_once(
    tokens: int, experts: int, weight: Tensor, bias: Tensor | None, settings: NllOptions
) -> int:
    """Tokens of a chunk so that all that a sweep makes fits into ``memory``; 0 if it cannot.

    A sweep keeps the unscaled gradients of contexts and labels until backward, which is one copy
    more than the gradients themselves.
    """
    labels, width = aligned(weight.shape[0], weight.device.type), weight.shape[1]
    columns = _columns(width, bias, settings.dtype)
    size = settings.dtype.itemsize
    exact = torch.promote_types(settings.dtype, torch.float32).itemsize
    # Plain PyTorch makes wider copies of a chunk as it works.
    logit = size + (0 if settings.engine == "triton" else 3 * exact)
    operands = 2 * size + (0 if settings.engine == "triton" else 2 * exact)
    direct = _direct_missing(settings.engine, weight, bias, settings.dtype) is None
    packed = size if direct else 0  # the labels again, for exp_gemm
    fixed = tokens * experts * (width * size + ROW_BYTES)
    fixed += labels * columns * (size + exact + packed)
    room = (settings.memory - fixed) // (experts * (labels * logit + columns * operands))
    least = -(-MIN_ROWS // experts)
    most = at_most(CHUNK_ELEMENTS, weight, experts * labels)
    at_once = min(max(least, most), room, max(1, tokens))
    if at_once < min(least, max(1, tokens)):
        return 0
    chunks = -(-max(1, tokens) // at_once)
    return -(-max(1, tokens) // chunks)  # all of one size, but the last


@functools.cache
def _passes(engine: str) -> TorchPasses:
    if engine == "triton":
        from drill.kernels.mixture.passes_triton import TritonPasses

        return TritonPasses()
    return TorchPasses()


class Swept(NamedTuple):
    """A sweep's losses, and its gradients before the factor that backward brings."""

    losses: Tensor  # (N,)
    gamma: Tensor  # (N, K)
    share: Tensor  # r, (N, K)
    contexts: Tensor | None  # P W, (N * K, k), before r
    labels: Tensor | None  # P^T r [C, 1], (V, columns asked for) in float32


def _sweep(
    log_prior: Tensor,  # (N, K)
    contexts: Tensor,  # (N * K, k)
    weight: Tensor,  # (V, k)
    bias: Tensor | None,  # (V,)
    targets: Tensor,  # (N,)
    settings: NllOptions,
    at_once: int,
    wanted: tuple[bool, bool, bool],  # contexts, weight, bias
) -> Swept:
    passes, dtype = _passes(settings.engine), settings.dtype
    exact = torch.promote_types(dtype, torch.float32)
    for_contexts, for_weight, for_bias = wanted
    tokens, experts = log_prior.shape
    width = weight.shape[1]
    w = _with_bias(weight, bias, dtype, passes)  # (V padded, k and the bias)
    columns = slice(0 if for_weight else width, w.shape[1] if for_bias else width)
    height = at_once * experts
    maker = _gradients_by(settings.engine, w, weight, bias, experts, height)
    logits = w.new_empty((height, w.shape[0]))
    expert_losses, row_factor = w.new_empty((2, height), dtype=exact)
    losses = contexts.new_empty(tokens, dtype=exact)
    gamma, share = contexts.new_empty((2, tokens, experts), dtype=exact)
    context_sums = contexts.new_empty(contexts.shape, dtype=dtype) if for_contexts else None
    label_sums = operand = None
    if for_weight or for_bias:
        label_sums = w.new_empty((w.shape[0], columns.stop - columns.start), dtype=exact)
        operand = w.new_empty((height, label_sums.shape[1]))
        if tokens == 0:
            label_sums.zero_()
    for some in spans(tokens, at_once):
        here = slice(some.start * experts, some.stop * experts)
        count = here.stop - here.start
        gradients = logits[:count]
        own = expert_losses[:count], row_factor[:count]
        rows = maker.logit_gradients(contexts[here], targets[some], gradients, *own)
        scaled = None if operand is None else operand[:count]
        passes.mix(
            log_prior[some],
            *own,
            targets[some],
            settings.ignore_index,
            rows[:, columns],
            scaled,
            losses[some],
            gamma[some],
            share[some],
        )
        if context_sums is not None:
            torch.mm(gradients, w[:, :width], out=context_sums[here])
        if label_sums is not None and scaled is not None:
            add_product(label_sums, gradients.t(), scaled, add=some.start > 0)
    return Swept(losses, gamma, share, context_sums, label_sums)


def _gradients_by(
    engine: str, w: Tensor, weight: Tensor, bias: Tensor | None, experts: int, height: int
) -> ProductAndPass:
    """The fastest maker of logits' gradients for chunks of up to ``height`` rows."""
    labels, columns = weight.shape[0], weight.shape[1] + _bias_columns(bias, w.dtype)
    missing = _direct_missing(engine, weight, bias, w.dtype)
    if missing is None:
        from drill.kernels.mixture.exp_gemm import Exponentials

        return cast(ProductAndPass, Exponentials(w, labels, columns, experts, height))
    if engine == "triton" and w.is_cuda and w.dtype == torch.bfloat16:
        log_once("mixture_nll", "a product and a pass over its logits", missing)
    room = None if bias is None else w.new_empty((height, w.shape[1]))
    return ProductAndPass(_passes(engine), w, labels, experts, room)


def _direct_missing(
    engine: str, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> str | None:
    """Why no product can write the exponentials of this dtype itself; None where one can."""
    if engine != "triton":  # nor can the module be imported without it
        return "it goes with Triton's passes"
    from drill.kernels.mixture.exp_gemm import exponentials_missing

    columns = weight.shape[1] + _bias_columns(bias, dtype)
    return exponentials_missing(weight.device, dtype, columns)


def _with_bias(
    weight: Tensor, bias: Tensor | None, dtype: torch.dtype, passes: TorchPasses
) -> Tensor:
    """[W, b] in the dtype of the products, padded; b as a sum of as many columns as it needs.

    So no pass has to read the bias. The logits are rounded after it, as those of a linear head are.
    """
    if bias is None:
        return padded_weight(weight, dtype)
    labels, width = weight.shape
    shape = aligned(labels, weight.device.type), _columns(width, bias, dtype)
    w = weight.new_empty(shape, dtype=dtype)
    passes.widen(weight, bias, _bias_columns(bias, dtype), w)
    return w


def _bias_columns(bias: Tensor | None, dtype: torch.dtype) -> int:
    """Columns of this dtype that hold all digits of the bias.

    A float32 has 24 bits of them. bfloat16 keeps 8, float16 and tf32 keep 11: three columns do.
    """
    if bias is None:
        return 0
    cut = bias.dtype == torch.float32 and _rounds_to_tf32(bias.device, dtype)
    return 1 if torch.promote_types(bias.dtype, dtype) == dtype and not cut else 3


def _rounds_to_tf32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products of this dtype read 11 bits of a float32, as allow_tf32 lets them."""
    # Of the settings the newer one: it knows of the older ones, which raise if it was used.
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return allowed and device.type == "cuda" and dtype == torch.float32


def _columns(width: int, bias: Tensor | None, dtype: torch.dtype) -> int:
    if bias is None:
        return width
    align = WIDTH_ALIGN.get(bias.device.type, WIDTH_ALIGN["cuda"])
    return -(-(width + _bias_columns(bias, dtype)) // align) * align


class _OneSweep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        reduction: str,
        log_prior: Tensor,
        contexts: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: NllOptions,
        at_once: int,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[2:5]
        swept = _sweep(log_prior, contexts, weight, bias, targets, settings, at_once, wanted)
        passes = engine_named(settings.engine)
        loss, per_token = passes.gather(swept.losses, targets, settings, reduction)
        ctx.save_for_backward(per_token, *swept[1:])
        ctx.labels, ctx.width = weight.shape
        ctx.dtypes = [None if x is None else x.dtype for x in (log_prior, contexts, weight, bias)]
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        require_plain_backward("nll", grad)
        per_token, gamma, share, context_sums, label_sums = ctx.saved_tensors
        for_prior, for_contexts, for_weight, for_bias = ctx.needs_input_grad[1:5]
        prior_dtype, context_dtype, weight_dtype, bias_dtype = ctx.dtypes
        factor = grad.to(gamma.dtype)
        factor = factor if per_token is None else factor * per_token
        grads: list[Tensor | None] = [None] * 4
        if for_prior:
            grads[0] = (gamma * -factor).to(prior_dtype)
        if for_contexts:
            grads[1] = multiply(context_sums, (share * factor).view(-1, 1), context_dtype)
        if for_weight:
            sums = label_sums[: ctx.labels, : ctx.width]
            grads[2] = multiply(sums, factor, weight_dtype)
        if for_bias:
            column = ctx.width if for_weight else 0
            grads[3] = (label_sums[: ctx.labels, column] * factor).to(bias_dtype)
        return None, *grads, None, None, None


def _apart(
    log_prior: Tensor,
    contexts: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    reduction: Reduction,
    settings: NllOptions,
) -> Tensor:
    """-logsumexp_e(log pi_e - nll_e), each expert's token a token of its own for ``nll``."""
    ignore_index = settings.ignore_index
    each = nll(
        contexts,
        weight,
        targets[..., None].expand(contexts.shape[:-1]),
        bias,
        reduction="none",
        ignore_index=ignore_index,
        impl=cast(Implementation, settings.engine),
        memory=settings.memory,
        check=False,
    )  # (..., K)
    scores = log_prior - each
    nobody = (scores == -torch.inf).all(-1)  # a masked target: the shares of it would be NaN
    total = torch.logsumexp(scores.masked_fill(nobody[..., None], 0.0), dim=-1)
    total = total.masked_fill(nobody, -torch.inf)
    losses = torch.where(targets == ignore_index, 0, -total)
    return reduce_losses(losses, targets, reduction, ignore_index)
