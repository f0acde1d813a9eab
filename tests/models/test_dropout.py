"""The masks: what they share, what they scale, how often they are drawn."""

import pytest
import torch

from drill.kernels.runtime.dropout_masks import draw_mask, drop_entries
from drill.models.awd_lstm import locked_dropout, row_dropout
from tests.helpers.devices import cpu_and_cuda

V, T, B, H = 400, 6, 8, 50


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.65])
def test_a_mask_loses_its_share_and_keeps_the_mean(p, dtype):
    mask = draw_mask((200, 500), p, torch.empty(0, dtype=dtype))
    assert mask.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    scale = torch.tensor(1.0, dtype=mask.dtype) / (1.0 - p)
    torch.testing.assert_close(mask.unique(), torch.stack([torch.zeros_like(scale), scale]))
    assert abs((mask == 0).double().mean().item() - p) < 0.008  # five standard deviations
    rows = (mask == 0).double().mean(1)
    assert rows.max() - rows.min() < 0.2  # entries, neither rows nor columns


@cpu_and_cuda
@pytest.mark.parametrize("p", [0.1, 0.3, 0.4, 0.65])
def test_in_bfloat16_a_product_is_rounded_once(p, device):
    x = torch.randn(T, B, H).to(device, torch.bfloat16).requires_grad_()
    grad = torch.randn(T, B, H).to(device, torch.bfloat16)
    ids = torch.arange(T * B, device=device).view(T, B)
    weight = torch.randn(60, 80).to(device, torch.bfloat16)
    for given, dropped in (
        (x, locked_dropout(x, p)),
        (x, row_dropout(x, ids, T * B, p)),
        (weight, drop_entries(weight, p)),
    ):
        assert dropped.dtype == torch.bfloat16
        exact = (given.detach().double() / (1.0 - p)).bfloat16()
        kept = dropped != 0
        assert 0 < kept.sum() < kept.numel()
        assert torch.equal(dropped[kept], exact[kept])
    dropped = locked_dropout(x, p)
    (found,) = torch.autograd.grad(dropped, x, grad)
    exact = (grad.double() / (1.0 - p)).bfloat16()
    assert torch.equal(found, exact.where(dropped != 0, torch.zeros_like(exact)))


def test_row_dropout_equals_a_table_with_dropped_rows_and_leaves_the_table_alone():
    table = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(V, (T, B))
    torch.manual_seed(2)
    found = row_dropout(table[ids], ids, V, 0.5)
    torch.manual_seed(2)
    mask = draw_mask((V, 1), 0.5, table)
    assert torch.equal(found, (table * mask)[ids])
    (grad,) = torch.autograd.grad(found.sum(), table)
    (truth,) = torch.autograd.grad((table * mask)[ids].sum(), table)
    torch.testing.assert_close(grad, truth)


def test_without_dropout_the_tensor_itself_comes_back():
    x, ids = torch.ones(T, B, H), torch.zeros(T, B, dtype=torch.long)
    assert locked_dropout(x, 0.0) is x
    assert row_dropout(x, ids, V, 0.0) is x
    assert drop_entries(x, 0.0) is x
