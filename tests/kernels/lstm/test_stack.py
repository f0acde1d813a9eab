"""Several LSTM layers in one call: what they compute, and what runs during their recurrences."""

from contextlib import nullcontext

import pytest
import torch

from drill.kernels.lstm.lstm import lstm, lstm_stack
from drill.kernels.lstm.persistent import recurrence, stack_backward, stack_forward
from drill.kernels.lstm.persistent.layout import layout
from drill.kernels.lstm.persistent.stack import persistent_layers
from drill.kernels.runtime import streams
from drill.kernels.runtime.dropout_masks import draw_mask
from tests.kernels.lstm.problems import (
    differentiate,
    errors,
    flat,
    one_by_one,
    same_bits,
    set_interleave,
    solved,
    stack,
)


def test_a_stack_is_its_layers_one_by_one():
    *given, wanted = stack([6, 8, 5], 4, 3)
    found, truth = lstm_stack(*given, "reference"), one_by_one(*given, "cudnn")
    torch.testing.assert_close(flat(found), flat(truth), rtol=1e-10, atol=1e-12)
    grads = (solved(each, given, wanted)[5:] for each in (found, truth))
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)


def test_what_is_between_layers_is_dropped_for_all_steps():
    *given, _ = stack([6, 8, 5], 4, 3)
    x, states, weights = given
    torch.manual_seed(7)
    output, ends = lstm_stack(x, states, weights, "reference", between=0.5)
    torch.manual_seed(7)
    mask = draw_mask((1, 3, 8), 0.5, x)
    assert 0 < int((mask == 0).sum()) < mask.numel()
    middle, *first_end = lstm(x, *states[0], weights[0], "reference")
    truth, *last_end = lstm(middle * mask, *states[1], weights[1], "reference")
    assert torch.equal(output, truth)
    assert torch.equal(ends[0][0], first_end[0])  # what is carried was not dropped
    assert torch.equal(ends[1][1], last_end[1])


@pytest.mark.parametrize("impl", ["auto", "reference", "persistent"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([(6, 8), (5, 7)], r"W_ih of layer 2 .* \(28, 8\), as wide as layer 1, got \(28, 5\)"),
        ([(4, 8), (8, 7)], r"W_ih of layer 1 .* \(32, 6\), as wide as x, got \(32, 4\)"),
    ],
)
def test_no_unit_is_passed_over_in_silence(sizes, message, impl):
    made = [stack(each, 4, 3) for each in sizes]
    weights, states = [each[2][0] for each in made], [each[1][0] for each in made]
    with pytest.raises(ValueError, match=message):
        lstm_stack(torch.zeros(4, 3, 6, dtype=torch.float64), states, weights, impl)


