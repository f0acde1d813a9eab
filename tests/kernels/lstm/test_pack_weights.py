"""Weights packed for the persistent LSTM kernel, and their gradients, by the interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from drill.kernels.lstm.persistent.pack_weights import finish, prepare
from drill.kernels.lstm.weights import Gradients, Weights
from tests.helpers.devices import DEVICE

HIDDEN, INPUTS, PADDED, WIDTH, STEPS, BATCH = 21, 10, 32, 16, 3, 5
GROUP = 3  # batch rows that are worked on together; the last two are another
SIZES = {"steps": STEPS, "width": WIDTH, "padded": PADDED, "group": GROUP, "flags": 7}
ROUNDING = 2.0**-7  # of bfloat16, which the interpreter cuts off


def weights():
    torch.manual_seed(0)
    rows = 4 * HIDDEN
    shapes = ((rows, INPUTS), (rows, HIDDEN), (rows,), (rows,))
    return Weights(*(torch.randn(shape, device=DEVICE) for shape in shapes))


def prepared(given, drop=0.0, seed=None):
    h, c = (torch.randn(BATCH, HIDDEN, device=DEVICE) for _ in "hc")
    return prepare(given, h, c, **SIZES, drop=drop, seed=seed, transposed=True), h, c


def by_unit(weight, width):
    """(4 hidden, i) by gate -> (4 padded, width) by unit, then gate; zeros beyond."""
    made = weight.new_zeros(PADDED, 4, width)
    made[:HIDDEN, :, : weight.shape[1]] = weight.view(4, HIDDEN, -1).transpose(0, 1)
    return made.view(4 * PADDED, width)


def test_weights_are_ordered_by_unit_and_padded():
    given = weights()
    made, h, c = prepared(given)
    torch.testing.assert_close(made.w_ih.float(), by_unit(given[0], WIDTH), rtol=ROUNDING, atol=0)
    torch.testing.assert_close(made.w_hh.float(), by_unit(given[1], PADDED), rtol=ROUNDING, atol=0)
    assert torch.equal(made.w_hh_t, made.w_hh.t())
    bias = (given[2] + given[3])[:, None]
    torch.testing.assert_close(made.bias.view(-1, 1), by_unit(bias, 1))
    torch.testing.assert_close(made.h[0, :, :HIDDEN].float(), h, rtol=ROUNDING, atol=0)
    assert torch.equal(made.c[0, :, :HIDDEN], c)
    assert not made.h[0, :, HIDDEN:].any()
    assert not made.c[0, :, HIDDEN:].any()


def test_the_exchange_begins_with_the_initial_state_by_groups():
    made, _, _ = prepared(weights())
    first = made.exchange[0].view(-1)
    place = 0
    for rows in made.h[0].split(GROUP):
        words = first[place : place + rows.numel()].view(PADDED // 8, len(rows), 8)
        assert torch.equal(words.transpose(0, 1).reshape(len(rows), PADDED), rows)
        place += rows.numel()
    assert place == len(first)
    assert (made.exchange[1:].view(torch.int16) == -1).all()
    assert (made.flags == -1).all()
    assert len(made.flags) == 7


def test_a_nan_that_looks_like_a_mark_is_made_another():
    given = weights()
    h = torch.zeros(BATCH, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    h.view(torch.int16)[1:3] = -1
    h[4] = torch.inf
    made = prepare(given, h, h.float(), **SIZES, drop=0.0, seed=None, transposed=False)
    assert made.h[0, 1:3, :HIDDEN].isnan().all()
    assert (made.exchange[0].view(torch.int16) != -1).all()
    assert torch.equal(made.h[0, [0, 3, 4], :HIDDEN], h[[0, 3, 4]])


def test_gradients_come_back_in_the_order_of_the_parameters():
    given = weights()
    d_bias = torch.randn(BATCH, PADDED, 4, device=DEVICE)
    by_gate = [given[0], given[1], d_bias.sum(0)[:HIDDEN].t().reshape(-1)]
    made = Gradients.empty(given, given[0].device)
    grads = by_unit(given[0], WIDTH), by_unit(given[1], PADDED), d_bias
    finish(made, *grads, drop=0.0, seed=None)
    assert torch.equal(made.w_ih, by_gate[0])
    assert torch.equal(made.w_hh, by_gate[1])
    torch.testing.assert_close(made.bias, by_gate[2])


@pytest.mark.parametrize("drop", [0.3, 0.5])
def test_weights_and_gradients_drop_the_same_entries_and_scale_the_others(drop):
    given = weights()
    seed = torch.tensor([1234567890123], device=DEVICE)
    made, _, _ = prepared(given, drop, seed)
    whole = by_unit(given[1], PADDED)
    ratio = (made.w_hh.float() / whole)[whole != 0]
    kept = ratio != 0
    torch.testing.assert_close(
        ratio[kept], torch.full_like(ratio[kept], 1 / (1 - drop)), rtol=ROUNDING, atol=0
    )
    share = 1 - kept.float().mean().item()
    assert abs(share - drop) < 4 * (drop * (1 - drop) / len(ratio)) ** 0.5
    assert torch.equal(made.w_hh_t, made.w_hh.t())
    ones = torch.ones(4 * PADDED, PADDED, device=DEVICE)
    meta = Weights(*(each.to("meta") for each in given))  # no value of theirs is read
    gradients = Gradients.empty(meta, ones.device)
    of_inputs, of_biases = ones[:, :WIDTH].contiguous(), ones.new_ones(BATCH, PADDED, 4)
    finish(gradients, of_inputs, ones, of_biases, drop=drop, seed=seed)
    back = gradients.w_hh
    mask = (made.w_hh != 0).view(PADDED, 4, PADDED)[:HIDDEN, :, :HIDDEN].transpose(0, 1)
    assert torch.equal(back != 0, mask.reshape(4 * HIDDEN, HIDDEN))
    torch.testing.assert_close(back.max().item(), 1 / (1 - drop))


def test_another_seed_drops_other_entries_and_gates_differ():
    given = weights()
    one, other = (prepared(given, 0.5, torch.tensor([s], device=DEVICE))[0].w_hh for s in (1, 2))
    assert ((one == 0) != (other == 0)).any()
    gates = (one != 0).view(PADDED, 4, PADDED)[:HIDDEN, :, :HIDDEN]
    for i in range(4):
        for j in range(i):
            assert not torch.equal(gates[:, i], gates[:, j])
