"""The Transformer against torch's own blocks, its masks, dropout, start values and single steps."""

import math

import pytest
import torch
from torch import Tensor, nn

from drill.models import Transformer
from drill.models.transformer.decoding_cache import STEPS_AT_ONCE
from drill.models.transformer.transformer import sinusoids
from tests.models.small_transformers import (
    PAD,
    B,
    S,
    T,
    V,
    both_norms,
    d,
    ids,
    make,
    padded,
    ragged,
    repeated,
)


def torchs_own(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """The same weights in torch's own blocks."""
    pre = model.norm == "pre"
    sizes = {"dim_feedforward": 17, "dropout": 0.0, "batch_first": True, "norm_first": pre}

    def attention(into: nn.MultiheadAttention, weights: list[nn.Linear], out: nn.Linear) -> None:
        into.in_proj_weight.copy_(torch.cat([each.weight for each in weights]))
        into.in_proj_bias.copy_(torch.cat([each.bias for each in weights]))
        into.out_proj.load_state_dict(out.state_dict())

    def rest(into: nn.Module, block: nn.Module, norms: list[nn.Module]) -> None:
        into.linear1.load_state_dict(block.feedforward.inner.state_dict())
        into.linear2.load_state_dict(block.feedforward.output.state_dict())
        for i, each in enumerate(norms, start=1):
            getattr(into, f"norm{i}").load_state_dict(each.norm.state_dict())

    def embedded(embedding: nn.Embedding, rows: Tensor) -> Tensor:
        return embedding.weight[rows] * d**0.5 + sinusoids(0, rows.shape[1], d, embedding.weight)

    hidden = source == PAD
    x = embedded(model.source_embedding, source)
    for block in model.encoder:
        layer = nn.TransformerEncoderLayer(d, 3, **sizes).double()
        attention(layer.self_attn, [block.attention.query_key_value], block.attention.output)
        rest(layer, block, [block.around_attention, block.around_feedforward])
        x = layer(x, src_key_padding_mask=hidden)
    memory = model.encoder_norm(x)
    x = embedded(model.target_embedding, target)
    future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    for block in model.decoder:
        layer = nn.TransformerDecoderLayer(d, 3, **sizes).double()
        cross = block.source_attention
        attention(layer.self_attn, [block.attention.query_key_value], block.attention.output)
        attention(layer.multihead_attn, [cross.query, cross.key_value], cross.output)
        norms = [block.around_attention, block.around_source_attention, block.around_feedforward]
        rest(layer, block, norms)
        x = layer(x, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    return model.decoder_norm(x)


@both_norms
@torch.no_grad()
def test_it_is_torchs_own_transformer(norm):
    model, source, target = make(norm, shared=False), ragged(S), ids(B, T)
    found = model(source, target)
    assert found.shape == (B, T, d)
    torch.testing.assert_close(found, torchs_own(model, source, target), rtol=0, atol=1e-11)


def test_positions_by_hand():
    table = sinusoids(3, 4, d, torch.empty(0, dtype=torch.float64))
    for row, t in enumerate(range(3, 7)):
        for i in range(d // 2):
            angle = t / 10_000 ** (2 * i / d)
            assert table[row, i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, d // 2 + i].item() == pytest.approx(math.cos(angle), abs=1e-12)


@both_norms
def test_more_padding_changes_nothing(norm):
    model, source, target = make(norm), ragged(S), ragged(T)
    real = target != PAD
    found = model(padded(source, 4), padded(target, 3))[:, :T]
    torch.testing.assert_close(found[real], model(source, target)[real], rtol=0, atol=1e-12)


def test_an_empty_sentence_is_one_pad_however_it_is_padded():
    model, target = make(), ids(1, T)
    bare = model(torch.empty(1, 0, dtype=torch.int64), target)
    assert bare.isfinite().all()
    torch.testing.assert_close(model(torch.full((1, 4), PAD), target), bare, rtol=0, atol=1e-12)
    mixed = torch.cat([padded(ids(1, 2), 2), torch.full((1, 4), PAD)])
    rows = model(mixed, target.expand(2, -1))
    torch.testing.assert_close(rows[1:], bare, rtol=0, atol=1e-12)
    rows.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("dropout", "attention"), [(0.0, 0.5), (0.5, 0.0)])
def test_both_dropouts_are_on_in_training_and_off_in_evaluation(dropout, attention):
    model, source, target = make(dropout=dropout, attention_dropout=attention), ids(B, S), ids(B, T)
    assert not torch.equal(model(source, target), model(source, target))
    drawn = {model.decoder[0].attention.dropout, model.decoder[0].source_attention.dropout}
    assert drawn == {attention} == {model.encoder[0].attention.dropout}
    assert model.encoder[0].feedforward.dropout == model.dropout == dropout
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


@both_norms
@pytest.mark.parametrize("room", [None, STEPS_AT_ONCE + 6], ids=["growing", "fixed"])
@torch.no_grad()
def test_steps_are_the_whole_decoded(norm, room):
    model, source, length = make(norm, shared=False), ragged(S), STEPS_AT_ONCE + 3
    target = ids(B, length)
    memory = model.encode(source)
    cache = model.start(memory, room=room)
    steps = torch.stack([model.step(target[:, t], cache) for t in range(length)], dim=1)
    assert cache.length == length
    torch.testing.assert_close(steps, model.decode(target, memory), rtol=0, atol=1e-11)


@pytest.mark.parametrize("room", [None, STEPS_AT_ONCE + 6], ids=["growing", "fixed"])
@torch.no_grad()
def test_hypotheses_are_reordered_and_sentences_left_behind(room):
    model, K = make(), 4
    memory = model.encode(ragged(S))
    prefixes = ids(B * K, 3)
    cache = model.start(memory, hypotheses=K, room=room)
    for t in range(3):
        model.step(prefixes[:, t], cache)
    rows = torch.tensor([1, 1, 0, 3, 7, 4, 4, 4, 8, 9, 11, 8])  # each within its sentence
    for _ in range(STEPS_AT_ONCE):
        cache.reorder(rows)
        following = ids(B * K, 1)
        prefixes = torch.cat([prefixes[rows], following], dim=1)
        found = model.step(following[:, 0], cache)
        rows = rows.roll(1).view(B, K).sort(0).values.flatten() % K + rows // K * K
    assert cache.length > STEPS_AT_ONCE
    whole = model.decode(prefixes, repeated(memory, K))[:, -1]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-11)

    cache.select(torch.tensor([2, 0]))
    kept = [*range(8, 12), *range(4)]
    last = ids(2 * K, 1)
    found = model.step(last[:, 0], cache)
    prefixes = torch.cat([prefixes[kept], last], dim=1)
    left = type(memory)(memory.states[[2, 0]], memory.mask[[2, 0]])
    whole = model.decode(prefixes, repeated(left, K))[:, -1]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@torch.no_grad()
def test_steps_keep_the_precision_of_autocast():
    model, source, target = make().float().eval(), ids(B, S), ids(B, T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = model.encode(source)
        cache = model.start(memory)
        steps = torch.stack([model.step(target[:, t], cache) for t in range(T)], dim=1)
        whole = model.decode(target, memory)
    torch.testing.assert_close(steps, whole, rtol=0.05, atol=0.05)


def test_the_base_model_has_the_published_counts():
    with torch.device("meta"):
        model = Transformer(nn.Embedding(1000, 512))

    def count(*parts: nn.Module) -> int:
        return sum(p.numel() for part in parts for p in part.parameters())

    assert count(model.encoder, model.encoder_norm) == 18_915_328
    assert count(model.decoder, model.decoder_norm) == 25_225_216
    assert count(model) == 18_915_328 + 25_225_216 + 1000 * 512  # a shared embedding counts once


def test_matrices_start_as_glorot_has_them_and_embeddings_only_if_asked():
    width, words = 64, 300
    embedding = nn.Embedding(words, width)
    before = embedding.weight.detach().clone()
    model = Transformer(embedding, layers=1, heads=4, feedforward=96)
    assert torch.equal(embedding.weight, before)
    attention, network = model.decoder[0].source_attention, model.decoder[0].feedforward
    square = (6 / (2 * width)) ** 0.5
    parts = [*model.encoder[0].attention.query_key_value.weight.chunk(3)]
    parts += [attention.query.weight, *attention.key_value.weight.chunk(2)]
    for part in parts:
        assert 0.98 * square < part.abs().max() <= square
    wide = (6 / (width + 96)) ** 0.5
    assert 0.98 * wide < network.inner.weight.abs().max() <= wide
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    assert all((bias == 0).all() for bias in biases)
    Transformer(embedding, layers=1, heads=4, init_embeddings=True)
    bound = (6 / (width + words)) ** 0.5
    assert 0.98 * bound < embedding.weight.abs().max() <= bound


def test_blocks_go_where_the_embedding_is():
    model = Transformer(nn.Embedding(V, d, dtype=torch.bfloat16), layers=1, heads=3)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    with torch.device("meta"):
        embedding = nn.Embedding(V, d)
    assert {p.device.type for p in Transformer(embedding, heads=3).parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "5 heads"),
        ({"heads": 0}, "heads must be"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"norm": "middle"}, "norm must be"),
        ({"impl": "fast"}, "impl must be"),
        ({"pad": V}, f"pad must be .* got {V}"),
    ],
)
def test_invalid_settings_raise(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_embeddings_that_do_not_fit_raise():
    E = nn.Embedding(V, 12)
    with pytest.raises(ValueError, match="target embedding"):
        Transformer(E, nn.Embedding(V, 8))
    with pytest.raises(TypeError, match="Linear"):
        Transformer(nn.Linear(3, 3))