def forward_by_step(shape, made, gates, span):
    """What ``forward.cu`` writes."""
    by_unit = gates.view(-1, *made.h.shape[1:], 4)  # (T, B, p, 4)
    for t in range(span.begin, span.end):
        gate = by_unit[t]
        gate += made.bias + (made.h[t].float() @ made.w_hh.float().t()).view_as(gate)
        i, f, g, o = gate.unbind(-1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        made.c[t + 1] = f * made.c[t] + i * g
        made.h[t + 1] = o * made.c[t + 1].tanh()
        gate.copy_(torch.stack([i, f, g, o], -1))


def backward_by_step(shape, w_hh_t, gates, c, dout, marks, made, span):
    """What ``lstm_backward.cu`` writes."""
    assert (marks.words == recurrence.EMPTY).all()
    dgates, dbias = made.of_steps.view(*dout.shape, 4), made.of_bias.view(*dout.shape[1:], 4)
    if span.end == len(dout):
        dbias.zero_()
    for t in reversed(range(span.begin, span.end)):
        i, f, g, o = gates.view_as(dgates)[t].unbind(-1)
        d, tanh = dout[t].float(), c[t + 1].tanh()
        if t + 1 < len(dout):
            d += dgates[t + 1].flatten(1).float() @ w_hh_t.float().t()
        dc = marks.dc + d * o * (1 - tanh * tanh)
        by_gate = dc * g * i * (1 - i), dc * c[t] * f * (1 - f), dc * i * (1 - g * g)
        dgates[t] = torch.stack([*by_gate, d * tanh * o * (1 - o)], -1)
        dbias += dgates[t]
        marks.dc.copy_(dc * f)


class Stream:
    device_index, cuda_stream, device = 0, 0, "cpu"

    def __init__(self, device=None): ...
    def wait_stream(self, other): ...
    def wait_event(self, event): ...
    def record_event(self): ...


@pytest.fixture
def without_gpu(monkeypatch):
    """Recurrences step by step, streams that are none; Triton interprets."""
    pytest.importorskip("triton")

    def product(a, b, out_dtype=None, out=None):
        found = a.float() @ b.float()
        return found if out is None else out.copy_(found)

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(recurrence, "_cluster_count", lambda index: 16)
    monkeypatch.setattr(recurrence, "SHORTEST_TOGETHER", 20)
    monkeypatch.setattr(recurrence, "SMALLEST_TOGETHER", 1)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(streams, "_others", lambda *first: (Stream(), Stream()))
    monkeypatch.setattr(stack_forward, "layout_on", lambda device, hidden: layout(hidden, 16))
    monkeypatch.setattr(stack_forward, "run_forward", forward_by_step)
    monkeypatch.setattr(stack_backward, "run_backward", backward_by_step)


def persistent(x, states, weights, **options):
    output, ends = persistent_layers(x, states, weights, **options)
    return output[..., : weights[-1].w_hh.shape[1]], ends


@pytest.mark.parametrize(
    ("sizes", "steps", "interleave"),
    [
        *(([10, 21, 37, 12], 23, interleave) for interleave in (False, True)),
        *(([12, 20, 17], steps, True) for steps in (5, 23)),
        ([16, 33], 5, False),
    ],
)
def test_what_is_around_the_recurrences_is_that_of_the_layers(
    sizes, steps, interleave, without_gpu, monkeypatch
):
    set_interleave(monkeypatch, interleave)
    *exact, wanted = stack(sizes, steps, 3)
    *given, _ = stack(sizes, steps, 3, dtype=torch.float32)
    truth, found = one_by_one(*exact, "reference"), persistent(*given)
    found = solved(found, given, [w.float() for w in wanted])
    assert max(errors(found, solved(truth, exact, wanted))) < 2e-2


@pytest.mark.parametrize("interleave", [False, True])
def test_gradients_are_of_what_was_dropped(interleave, without_gpu, monkeypatch):
    set_interleave(monkeypatch, interleave)
    *given, _ = stack([10, 21, 37, 12], 20, 3, dtype=torch.float32)
    output, _ = persistent(*given, drop=0.5, between=0.4)
    leaves = [each.w_hh for each in given[2]] + [each.w_ih for each in given[2]]
    found = torch.autograd.grad(output.float().sum(), leaves)
    zeros = [float((each == 0).float().mean()) for each in found]
    assert all(0.4 < share < 0.6 for share in zeros[:3])
    assert zeros[3] == 0.0  # the input is whole


def test_two_layers_interleave_where_that_is_recorded(without_gpu, monkeypatch):
    layouts, x = [layout(each, 16) for each in (100, 400)], torch.empty(20, 3, 50)

    def found(*shapes, steps=20):
        return recurrence.can_interleave(shapes, x[:steps])

    monkeypatch.setattr(recurrence, "recorded", lambda: False)
    assert not found(*layouts)
    monkeypatch.setattr(recurrence, "recorded", lambda: True)
    assert found(*layouts)
    assert not found(layouts[0])
    assert not found(*layouts, steps=19)
    assert not found(layout(1150, 16), layout(1150, 16))  # no room for both
    assert found(layout(1150, 16), layout(400, 16))
    monkeypatch.setattr(recurrence, "SMALLEST_TOGETHER", 577)
    assert not found(*layouts)


def test_what_loads_products_has_the_bits_of_what_does_not(without_gpu, monkeypatch, calls_of):
    set_interleave(monkeypatch, False)
    monkeypatch.setattr(recurrence, "_loaded", set())
    *given, wanted = stack([10, 21, 37, 12], 23, 3, dtype=torch.float32)
    products = calls_of(torch, "mm")

    def run():
        products.clear()
        found = solved(persistent(*given), given, wanted)
        return found, sorted(len(call.arguments[0]) for call in products)

    (first, loading), (second, plain) = run(), run()
    assert same_bits(first, second)
    assert plain.count(69) == 6  # all steps of three sequences, up and down
    pieces = 3 * [9, 15, 15, 15, 15]  # inputs of two layers, what the upper one hands down
    assert loading == sorted([*plain, *pieces])


def test_backward_goes_no_lower_than_what_asks(without_gpu, calls_of):
    x, states, weights, wanted = stack([10, 12, 20, 12], 5, 3, dtype=torch.float32, trained=False)
    padded, recurrences = [16, 32, 16], calls_of(stack_backward, "run_backward")

    def gone_through():
        return [call.arguments[0].hidden for call in recurrences]

    def found(*leaves):
        """With gradients of all results, those of layers below among them."""
        for leaf in leaves:
            leaf.requires_grad_()
        recurrences.clear()
        made = differentiate(flat(persistent(x, states, weights)), wanted, leaves)
        for leaf in leaves:
            leaf.requires_grad_(False)
        return made

    everything = found(*weights[0], *weights[1], *weights[2], *states[1], x)
    assert gone_through() == padded[::-1]
    for leaves, at, lowest in (
        (weights[2], 8, 2),
        (weights[1], 4, 1),
        (states[1], 12, 1),
        (weights[0], 0, 0),
        ((x,), 14, 0),
    ):
        assert all(map(torch.equal, found(*leaves), everything[at:]))
        assert gone_through() == padded[lowest:][::-1]


@pytest.mark.parametrize("nobody_asks", [torch.no_grad, torch.inference_mode])
def test_nothing_is_kept_where_no_gradient_is_wanted(
    nobody_asks, without_gpu, monkeypatch, calls_of
):
    *given, _ = stack([10, 21, 37, 12], 5, 3, dtype=torch.float32)
    calls, kept = calls_of(stack_forward, "run_forward"), []

    def keep(ctx, *tensors):
        kept.extend(tensors)

    monkeypatch.setattr(torch.autograd.function.FunctionCtx, "save_for_backward", keep)
    with nobody_asks():
        output, _ = persistent(*given)
    assert [call.arguments[1].w_hh_t for call in calls] == [None] * 3
    assert not kept
    trained, _ = persistent(*given)
    assert torch.equal(output, trained)
    assert all(call.arguments[1].w_hh_t is not None for call in calls[3:])
    assert len(kept) == 3 * len(stack_forward.SavedLayer._fields)
