"""Standard dropout of the fused label encoder: how the bits are drawn and what they mean."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from drill.kernels import nll as module
from drill.kernels.label_encoder import DRAWS, KeptBits, draw_kept_bits
from drill.layers import DeepResidual

triton_runs = pytest.mark.skipif(not module.TRITON_INSTALLED, reason="Triton is not installed")
interpreted = pytest.mark.skipif(not module.INTERPRETED, reason="Triton runs on the GPU")
DEVICES = [
    pytest.param("cpu", marks=[triton_runs, interpreted]),
    pytest.param("cuda", marks=[triton_runs, pytest.mark.gpu]),
]
every_device = pytest.mark.parametrize("device", DEVICES)


def drawn(labels: int, width: int, depth: int, dropout: float, device: str) -> Tensor:
    """Masks (depth, V, d)."""
    torch.manual_seed(0)
    return draw_kept_bits(torch.empty(labels, width, device=device), depth, dropout).masks(depth)


def test_bits_of_all_maps_lie_side_by_side():
    bits = torch.tensor([[[0b10000001]], [[0b00000010]]], dtype=torch.uint8)
    masks = KeptBits(bits, dropped=3 * DRAWS // 4).masks(10).flatten()
    assert masks.tolist() == [4.0, 0, 0, 0, 0, 0, 0, 4.0, 0, 4.0]


@pytest.mark.parametrize("dropout", [0.1, 0.6, 0.95])
@every_device
def test_the_share_and_the_scale_are_those_of_dropout(dropout, device):
    masks = drawn(400, 100, 9, dropout, device)
    kept = masks != 0
    assert torch.allclose(masks[kept], torch.tensor(1 / (1 - dropout), device=device), rtol=2e-4)
    deviation = (dropout * (1 - dropout) / kept[0].numel()) ** 0.5
    shares = kept.flatten(1).float().mean(1)
    assert (shares - (1 - dropout)).abs().max() < 5 * deviation


@every_device
def test_maps_labels_and_columns_are_dropped_for_themselves(device):
    kept = (drawn(200, 200, 9, 0.5, device) != 0).double() - 0.5
    deviation = 0.25 / (200 * 200) ** 0.5
    for a, b in itertools.combinations(range(9), 2):
        assert (kept[a] * kept[b]).mean().abs() < 5 * deviation
    for shift in (1, 2, 16, 32, 64):  # neighbours, halves of a word, the same place of a tile
        for dimension in (1, 2):
            together = (kept * kept.roll(shift, dimension)).mean((1, 2))
            assert together.abs().max() < 5 * deviation


@every_device
def test_what_is_dropped_depends_on_map_label_and_column_alone(device):
    few, many = drawn(40, 30, 3, 0.5, device), drawn(100, 130, 9, 0.5, device)
    assert torch.equal(few, many[:3, :40, :30])


@pytest.mark.parametrize("dropout", [1e-7, 0.1, 0.6, 0.95, 0.9999, 0.999995])
@every_device
def test_any_dropout_is_near_keeps_the_mean_and_keeps_something(dropout, device):
    kept = draw_kept_bits(torch.empty(1, 1, device=device), 1, dropout)
    share = 1 - kept.dropped / DRAWS
    assert share > 0
    assert abs(share - (1 - dropout)) <= 2**-16
    assert share * kept.scale == pytest.approx(1, rel=1e-12)


@every_device
def test_dropout_near_one_drops_what_it_says(device):
    masks = drawn(800, 200, 9, 0.9999, device)
    kept = round(0.0001 * DRAWS)  # of DRAWS
    expected = masks.numel() * kept / DRAWS
    assert abs((masks != 0).sum().item() - expected) < 5 * expected**0.5
    assert masks.max() == DRAWS / kept


@every_device
def test_draws_are_fresh_and_follow_the_seed(device):
    E = torch.empty(20, 30, device=device)
    torch.manual_seed(1)
    first, second = (draw_kept_bits(E, 4, 0.5).bits for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(draw_kept_bits(E, 4, 0.5).bits, first)
    assert not torch.equal(first, second)


@every_device
def test_a_layer_with_standard_dropout_draws_bits_and_only_in_training(device):
    layer = DeepResidual(
        nn.Embedding(20, 16), depth=3, dropout=0.5, locked=False, encoder="triton"
    ).to(device)
    masks = layer.maps[0].draw_masks(layer.label_weight, layer.depth)
    assert isinstance(masks, KeptBits)
    assert masks.bits.shape == (1, 20, 16)
    assert not torch.equal(layer.labels(), layer.labels())
    layer.eval()
    assert torch.equal(layer.labels(), layer.labels())


@pytest.mark.gpu
@triton_runs
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
