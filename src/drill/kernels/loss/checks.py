"""Checks of the inputs of a loss: shapes, dtypes, devices and the range of the targets."""

import torch
from torch import Tensor

from drill.errors import require
from drill.kernels.runtime.checks import require_type
from drill.kernels.runtime.dispatch import autocast_on, must_not_wait

IGNORE_INDEX = -100
"""The target of tokens that have no loss, as in PyTorch."""

_AUTOCAST = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that autocast converts."""


def check_head(name: str, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless hidden (..., k), weight (V, k) and bias (V,) fit in shape, device and dtype."""
    check_states(name, hidden)
    shape = tuple(weight.shape)
    require(len(shape) == 2, name, "weight", "of shape (labels, width)", shape)
    if hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{name}: hidden {tuple(hidden.shape)} does not end in the width {weight.shape[1]} "
            f"of weight {tuple(weight.shape)}; project hidden to {weight.shape[1]} first"
        )
    _check_operand(name, hidden, "weight", weight)
    if bias is not None:
        if bias.dtype == torch.float64:
            _check_operand(name, hidden, "bias", bias)  # narrower ones are added to float32 logits
        _check_device(name, hidden, "bias", bias)
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"{name}: bias {tuple(bias.shape)} does not match the {weight.shape[0]} labels of "
                f"weight {tuple(weight.shape)}; give one bias per label, in a layer by "
                f"resize({weight.shape[0]})"
            )


def _check_operand(name: str, hidden: Tensor, what: str, tensor: Tensor) -> None:
    """Raise unless a product of the two can run: same device, and a dtype in common."""
    _check_device(name, hidden, what, tensor)
    if tensor.dtype == hidden.dtype:
        return
    pair = f"{name}: hidden is {hidden.dtype} but {what} {tensor.dtype}"
    left = next((d for d in (hidden.dtype, tensor.dtype) if d not in _AUTOCAST), None)
    if not autocast_on(hidden.device):
        autocast = ", or run under torch.autocast" if left is None else ""
        raise TypeError(f"{pair}; cast one with .to(){autocast}")
    if left is not None:
        as_it_is = f"autocast leaves {str(left).removeprefix('torch.')} as it is"
        raise TypeError(f"{pair}, and {as_it_is}; cast one with .to()")


def check_states(name: str, hidden: object) -> None:
    """Raise TypeError unless ``hidden`` is a floating-point tensor."""
    if isinstance(hidden, tuple):
        raise TypeError(
            f"{name}: hidden must be a tensor, got a tuple; a recurrent module returns (output, "
            "state): give the output"
        )
    if not isinstance(hidden, Tensor):
        raise TypeError(f"{name}: hidden must be a tensor, got {type(hidden).__name__}")
    floats = hidden.is_floating_point()
    require(floats, name, "hidden", "floating point, not ids", hidden.dtype, TypeError)


def check_targets(
    hidden: Tensor, targets: Tensor, labels: int, ignore_index: int, in_range: bool = True
) -> None:
    """Raise unless there is one integer target per token and, if asked, each one is a label."""
    require_type(targets, Tensor, "nll", "targets", "a tensor of label ids")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"nll: targets {tuple(targets.shape)} do not match hidden {tuple(hidden.shape)}; "
            f"give one target per token, shape {tuple(hidden.shape[:-1])}"
        )
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    require(whole, "nll", "targets", "integer label ids", targets.dtype, TypeError)
    _check_device("nll", hidden, "targets", targets)
    if in_range:
        check_range("nll", targets, labels, ignore_index)


def check_range(
    name: str, ids: Tensor, labels: int, ignore_index: int | None = None, what: str = "targets"
) -> None:
    """Raise IndexError unless every id is in [0, labels) or is ``ignore_index``."""
    if ids.numel() == 0 or must_not_wait(ids.device):
        return
    ids = ids.long()
    lowest, highest = torch.stack(torch.aminmax(ids)).tolist()
    if lowest >= 0 and highest < labels:
        return
    outside = (ids < 0) | (ids >= labels)
    exempt, hints = "", ["map it to a label"]
    if ignore_index is not None:
        outside &= ids != ignore_index
        exempt = f" (ignore_index is {ignore_index})"
    places = outside.nonzero()
    if len(places) == 0:
        return
    index = places[0].tolist()
    wrong = int(ids[tuple(index)])
    if wrong >= labels:
        hints.append(f"resize the layer to {int(ids[outside].max()) + 1} labels")
    elif ignore_index is not None:
        hints.append("name it as ignore_index")
    where = f" at {index}" if index else ""
    raise IndexError(
        f"{name}: {what} hold {wrong}{where}, but the labels are 0 to {labels - 1}{exempt}; "
        f"{', or '.join(hints)}"
    )


def _check_device(name: str, hidden: Tensor, what: str, tensor: Tensor) -> None:
    if tensor.device != hidden.device:
        raise ValueError(
            f"{name}: hidden is on {hidden.device} but {what} on {tensor.device}; move one with "
            ".to()"
        )
