"""AWD-LSTM against a recurrence written out by hand, and each of its five dropouts on its own."""

import math

import pytest
import torch
from torch import Tensor, nn

from drill.kernels.lstm import lstm as kernel
from drill.models import AwdLstm
from tests.models.lstm_reference import OFF, reference_lstm

V, d, H, T, B = 53, 12, 17, 7, 5
SITES = list(OFF)


def make(layers: int = 3, dtype: torch.dtype = torch.float64, **dropouts) -> AwdLstm:
    """An encoder with only the dropouts asked for."""
    return AwdLstm(nn.Embedding(V, d, dtype=dtype), H, layers, **{**OFF, **dropouts})


def text() -> Tensor:
    return torch.randint(V, (T, B))


def by_hand(encoder: AwdLstm, ids: Tensor, hidden_weights: list[Tensor] | None = None) -> Tensor:
    """One step and one layer at a time; nothing dropped but what is given."""
    x = encoder.embedding.weight[ids]
    for i, lstm in enumerate(encoder.lstms):
        x = reference_lstm(x, lstm, w_hh=hidden_weights and hidden_weights[i])
    return x


def gradients(encoder: AwdLstm, output: Tensor) -> list[Tensor]:
    signs = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return list(torch.autograd.grad((output * signs).sum(), list(encoder.parameters())))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_outputs_and_gradients_are_those_of_the_equations(layers):
    encoder, ids = make(layers), text()
    encoded, truth = encoder(ids), by_hand(encoder, ids)
    torch.testing.assert_close(encoded.output, truth, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        gradients(encoder, encoded.output), gradients(encoder, truth), rtol=0, atol=1e-12
    )


def test_shapes_and_the_tied_width_of_the_last_layer():
    encoder = make()
    output, raw, state = encoder(text())
    assert output.shape == raw.shape == (T, B, d)
    assert encoder.output_size == d
    for width, layer in zip((H, H, d), state, strict=True):
        assert [s.shape for s in layer] == [(1, B, width)] * 2
    wide = AwdLstm(nn.Embedding(V, d), H, output_size=H)
    assert wide.output_size == H
    assert wide(text()).output.shape == (T, B, H)


def test_several_layers_are_concatenated_in_the_output():
    encoder, ids = make(output_layers=3, dropout_output=0.5), text()
    assert encoder.output_widths == (H, H, d)
    assert encoder.output_size == 2 * H + d
    encoder.eval()
    output, raw, state = encoder(ids)
    assert torch.equal(output, raw)
    below = make(2, output_size=H)  # the same without the last LSTM
    below.load_state_dict(encoder.state_dict(), strict=False)
    parts = raw.split(encoder.output_widths, -1)
    torch.testing.assert_close(parts[1], below.eval()(ids).output)
    torch.testing.assert_close(parts[2], by_hand(encoder, ids))
    assert [tuple(h.shape) for h, _ in state] == [(1, B, H), (1, B, H), (1, B, d)]
    dropped, raw, _ = encoder.train()(ids)
    mask = dropped / raw
    assert torch.equal(mask[:1].expand_as(mask), mask)
    assert sorted(mask.unique().tolist()) == [0, 2]


def test_weight_drop_is_elementwise_on_hh_and_gradients_vanish_where_it_drops(calls_of):
    encoder, ids, calls = make(weight_drop=0.5), text(), calls_of(kernel, "drop_entries")
    output = encoder(ids).output
    drawn = [call.result for call in calls]
    assert [x.shape for x in drawn] == [lstm.weight_hh_l0.shape for lstm in encoder.lstms]
    torch.testing.assert_close(output, by_hand(encoder, ids, drawn), rtol=0, atol=1e-12)
    output.sum().backward()
    for lstm, weight in zip(encoder.lstms, drawn, strict=True):
        kept = weight != 0
        torch.testing.assert_close(weight[kept], 2.0 * lstm.weight_hh_l0[kept])
        assert 0.35 < kept.double().mean() < 0.65
        assert 0 < kept[0].sum() < kept.shape[1]  # entries, not rows
        assert 0 < kept[:, 0].sum() < kept.shape[0]  # nor columns
        assert (lstm.weight_hh_l0.grad[~kept] == 0).all()
        assert (lstm.weight_hh_l0.grad[kept] != 0).all()
        for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
            assert (getattr(lstm, name).grad != 0).all()


