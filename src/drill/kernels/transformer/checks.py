"""What the kernels of sub-layers are given, against what they would read.

They go by the shape of x alone, so a shorter vector would be read past its end. On a GPU launches
wait for the host: nothing but shapes is compared.
"""

from torch import Tensor

from drill.kernels.transformer.autocast_linear import Weights


def check_vector(function: str, name: str, vector: Tensor, width: int) -> None:
    if vector.shape != (width,):
        raise ValueError(
            f"{function}: {name} has shape {tuple(vector.shape)} beside rows of width {width}; "
            f"give it shape ({width},)"
        )


def check_map(function: str, name: str, x_map: Weights, inputs: int, outputs: int | None) -> None:
    """``outputs`` is None where any number will do."""
    shape = x_map.weight.shape
    wanted = (shape[0] if outputs is None else outputs, inputs)
    if shape != wanted or x_map.half.shape != shape:
        raise ValueError(
            f"{function}: {name} maps rows of width {inputs} to width {wanted[0]}, but has shape "
            f"{tuple(shape)}, and in the dtype of products {tuple(x_map.half.shape)}; give it "
            f"shape {tuple(wanted)}"
        )
