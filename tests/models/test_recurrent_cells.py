"""Recurrent encoders beyond AWD-LSTM: their equations step by step, their masks, their states."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from drill.errors import SettingsError
from drill.kernels.lstm.lstm import lstm as run_lstm
from drill.kernels.lstm.weights import Weights
from drill.language_modeling.build import dry_run
from drill.layers import TiedSoftmax
from drill.models import AwdLstm, RecurrentHighway, awd_lstm, recurrent_highway
from drill.models.awd_lstm import sequence_row_dropout
from drill.models.encoder import Encoder
from drill.models.language_model import LanguageModel, augmented_loss
from drill.training.optim import Sgd
from drill.training.settings import recipe
from tests.helpers.devices import cpu_and_cuda
from tests.language_modeling import test_step as steps
from tests.models.lstm_reference import OFF, reference_lstm

V, d, H, T, B = 31, 5, 7, 6, 3
NO_DROPOUT = {f"dropout_{site}": 0.0 for site in ("embedding", "input", "state", "output")}


def embedding() -> nn.Embedding:
    return nn.Embedding(V, d, dtype=torch.float64)


def lstms(**options) -> AwdLstm:
    return AwdLstm(embedding(), H, 2, **{**OFF, **options})


def highways(**options) -> RecurrentHighway:
    given = {**NO_DROPOUT, "init_range": 0.5, **options}
    return RecurrentHighway(embedding(), H, depth=3, **given)


ENCODERS = {
    "awd": lstms,
    "variational": lambda: lstms(dropout_state=0.5, dropout_masks="variational"),
    "skip": lambda: lstms(skip_connections=True, cap_input_gate=True, dropout_state=0.4),
    "highway": lambda: highways(dropout_state=0.3),
}
every_encoder = pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)


def text(length: int = T) -> Tensor:
    return torch.randint(V, (length, B))


@pytest.fixture
def masks(monkeypatch) -> list[Tensor]:
    """All masks that encoders draw."""
    drawn, draw = [], awd_lstm.draw_mask

    def record(*arguments) -> Tensor:
        drawn.append(draw(*arguments))
        return drawn[-1]

    for module in (awd_lstm, recurrent_highway):
        monkeypatch.setattr(module, "draw_mask", record)
    return drawn


# -- the equations --------------------------------------------------------------------------------


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_lstm_steps_are_the_equations(masked, capped):
    lstm, x = nn.LSTM(d, H).double(), torch.randn(T, B, d, dtype=torch.float64)
    mask = torch.tensor([0.0, 2.0], dtype=torch.float64)[torch.randint(2, (B, H))]
    mask = mask if masked else None
    h = c = torch.zeros(1, B, H, dtype=torch.float64)
    weights = Weights(*lstm.all_weights[0])
    options = {"mask": mask, "cap_input_gate": capped}
    output, h_n, c_n = run_lstm(x, h, c, weights, "reference", **options)
    expected = reference_lstm(x, lstm, mask, capped)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)
    assert torch.equal(h_n[0], output[-1])
    assert not capped or c_n.abs().max() <= 1.0
    if not (masked or capped):
        torch.testing.assert_close((h_n, c_n), lstm(x)[1])
    given = [each.detach()[..., :2].clone().requires_grad_() for each in (x[:3], h, c)]
    small = [each.detach().clone().requires_grad_() for each in nn.LSTM(2, 2).double().parameters()]
    options["mask"] = mask[:, :2] if masked else None
    assert gradcheck(
        lambda x, h, c, *w: run_lstm(x, h, c, Weights(*w), "reference", **options), (*given, *small)
    )


def highway_by_hand(net: RecurrentHighway, x: Tensor, mask: Tensor | None) -> Tensor:
    (W_h, W_t), s, steps = net.input.weight.chunk(2), x.new_zeros(B, H), []
    for x_t in x:
        for i, layer in enumerate(net.highways):
            (R_h, R_t), (b_h, b_t) = layer.weight.chunk(2), layer.bias.chunk(2)
            read = s if mask is None else s * mask
            h, t = read @ R_h.T + b_h, read @ R_t.T + b_t
            if i == 0:
                h, t = h + x_t @ W_h.T, t + x_t @ W_t.T
            h, t = torch.tanh(h), torch.sigmoid(t)
            s = h * t + s * (1 - t)
        steps.append(s)
    return torch.stack(steps)


def test_highway_network_is_the_equation():
    net, ids = highways(), text()
    raw = net(ids).raw
    torch.testing.assert_close(raw, highway_by_hand(net, net.embedding(ids), None))
    names, values = zip(*net.named_parameters(), strict=True)
    given = [value.detach().clone().requires_grad_() for value in values]

    def output(*parameters: Tensor) -> Tensor:
        changed = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(net, changed, ids[:2]).output

    assert gradcheck(output, given, fast_mode=True)


def test_skip_connections_sum_the_layers_and_project():
    net, ids = lstms(skip_connections=True), text()
    x, total = net.embedding(ids), 0.0
    for each in net.lstms:
        x, _ = each(x)
        total = total + x
    encoded = net.eval()(ids)
    torch.testing.assert_close(encoded.output, total @ net.projection.weight.T)
    gram = net.projection.weight @ net.projection.weight.T
    torch.testing.assert_close(gram, torch.eye(d, dtype=torch.float64))
    wide = AwdLstm(embedding(), d, 2, skip_connections=True)
    assert wide.projection is None
    net.train()
    net.dropout_output = 0.5
    encoded = net(ids)
    torch.testing.assert_close(encoded.raw, total @ net.projection.weight.T)
    assert not torch.equal(encoded.output, encoded.raw)


# -- masks ----------------------------------------------------------------------------------------


def test_one_mask_of_the_state_for_all_steps_of_a_layer(masks):
    net, ids = lstms(dropout_state=0.5), text()
    output = net(ids).output
    assert [each.shape for each in masks] == [(B, H), (B, d)]
    x = net.embedding(ids)
    for each, mask in zip(net.lstms, masks, strict=True):
        x = reference_lstm(x, each, mask)
    torch.testing.assert_close(output, x)


def test_one_mask_of_the_state_for_all_highway_layers(masks):
    net, ids = highways(dropout_state=0.5), text()
    raw = net(ids).raw
    assert [each.shape for each in masks] == [(B, H)]
    torch.testing.assert_close(raw, highway_by_hand(net, net.embedding(ids), masks[0]))


@pytest.mark.parametrize(
    ("kind", "shapes"),  # of words, inputs, between the layers, outputs
    [
        ("locked", [(V, 1), (1, B, d), (1, B, H), (1, B, d)]),
        ("variational", [(V, B), (1, B, d), (1, B, H), (1, B, d)]),
        ("standard", [(V, 1), (T, B, d), (T, B, H), (T, B, d)]),
    ],
)
def test_masks_by_kind(masks, monkeypatch, kind, shapes):
    monkeypatch.setattr("drill.kernels.lstm.lstm.draw_mask", awd_lstm.draw_mask)
    sites = {"embedding": 0.1, "input": 0.2, "hidden": 0.3, "output": 0.4}
    net = lstms(dropout_masks=kind, **{f"dropout_{site}": p for site, p in sites.items()})
    net(text())
    assert [tuple(each.shape) for each in masks] == shapes
    assert [1 - 1 / each.max().item() for each in masks] == pytest.approx([*sites.values()])


def test_words_are_dropped_from_each_sequence():
    ids = torch.arange(V).repeat(2, 1).t().repeat(3, 1)  # every word three times in two sequences
    mask = sequence_row_dropout(torch.ones(*ids.shape, d), ids, V, 0.5)
    assert torch.equal(mask, mask[:V].repeat(3, 1, 1))
    assert torch.equal(mask, mask[..., :1].expand_as(mask))
    assert not torch.equal(mask[:, 0], mask[:, 1])
    assert set(mask.unique().tolist()) == {0.0, 2.0}


# -- states ---------------------------------------------------------------------------------------


@every_encoder
def test_a_text_in_two_segments_is_the_text_in_one(encoder):
    net, ids = encoder().eval(), text()
    whole, first = net(ids), net(ids[:2])
    second = net(ids[2:], first.state)
    torch.testing.assert_close(torch.cat([first.output, second.output]), whole.output)
    torch.testing.assert_close(second.state, whole.state)
    assert not torch.allclose(net(ids[2:]).output, second.output)  # the state matters
    with net.without_dropout():
        torch.testing.assert_close(net(ids).output, whole.output)
    assert not net.training


@every_encoder
def test_states_are_reset_and_detached(encoder):
    net = encoder()
    labels = nn.Embedding(V, net.output_size, dtype=torch.float64)
    model = LanguageModel(net, TiedSoftmax(labels))
    model.encoder.eval()
    ids, targets = text(), text()
    state = model.loss(ids, targets).state
    assert not any(each.requires_grad for layer in state for each in layer)
    fresh, carried, reset = (
        model.loss(ids, targets, given, state_reset=p).nll
        for given, p in ((None, 0.0), (state, 0.0), (state, 1.0 - 1e-9))
    )
    assert torch.equal(fresh, reset)
    assert not torch.equal(fresh, carried)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when inductor is imported
@pytest.mark.filterwarnings(r"ignore:The \.grad attribute")  # of dynamo
def test_compiled_steps_train_as_others():
    net, ids = ENCODERS["highway"](), text()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        output = net(ids).output
        found.append((output, *torch.autograd.grad(output.square().sum(), [*net.parameters()])))
        net.compile()
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:The \.grad attribute")
@cpu_and_cuda
@pytest.mark.parametrize("kind", ["skip", "highway"])
def test_replayed_steps_equal_launched_ones(monkeypatch, kind, device):
    def build(device, layer, **_):
        torch.manual_seed(0)
        labels = nn.Embedding(steps.WORDS, 16)
        options = {"skip_connections": True, "cap_input_gate": True, "dropout_state": 0.3}
        net: Encoder = RecurrentHighway(labels, 16, depth=3)
        if kind == "skip":
            net = AwdLstm(labels, 16, 2, dropout_masks="standard", **options)
        elif device == "cuda":
            net.compile()
        return LanguageModel(net, layer(labels)).to(device)

    monkeypatch.setattr(steps, "model", build)
    options = {**steps.OPTIONS, "state_reset": 0.3, "augmented": 0.5}
    steps.assert_replays_equal_launches(Sgd, device=device, epochs=1, options=options)


# -- initial weights and arguments ----------------------------------------------------------------


def test_initial_weights():
    net = lstms(lstm_init_range=0.01, forget_bias=1.0)
    for each in net.lstms:
        for name, p in each.named_parameters():
            forget = p[each.hidden_size : 2 * each.hidden_size] if p.dim() == 1 else p
            added = 1.0 if name == "bias_ih_l0" else 0.0
            assert (forget - added).abs().max() <= 0.01
    net = RecurrentHighway(embedding(), H, depth=3, transform_bias=-3.0, init_range=0.02)
    assert all((each.bias[H:] == -3.0).all() for each in net.highways)
    others = [*(each.weight for each in net.highways), net.input.weight, net.embedding.weight]
    assert all(0.01 < each.abs().max() <= 0.02 for each in others)


@pytest.mark.parametrize(("name", "value"), [("dropout_state", math.nan), ("init_range", -1.0)])
def test_invalid_arguments_raise(name, value):
    with pytest.raises(ValueError, match=f"RecurrentHighway: {name}"):
        highways(**{name: value})


def test_compile_is_for_recurrences_without_a_kernel():
    dry_run(recipe("ptb-rhn-tied"))
    with pytest.raises(SettingsError, match="compile"):
        dry_run(recipe("ptb-zaremba-medium-tied", ["training.compile=true"]))


# -- augmented loss -------------------------------------------------------------------------------


def test_augmented_loss_by_hand():
    E = torch.randn(V, d, dtype=torch.float64)
    logits, targets = torch.randn(T, B, V, dtype=torch.float64, requires_grad=True), text()
    found = augmented_loss(logits.log_softmax(-1), targets, E, 3.0)
    expected = 0.0
    for t in range(T):
        for b in range(B):
            wanted = torch.softmax(E @ E[targets[t, b]] / 3.0, 0)
            given = torch.softmax(logits[t, b] / 3.0, 0)
            expected = expected + (wanted * (wanted / given).log()).sum() / (T * B)
    torch.testing.assert_close(found, expected)
    exact = augmented_loss((E[targets] @ E.t()).log_softmax(-1), targets, E, 3.0)
    torch.testing.assert_close(exact, torch.zeros_like(exact))
    assert gradcheck(lambda x: augmented_loss(x, targets[:2], E, 3.0), logits[:2])


def test_augmented_loss_is_minimised_and_not_reported():
    model, ids, targets = LanguageModel(net := lstms(), TiedSoftmax(net.embedding)), text(), text()
    plain, more = (
        model.loss(ids, targets, ar_weight=0.0, tar_weight=0.0, augmented=weight)
        for weight in (0.0, 5.0)
    )
    assert torch.equal(plain.nll, more.nll)
    log_probs, _ = model.log_probs(ids)
    extra = 5.0 * augmented_loss(log_probs, targets, net.embedding.weight, 10.0)
    torch.testing.assert_close(more.total, plain.total + extra)