@pytest.mark.gpu
def test_weight_drop_on_cudnn_is_active_and_never_warns():
    encoder = make(dtype=torch.float32, weight_drop=0.5).cuda()
    ids = text().cuda()
    one, other = encoder(ids).output, encoder(ids).output  # warnings are errors here
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[1:], other[1:])
    one.sum().backward()
    zeros = (encoder.lstms[0].weight_hh_l0.grad == 0).float().mean().item()
    assert 0.3 < zeros < 0.7


def test_dropout_is_back_after_without_dropout_even_after_an_error():
    encoder, ids = make(weight_drop=0.5), text()
    with pytest.raises(KeyError), encoder.without_dropout(), encoder.without_dropout():
        raise KeyError
    assert encoder.training
    assert not torch.equal(encoder(ids).output, encoder(ids).output)


def test_only_the_output_is_dropped_by_the_output_dropout():
    encoder, ids = make(dropout_output=0.5), text()
    output, raw, state = encoder(ids)
    torch.testing.assert_close(raw, by_hand(encoder, ids))
    assert torch.equal(state[-1][0][0], raw[-1])  # what is carried was not dropped
    mask = output / raw
    assert torch.equal(mask, mask[:1].expand_as(mask).clone())
    torch.testing.assert_close(mask.unique(), torch.tensor([0.0, 2.0]).double())


@pytest.mark.parametrize("site", SITES)
def test_every_dropout_acts_in_train_mode_and_not_in_evaluation(site):
    encoder, ids = make(**{site: 0.5}), text()
    assert not torch.equal(encoder(ids).output, encoder(ids).output)
    torch.testing.assert_close(encoder.eval()(ids).output, by_hand(encoder, ids))


def test_start_values():
    torch.manual_seed(1)
    embedding = nn.Embedding(1_000, 40)
    kept = embedding.weight.detach().clone()
    AwdLstm(embedding, 50)
    assert torch.equal(embedding.weight, kept)  # the caller's, unless asked
    encoder = AwdLstm(embedding, 50, init_range=0.1)
    assert encoder.embedding is embedding
    assert 0.0999 < embedding.weight.abs().max() <= 0.1
    assert abs(embedding.weight.std().item() - 0.1 / math.sqrt(3)) < 1e-3
    for lstm in encoder.lstms:
        bound = 1 / math.sqrt(lstm.hidden_size)
        for p in lstm.parameters():
            assert 0.9 * bound < p.abs().max() <= bound


def test_lstms_follow_the_embedding_in_dtype_and_device():
    assert {p.dtype for p in make(dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    with torch.device("meta"):
        embedding = nn.Embedding(V, d)
    encoder = AwdLstm(embedding, H)
    assert all(p.is_meta for p in encoder.parameters())
    assert encoder.initial_state(B)[0][0].is_meta


def test_invalid_arguments_raise():
    embedding = nn.Embedding(V, d)
    with pytest.raises(TypeError, match=r"nn\.Embedding"):
        AwdLstm(V)
    wrong = {"hidden_size": [0], "layers": [0], "output_size": [0], "init_range": [0.0]}
    wrong |= {"output_layers": [0, 4], "lstm_init_range": [0.0], "impl": ["fast"]}
    wrong |= {"dropout_masks": ["fixed"]}
    wrong |= {site: [-0.1, 1.0, math.nan] for site in (*SITES, "dropout_state")}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"AwdLstm: {name}"):
                AwdLstm(embedding, **{"hidden_size": H, name: value})
    encoder = make()
    for state in (encoder.initial_state(B + 1), encoder.initial_state(B)[:2]):
        with pytest.raises(ValueError, match="lstm"):
            encoder(text(), state)
