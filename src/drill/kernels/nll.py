"""Negative log-likelihood of a linear head, without the N x V logits in memory.

    nll_n = -log softmax(h_n W^T + b)[y_n]

Shapes: N tokens, V labels, k the width shared by ``hidden`` and ``weight``.

Three implementations give the same answer and are chosen by ``impl=``:

``reference``  plain PyTorch, the logits in memory: the twin every other one is tested against
``chunked``    pure PyTorch on any device, memory bounded whatever N and V are
``triton``     the same plan with two Triton kernels between the matrix products (CUDA)
``auto``       the one of these that :func:`choose` names, and says why
"""

import importlib.util
import logging
import math
import os
from typing import Literal, NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Implementation = Literal["auto", "reference", "chunked", "triton"]
Reduction = Literal["none", "mean", "sum"]

_IMPLEMENTATIONS = get_args(Implementation)
_REDUCTIONS = get_args(Reduction)

DEFAULT_MEMORY = 2**30
"""Bytes that ``chunked`` and ``triton`` may use beyond inputs and gradients."""

_SMALL_LOGITS = 4 * 2**20
"""Below this many bytes of logits nothing is gained by chunks."""

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch for running its kernels on a CPU, read once as Triton does."""

logger = logging.getLogger("drill")


class Choice(NamedTuple):
    """What ``impl="auto"`` resolves to, and why."""

    impl: Literal["reference", "chunked", "triton"]
    reason: str


def nll(
    hidden: Tensor,  # (..., k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (...)
    bias: Tensor | None = None,  # (V,)
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    impl: Implementation = "auto",
    memory: int = DEFAULT_MEMORY,
    check: bool = True,
) -> Tensor:
    """Mean, sum or per-token cross entropy of ``softmax(hidden @ weight.T + bias)``.

    Equals ``F.cross_entropy(F.linear(hidden, weight, bias), targets, ...)`` with two differences:
    the result is never of lower precision than float32, and a batch in which every target is
    ignored gives 0 with zero gradients instead of NaN.

    Under autocast the products run in autocast's dtype while gradients come back in the dtype of
    the parameters; half-precision label gradients are accumulated in float32.

    ``check`` looks whether every target is a label, which on a GPU waits for the device. Without
    it (and inside ``torch.compile`` or a CUDA graph, which cannot wait) a target out of range
    yields NaN for its token and touches no foreign memory.
    """
    check_settings(reduction, label_smoothing, impl, memory, ignore_index)
    check_head("nll", hidden, weight, bias)
    check_targets(hidden, targets, weight.shape[0], ignore_index, check)
    rows = hidden.reshape(-1, hidden.shape[-1])
    targets = targets.long()  # small integers would wrap around ignore_index
    flat = targets.reshape(-1).contiguous()
    dtype = compute_dtype(hidden)
    if impl == "auto":
        impl = choose(rows.shape[0], weight.shape[0], dtype, hidden.device).impl
    if impl == "reference":
        losses = _reference(rows, weight, flat, bias, ignore_index, label_smoothing)
        return reduce_losses(losses.view(targets.shape), targets, reduction, ignore_index)
    if impl == "triton":
        require_triton(hidden.device, dtype)
    from drill.kernels.nll_chunked import chunked_nll
    from drill.kernels.nll_plan import Settings

    settings = Settings(ignore_index, label_smoothing, dtype, impl, memory)
    bias = None if bias is None else bias.contiguous()
    if torch.compiler.is_compiling():
        from drill.kernels.nll_compiled import compiled_nll

        losses = compiled_nll(rows, weight, bias, flat, settings)
        return reduce_losses(losses.view(targets.shape), targets, reduction, ignore_index)
    loss = chunked_nll(reduction, rows, weight, bias, flat, settings)
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
    return choice


def refuse_second_derivatives(name: str, mend: str) -> None:
    """Raise in a backward that is itself recorded: the fast paths are differentiable once."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name}: the fast path has no second derivatives; use {mend}")


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype of the matrix products: autocast's where it is on, else that of ``hidden``."""
    if hidden.dtype != torch.float64 and autocast_on(hidden.device):
        return torch.get_autocast_dtype(hidden.device.type)
    return hidden.dtype


def autocast_on(device: torch.device) -> bool:
    """Whether autocast is on for this device; torch has no answer for the meta device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def triton_missing(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the Triton kernels cannot serve this device and dtype; None when they can."""
    if not TRITON_INSTALLED:
        return "Triton is not installed"
    if device.type != "cuda" and not INTERPRETED:
        return f"Triton needs a CUDA device and the tensors are on {device.type}"
    if dtype == torch.float64:
        return "the Triton kernels are written for float32, bfloat16 and float16, not float64"
    return None


def require_triton(device: torch.device, dtype: torch.dtype) -> None:
    missing = triton_missing(device, dtype)
    if missing is not None:
        raise ValueError(f'impl="triton": {missing}; use impl="chunked" or impl="auto"')


def check_range(
    name: str, ids: Tensor, labels: int, ignore_index: int | None = None, what: str = "targets"
) -> None:
    """Raise IndexError unless every id is in [0, labels) or is ``ignore_index``."""
    if ids.numel() == 0 or must_not_wait(ids.device):
        return
    lowest, highest = _extremes(ids, ignore_index)
    if lowest >= 0 and highest < labels:
        return
    ids = ids.long()
    outside = (ids < 0) | (ids >= labels)
    exempt, mends = "", ["map it to a label"]
    if ignore_index is not None:
        outside &= ids != ignore_index
        exempt = f" (ignore_index is {ignore_index})"
    place = outside.nonzero()[0].tolist()  # only now: it waits for the device again
    wrong = int(ids[tuple(place)])
    if wrong >= labels:
        mends.append(f"resize the layer to {highest + 1} labels")
    elif ignore_index is not None:
        mends.append("name it as ignore_index")
    where = f" at {place}" if place else ""
    raise IndexError(
        f"{name}: {what} hold {wrong}{where}, but the labels are 0 to {labels - 1}{exempt}; "
        f"{', or '.join(mends)}"
    )


