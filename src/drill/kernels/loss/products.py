"""Matrix products of the loss, and the passes between them by name."""

import torch
from torch import Tensor

from drill.kernels.loss.passes import TorchEngine
from drill.kernels.runtime.padding import aligned, with_padding


def engine_named(name: str) -> TorchEngine:
    """The passes for one call."""
    if name == "triton":
        from drill.kernels.loss.passes_triton import TritonEngine

        return TritonEngine()
    return TorchEngine()


def add_product(out: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """out (+)= a @ b, accumulated in out's dtype, which may be wider than the operands'."""
    if a.shape[1] == 0:
        if not add:
            out.zero_()
    elif out.dtype != a.dtype and out.is_cuda:
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=float(add), out=out)
    else:
        torch.addmm(out, a.to(out.dtype), b.to(out.dtype), beta=float(add), out=out)


def padded_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weight in the dtype of the products, with zero rows up to an aligned number of labels.

    cuBLAS takes a slow path, two to three times slower, when the number of labels is ragged.
    """
    labels, width = weight.shape
    rows = aligned(labels, weight.device.type)
    if rows == labels:
        return weight.to(dtype)
    whole = with_padding(weight, dtype)
    if whole is not None:
        return whole
    padded = weight.new_empty((rows, width), dtype=dtype)
    padded[:labels] = weight
    padded[labels:] = 0
    return padded
