"""Standard dropout of the fused label encoder: how the bits are drawn and what they mean."""

import pytest
import torch
from torch import Tensor

from drill.kernels.label_encoder.options import DRAWS, KeptBits, draw_kept_bits
from tests.helpers.devices import captured, needs_triton, triton_devices

pytestmark = [needs_triton, pytest.mark.usefixtures("few_programs")]


def as_masks(kept: KeptBits, width: int) -> Tensor:
    """Float masks (depth, V, d)."""
    shifts = torch.arange(8, dtype=torch.uint8, device=kept.bits.device)
    bits = (kept.bits[..., None] >> shifts & 1).flatten(2)[..., :width]
    return bits.float() * kept.scale


def drawn(labels: int, width: int, depth: int, dropout: float, device: str) -> Tensor:
    """Masks (depth, V, d)."""
    torch.manual_seed(0)
    kept = draw_kept_bits(torch.empty(labels, width, device=device), depth, dropout)
    return as_masks(kept, width)


@pytest.mark.parametrize("dropout", [0.1, 0.6, 0.95])
@triton_devices
def test_the_share_and_the_scale_are_those_of_dropout(dropout, device):
    masks = drawn(400, 100, 9, dropout, device)
    kept = masks != 0
    assert torch.allclose(masks[kept], torch.tensor(1 / (1 - dropout), device=device), rtol=2e-4)
    deviation = (dropout * (1 - dropout) / kept[0].numel()) ** 0.5
    shares = kept.flatten(1).float().mean(1)
    assert (shares - (1 - dropout)).abs().max() < 5 * deviation


@triton_devices
def test_what_is_dropped_depends_on_map_label_and_column_alone(device):
    few, many = drawn(40, 30, 3, 0.5, device), drawn(100, 130, 9, 0.5, device)
    assert torch.equal(few, many[:3, :40, :30])


@pytest.mark.parametrize("dropout", [1e-7, 0.1, 0.6, 0.95, 0.9999, 0.999995])
@triton_devices
def test_any_dropout_is_near_keeps_the_mean_and_keeps_something(dropout, device):
    kept = draw_kept_bits(torch.empty(1, 1, device=device), 1, dropout)
    share = 1 - kept.dropped / DRAWS
    assert share > 0
    assert abs(share - (1 - dropout)) <= 2**-16
    assert share * kept.scale == pytest.approx(1, rel=1e-12)


@triton_devices
def test_entries_are_dropped_independently(device):
    labels, columns, maps = 400, 96, 8
    kept = (drawn(labels, columns, maps, 0.5, device) != 0).float()
    each = kept.transpose(0, 1).flatten(1)  # a row for each label
    for rows in (each, each.t()):
        correlation = torch.corrcoef(rows).fill_diagonal_(0.0)
        assert correlation.abs().max() < 6 / rows.shape[1] ** 0.5


@triton_devices
def test_draws_are_fresh_and_follow_the_seed(device):
    E = torch.empty(20, 30, device=device)
    torch.manual_seed(1)
    first, second = (draw_kept_bits(E, 4, 0.5).bits for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(draw_kept_bits(E, 4, 0.5).bits, first)
    assert not torch.equal(first, second)


@pytest.mark.gpu
def test_replays_of_a_cuda_graph_draw_afresh():
    E = torch.empty(50, 64, device="cuda")
    graph, bits = captured(lambda: draw_kept_bits(E, 4, 0.5).bits)
    graph.replay()
    first = bits.clone()
    graph.replay()
    assert not torch.equal(first, bits)
