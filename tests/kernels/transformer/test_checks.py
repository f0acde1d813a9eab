"""Shapes that the kernels would read past raise, for plain PyTorch too."""

import pytest
import torch

from drill.kernels.transformer.autocast_linear import cast_together
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import residual_norm
from tests.kernels.places import every_impl


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        ("y", {"y": (1, 16)}),
        ("y", {"y": (64, 8)}),
        ("weight", {"weight": (8,)}),
        ("bias", {"bias": (1, 16)}),
        ("y_bias", {"y_bias": (8,)}),
        ("y_map", {"y_map": (8, 16)}),
        ("y_map", {"y_map": (16, 4)}),
        ("y", {"y_map": (16, 4), "y": (1, 4)}),
    ],
    ids=str,
)
@every_impl
def test_shapes_that_do_not_fit_a_residual_raise(impl, device, wrong, given):
    usual = {"x": (64, 16), "y": (64, 16), "weight": (16,), "bias": (16,)}
    made = {name: torch.zeros(shape, device=device) for name, shape in (usual | given).items()}
    if "y_map" in made:
        (made["y_map"],) = cast_together([(made["y_map"], None)], torch.float32)
    with pytest.raises(ValueError, match=f"residual_norm: {wrong} "):
        residual_norm(**made, impl=impl)


@every_impl
def test_shapes_that_do_not_fit_a_relu_raise(impl, device):
    x, bias = torch.zeros(5, 16, device=device), torch.zeros(8, device=device)
    with pytest.raises(ValueError, match="relu_dropout: bias"):
        relu_dropout(x, bias, 0.0, impl=impl)
    for shape, wrong in (((8, 12), "x_map"), ((12, 16), "bias")):
        (weights,) = cast_together([(x.new_zeros(shape), None)], torch.float32)
        with pytest.raises(ValueError, match=f"relu_dropout: {wrong}"):
            relu_dropout(x, bias, 0.0, x_map=weights, impl=impl)