def _extremes(ids: Tensor, ignore_index: int | None) -> list[int]:
    if ids.is_cuda and TRITON_INSTALLED:
        from drill.kernels.nll_triton import extremes  # one launch instead of four

        return extremes(ids, ignore_index)
    ids = ids.long()
    kept = ids if ignore_index is None else torch.where(ids == ignore_index, 0, ids)
    return cast(list[int], torch.stack(torch.aminmax(kept)).tolist())


def must_not_wait(device: torch.device) -> bool:
    """Whether reading a value back from the device is impossible here."""
    if device.type == "meta" or torch.compiler.is_compiling():
        return True
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def check_settings(
    reduction: str, label_smoothing: float, impl: str, memory: int, ignore_index: int
) -> None:
    """Raise for settings that no loss has."""
    for name, value in (("memory", memory), ("ignore_index", ignore_index)):
        if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
            raise TypeError(f"nll: {name} is a whole number, not {value!r}")
    if reduction not in _REDUCTIONS:
        known = ", ".join(_REDUCTIONS)
        raise ValueError(f"nll: reduction is one of {known}, not {reduction!r}")
    if impl not in _IMPLEMENTATIONS:
        known = ", ".join(_IMPLEMENTATIONS)
        raise ValueError(f"nll: impl is one of {known}, not {impl!r}")
    if not 0.0 <= label_smoothing <= 1.0 or math.isnan(label_smoothing):
        raise ValueError(f"nll: label_smoothing lies in [0, 1], not {label_smoothing}")
    if memory < 1:
        raise ValueError(f"nll: memory is a positive number of bytes, not {memory}")


def check_head(name: str, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless hidden (..., k), weight (V, k) and bias (V,) fit in shape, device and dtype."""
    check_states(name, hidden)
    if weight.dim() != 2:
        raise ValueError(f"{name}: weight is (labels, width), not of shape {tuple(weight.shape)}")
    if hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name}: hidden {tuple(hidden.shape)} does not end in the width {weight.shape[1]} "
            f"of weight {tuple(weight.shape)}; project hidden to {weight.shape[1]} first"
        )
    check_operand(name, hidden, "weight", weight)
    if bias is not None:
        if bias.dtype == torch.float64:
            check_operand(name, hidden, "bias", bias)  # narrower ones are added to wider logits
        _check_device(name, hidden, "bias", bias)
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"{name}: bias {tuple(bias.shape)} does not match the {weight.shape[0]} labels of "
                f"weight {tuple(weight.shape)}; give one bias per label, in a layer by "
                f"resize({weight.shape[0]})"
            )


def check_operand(
    name: str, hidden: Tensor, what: str, tensor: Tensor, called: str = "hidden"
) -> None:
    """Raise unless a product of the two can run: device and dtype."""
    _check_device(name, hidden, what, tensor, called)
    if tensor.dtype == hidden.dtype:
        return
    pair = f"{name}: {called} is {hidden.dtype} but {what} {tensor.dtype}"
    exact = torch.float64 in (hidden.dtype, tensor.dtype)
    if not autocast_on(hidden.device):
        autocast = "" if exact else ", or run under torch.autocast"
        raise TypeError(f"{pair}; cast one with .to(){autocast}")
    if exact:
        raise TypeError(f"{pair}, and autocast leaves float64 as it is; cast one with .to()")


def check_states(name: str, hidden: object) -> None:
    """Raise TypeError unless ``hidden`` is a floating-point tensor."""
    if isinstance(hidden, tuple):
        raise TypeError(
            f"{name}: hidden is a tensor, not a tuple; a recurrent module returns (output, state): "
            "give the output"
        )
    if not isinstance(hidden, Tensor):
        raise TypeError(f"{name}: hidden is a tensor, not {type(hidden).__name__}")
    if not hidden.is_floating_point():
        raise TypeError(
            f"{name}: hidden is floating point, not {hidden.dtype}; give encoder outputs, not ids"
        )


def check_targets(
    hidden: Tensor, targets: Tensor, labels: int, ignore_index: int, in_range: bool = True
) -> None:
    """Raise unless there is one integer target per token and, if asked, each one is a label."""
    if not isinstance(targets, Tensor):
        raise TypeError(f"nll: targets are a tensor of label ids, not {type(targets).__name__}")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"nll: targets {tuple(targets.shape)} do not match hidden {tuple(hidden.shape)}; "
            f"give one target per token, shape {tuple(hidden.shape[:-1])}"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(
            f"nll: targets are integer label ids, not {targets.dtype}; convert with .long()"
        )
    _check_device("nll", hidden, "targets", targets)
    if in_range:
        check_range("nll", targets, labels, ignore_index)


def _check_device(
    name: str, hidden: Tensor, what: str, tensor: Tensor, called: str = "hidden"
) -> None:
    if tensor.device != hidden.device:
        raise ValueError(
            f"{name}: {called} is on {hidden.device} but {what} on {tensor.device}; "
            "move one with .to()"
        )


def _reference(
    hidden: Tensor,  # (N, k)
    weight: Tensor,  # (V, k)
    targets: Tensor,  # (N,)
    bias: Tensor | None,  # (V,)
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:  # (N,)
    logits = F.linear(hidden, weight)  # (N, V) <- the tensor the other implementations avoid
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        logits = logits + bias
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
