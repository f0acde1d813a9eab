"""Standard dropout of the fused label encoder: how the bits are drawn and what they mean."""

import itertools

import pytest
import torch
from torch import Tensor

from drill.kernels.label_encoder.options import DRAWS, KeptBits, draw_kept_bits
from tests.helpers.devices import needs_triton, triton_devices

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


def test_bits_of_eight_columns_lie_side_by_side():
    bits = torch.tensor([[[0b10000001, 0b11111110]], [[0, 1]]], dtype=torch.uint8)
    masks = as_masks(KeptBits(bits, dropped=3 * DRAWS // 4), width=10)
    assert masks.shape == (2, 1, 10)
    assert masks[0, 0].tolist() == [4.0, 0, 0, 0, 0, 0, 0, 4.0, 0, 4.0]
    assert masks[1, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 4.0, 0]


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


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four random words by 7 rounds of philox 4x32 (Salmon et al., 2011)."""
    a, b, c, d = counter
    low, high = key % 2**32, key >> 32
    for turn in range(7):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = second >> 32 ^ b ^ (low + turn * 0x9E3779B9) % 2**32, second % 2**32
        c, d = first >> 32 ^ d ^ (high + turn * 0xBB67AE85) % 2**32, first % 2**32
    return a, b, c, d


@pytest.mark.parametrize("dropped", [DRAWS // 3, DRAWS - 2000])
@triton_devices
def test_numbers_are_those_of_philox(device, dropped):
    from drill.kernels.label_encoder.dropout_bits import draw

    key = 0x123456789ABCDEF
    seed = torch.tensor([key], device=device)
    masks = as_masks(KeptBits(draw(5, 19, 6, dropped, seed), dropped), 19)
    for map_, label, column in itertools.product(range(6), range(5), range(19)):
        word = philox(key, (column // 2, label, map_ // 4, 0))[map_ % 4]
        number = word >> 16 if column % 2 else word % 2**16
        assert (masks[map_, label, column] != 0) == (number >= dropped)


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
    draw_kept_bits(E, 4, 0.5)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bits = draw_kept_bits(E, 4, 0.5).bits
    graph.replay()
    first = bits.clone()
    graph.replay()
    assert not torch.equal(first, bits)
