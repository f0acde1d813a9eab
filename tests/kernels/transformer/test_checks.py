"""Shapes that kernels of sub-layers would read past are refused, and so by plain PyTorch."""

import pytest
import torch

from drill.kernels.transformer.autocast_linear import cast_together
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import residual_norm
from tests.kernels.places import every_impl


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": (1, 16)}, r"y has shape \(1, 16\) beside x of shape \(64, 16\); .* \(64, 16\)"),
        ({"y": (64, 8)}, r"y has shape \(64, 8\) beside x of shape \(64, 16\)"),
        ({"weight": (8,)}, r"weight has shape \(8,\) beside rows of width 16; .* shape \(16,\)"),
        ({"bias": (1, 16)}, r"bias has shape \(1, 16\) beside rows of width 16"),
        ({"y_bias": (8,)}, r"y_bias has shape \(8,\) beside rows of width 16"),
        ({"y_map": (8, 16)}, r"y_map maps .* 16 to width 16, but has shape \(8, 16\)"),
        ({"y_map": (16, 4)}, r"y_map maps .* 16 to width 16, but has shape \(16, 4\)"),
        ({"y_map": (16, 4), "y": (1, 4)}, r"y has shape \(1, 4\) .*; give it shape \(64, 4\)"),
    ],
    ids=str,
)
@every_impl
def test_shapes_that_do_not_fit_a_residual_are_named(impl, device, given, message):
    usual = {"x": (64, 16), "y": (64, 16), "weight": (16,), "bias": (16,)}
    made = {name: torch.zeros(shape, device=device) for name, shape in (usual | given).items()}
    if "y_map" in made:
        (made["y_map"],) = cast_together([(made["y_map"], None)], torch.float32)
    with pytest.raises(ValueError, match="residual_norm: " + message):
        residual_norm(**made, impl=impl)


@every_impl
def test_shapes_that_do_not_fit_a_relu_are_named(impl, device):
    x, bias, matrix = (torch.zeros(shape, device=device) for shape in ((5, 16), (8,), (8, 12)))
    with pytest.raises(ValueError, match=r"relu_dropout: bias has shape \(8,\) .* width 16"):
        relu_dropout(x, bias, 0.0, impl=impl)
    (weights,) = cast_together([(matrix, None)], torch.float32)
    with pytest.raises(ValueError, match=r"relu_dropout: x_map .* 16 to width 8, .* \(8, 12\)"):
        relu_dropout(x, bias, 0.0, x_map=weights, impl=impl)
    (weights,) = cast_together([(matrix.new_zeros(12, 16), None)], torch.float32)
    with pytest.raises(ValueError, match=r"relu_dropout: bias has shape \(8,\) .* width 12"):
        relu_dropout(x, bias, 0.0, x_map=weights, impl=impl)
