"""The Transformer against torch's own blocks, its masks, its steps and its start values."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from drill.captured import CapturedGradients
from drill.encoders import Transformer, transformer_blocks, transformer_maps
from drill.encoders.transformer import PRESETS
from drill.encoders.transformer_attention import WithoutCudnn, attended
from drill.encoders.transformer_cache import STEPS_AT_ONCE
from drill.encoders.transformer_inputs import sinusoids
from drill.kernels.nll import INTERPRETED, TRITON_INSTALLED

V, d, B, S, T, PAD = 29, 12, 3, 7, 5, 0
both_norms = pytest.mark.parametrize("norm", ["pre", "post"])


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def make(norm: str = "pre", dropout: float = 0.0, shared: bool = True, **options) -> Transformer:
    """In float64, with no parameter at zero, so that each of them counts."""
    source = nn.Embedding(V, d, dtype=torch.float64)
    target = None if shared else nn.Embedding(V + 4, d, dtype=torch.float64)
    sizes = {"layers": 2, "heads": 3, "feedforward": 17, **options}
    model = Transformer(source, target, norm=norm, dropout=dropout, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.6, 0.6)
    return model


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(1, V, (rows, length))


def padded(rows: Tensor, extra: int) -> Tensor:
    return torch.cat([rows, rows.new_full((rows.shape[0], extra), PAD)], dim=1)


def ragged(length: int) -> Tensor:
    """B rows, each one shorter than the one above it."""
    rows = ids(B, length)
    for i in range(B):
        rows[i, length - i :] = PAD
    return rows


# -- the equations --------------------------------------------------------------------------------


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


def test_embeddings_are_shared_or_not():
    shared, separate = make(), make(shared=False)
    assert shared.source_embedding is shared.target_embedding
    assert separate.source_embedding is not separate.target_embedding
    source, target = ids(B, S), ids(B, T)
    separate(source, target).sum().backward()
    read = separate.target_embedding.weight.grad.abs().sum(1) > 0
    assert set(read.nonzero().flatten().tolist()) == set(target.flatten().tolist())


# -- masks ----------------------------------------------------------------------------------------


@both_norms
def test_more_padding_changes_nothing(norm):
    model, source, target = make(norm), ragged(S), ragged(T)
    real = target != PAD
    found = model(padded(source, 4), padded(target, 3))[:, :T]
    torch.testing.assert_close(found[real], model(source, target)[real], rtol=0, atol=1e-12)


def test_a_sentence_does_not_see_its_neighbours():
    model, source, target = make(), ragged(S), ids(B, T)
    together = model(source, target)
    for i in range(B):
        alone = model(source[i : i + 1, : S - i], target[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-12)


def test_a_position_does_not_see_the_ones_after_it():
    model, source, target = make(), ids(1, S), ids(1, T)
    before = model(source, target)
    target[0, 3] = target[0, 3] % (V - 1) + 1
    moved = (model(source, target) - before).abs().sum(-1)[0] > 1e-9
    assert moved.tolist() == [False, False, False, True, True]


def test_every_source_token_is_seen_from_every_position():
    model, source, target = make(), ids(1, S), ids(1, T)
    before = model(source, target)
    for place in range(S):
        other = source.clone()
        other[0, place] = other[0, place] % (V - 1) + 1
        assert ((model(other, target) - before).abs().sum(-1) > 1e-9).all()


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


# -- steps ----------------------------------------------------------------------------------------


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
    whole = model.decode(prefixes, memory.repeat(K))[:, -1]
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-11)

    cache.select(torch.tensor([2, 0]))
    kept = [*range(8, 12), *range(4)]
    last = ids(2 * K, 1)
    found = model.step(last[:, 0], cache)
    prefixes = torch.cat([prefixes[kept], last], dim=1)
    left = type(memory)(memory.states[[2, 0]], memory.mask[[2, 0]])
    whole = model.decode(prefixes, left.repeat(K))[:, -1]
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


# -- dropout --------------------------------------------------------------------------------------


def test_dropout_is_on_in_training_and_off_in_evaluation():
    model, source, target = make(dropout=0.3), ids(B, S), ids(B, T)
    assert not torch.equal(model(source, target), model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


@pytest.mark.parametrize("site", ["attention", "the rest"])
def test_attention_has_a_dropout_of_its_own(site):
    first, second = (0.0, 0.5) if site == "attention" else (0.5, 0.0)
    model = make(dropout=first, attention_dropout=second)
    source, target = ids(B, S), ids(B, T)
    assert not torch.equal(model(source, target), model(source, target))
    drawn = {model.decoder[0].attention.dropout, model.decoder[0].source_attention.dropout}
    assert drawn == {second} == {model.encoder[0].attention.dropout}
    assert model.encoder[0].feedforward.dropout == model.dropout == first


# -- one pass between products --------------------------------------------------------------------

every_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="runs on the GPU")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)


def trained(impl: str, norm: str, device: str, half: bool, dropout: float = 0.0) -> list[Tensor]:
    """Hidden states and all gradients, of a model that does not depend on ``impl``."""
    torch.manual_seed(3)
    model = make(norm, dropout, impl=impl).to(device, torch.float32)
    source, target = ragged(S).to(device), ids(B, T).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=half):
        hidden = model(source, target)
    (hidden * torch.linspace(-1, 1, d, device=device)).sum().backward()
    return [hidden.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@both_norms
@every_device
def test_one_pass_between_products_is_plain_pytorch(norm, device, half):
    ours, theirs = (trained(impl, norm, device, half) for impl in ("triton", "reference"))
    assert [each.dtype for each in ours] == [each.dtype for each in theirs]
    found, expected = (torch.cat([each.flatten() for each in made]) for made in (ours, theirs))
    assert (found - expected).norm() <= (0.03 if half else 1e-5) * expected.norm()
    if not half:
        for found, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
@both_norms
@every_device
def test_one_pass_drops_as_the_seed_says(norm, device):
    first, again = (trained("triton", norm, device, True, 0.3) for _ in range(2))
    assert torch.equal(first[0], again[0])
    torch.testing.assert_close(first, again, rtol=1e-3, atol=1e-3)  # attention's may be added anew
    without = trained("triton", norm, device, True)
    assert not torch.equal(first[0], without[0])


@pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
@both_norms
@every_device
def test_no_two_modules_drop_by_one_seed(monkeypatch, norm, device):
    """All seeds of a stack are drawn at once, and each residual and network takes its own."""
    model = make(norm, 0.3, attention_dropout=0.0, impl="triton").to(device, torch.float32)
    taken, drawn = [], []

    def noted(name):
        kernel = getattr(transformer_blocks, name)

        def call(*args, seed, **options):
            taken.append(seed if options.get("dropout", 0.3) else None)
            return kernel(*args, seed=seed, **options)

        return call

    for name in ("residual_norm", "relu_dropout"):
        monkeypatch.setattr(transformer_blocks, name, noted(name))
    draw = transformer_maps.drawn_seeds
    monkeypatch.setattr(
        transformer_maps, "drawn_seeds", lambda *given: drawn.append(draw(*given)) or drawn[-1]
    )
    model(ragged(S).to(device), ids(B, T).to(device))
    seeds = {each.data_ptr() for each in taken if each is not None}
    assert [len(each) for each in drawn] == [2 * 3, 2 * 4]
    assert seeds == {seed.data_ptr() for each in drawn for seed in each}
    assert len([each for each in taken if each is not None]) == len(seeds) == 14
    drawn.clear()
    model.eval()
    model(ragged(S).to(device), ids(B, T).to(device))
    assert drawn == [(), ()]


def test_attention_past_padding_leaves_cudnn_as_it_was():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for enabled in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(enabled)
            with WithoutCudnn():
                assert not torch.backends.cuda.cudnn_sdp_enabled()
            assert torch.backends.cuda.cudnn_sdp_enabled() == enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.gpu
def test_replays_of_one_pass_drop_anew():
    model = make(dropout=0.3, attention_dropout=0.0, impl="triton").to("cuda", torch.float32)
    source, target = ragged(S).cuda(), ids(B, T).cuda()
    gradients = CapturedGradients(model, lambda *batch: model(*batch).square().sum())
    assert len({gradients(source, target).item() for _ in range(6)}) == 6


@pytest.mark.gpu
@torch.no_grad()
def test_what_is_evaluated_does_not_depend_on_the_kernels_of_training():
    found = []
    for impl in ("auto", "reference"):
        torch.manual_seed(3)
        model = make(dropout=0.3, impl=impl).to("cuda", torch.float32).eval()
        found.append(model(ragged(S).cuda(), ids(B, T).cuda()))
    assert torch.equal(*found)


# -- modules that are more than their weights -----------------------------------------------------

every_impl = pytest.mark.parametrize(
    ("impl", "device"),
    [
        ("reference", "cpu"),
        pytest.param(
            "triton",
            "cpu",
            marks=pytest.mark.skipif(
                not (TRITON_INSTALLED and INTERPRETED), reason="Triton does not interpret"
            ),
        ),
        pytest.param("triton", "cuda", marks=pytest.mark.gpu),
    ],
)


class Adapted(nn.Linear):
    """W x + b + A x: as an adapter, with a parameter that only its ``forward`` knows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self.load_state_dict(linear.state_dict())
        self.to(linear.weight)
        self.extra = nn.Parameter(torch.full_like(self.weight, 0.01))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + nn.functional.linear(x, self.extra)


class ScaledNorm(nn.LayerNorm):
    """A norm with a parameter that only its ``forward`` knows."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__(norm.normalized_shape)
        self.load_state_dict(norm.state_dict())
        self.to(norm.weight)
        self.extra = nn.Parameter(torch.full_like(self.weight, 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.extra


def adapted(model: Transformer) -> dict[str, nn.Module]:
    """All maps and norms of a model, put into adapters."""
    found = {}
    for name, module in list(model.named_modules()):
        kind = {nn.Linear: Adapted, nn.LayerNorm: ScaledNorm}.get(type(module))
        if kind is not None:
            model.set_submodule(name, kind(module))
            found[name] = model.get_submodule(name)
    return found


@both_norms
@every_impl
def test_adapters_are_called_and_trained(impl, device, norm):
    gradients = []
    for way in (impl, "reference"):
        torch.manual_seed(3)
        model = make(norm, impl=way).to(device, torch.float32)
        adapters = adapted(model)
        hidden = model(ragged(S).to(device), ids(B, T).to(device))
        (hidden * torch.linspace(-1, 1, d, device=device)).sum().backward()
        gradients.append({name: module.extra.grad for name, module in adapters.items()})
    assert len(gradients[0]) == 2 * (4 + 2) + 2 * (7 + 3) + (2 if norm == "pre" else 0)
    for name, found in gradients[0].items():
        assert found is not None, name
        assert found.abs().max() > 0, name
        torch.testing.assert_close(found, gradients[1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@both_norms
@every_impl
def test_hooks_are_called(impl, device, norm, training):
    """One at a time, so that kernels stand on either side of what is called."""
    model = make(norm, impl=impl).to(device, torch.float32).train(training)
    source, target = ragged(S).to(device), ids(B, T).to(device)
    plain = model(source, target).detach()
    called = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            hook = module.register_forward_hook(lambda *_, name=name: called.append(name))
            with torch.set_grad_enabled(training):
                hidden = model(source, target)
            hook.remove()
            assert called == [name]
            called.clear()
            torch.testing.assert_close(hidden.detach(), plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "register",
    [torch_module.register_module_forward_hook, torch_module.register_module_forward_pre_hook],
)
@every_impl
def test_hooks_of_all_modules_are_called(impl, device, register):
    model = make(impl=impl).to(device, torch.float32)
    maps = [m for m in model.modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    called = []
    hook = register(lambda module, *_: called.append(module))
    try:
        model(ragged(S).to(device), ids(B, T).to(device))
    finally:
        hook.remove()
    assert all(called.count(module) == 1 for module in maps)


def doubled(module: nn.Module, *_) -> None:
    """As FSDP does, a hook that gives a module other weights when it is called."""
    for each in module.modules():
        if isinstance(each, nn.Linear | nn.LayerNorm):
            each.weight = nn.Parameter(2 * each.weight.detach())


@pytest.mark.parametrize(
    "of", ["", "attention", "source_attention", "feedforward", "around_attention"]
)
@every_impl
def test_a_hook_may_set_the_weights_of_what_is_called(impl, device, of):
    found = []
    for in_hook in (True, False):
        torch.manual_seed(3)
        model = make(impl=impl if in_hook else "reference").to(device, torch.float32)
        blocks = [*model.encoder, *model.decoder] if of != "source_attention" else model.decoder
        for part in (block.get_submodule(of) for block in blocks):
            if in_hook:
                part.register_forward_pre_hook(doubled)
            else:
                doubled(part)
        found.append(model(ragged(S).to(device), ids(B, T).to(device)))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@every_impl
def test_weights_may_be_parametrized(impl, device):
    found = []
    for parametrized in (True, False):
        torch.manual_seed(3)
        model = make(impl=impl if parametrized else "reference").to(device, torch.float32)
        for module in list(model.modules()):
            if isinstance(module, nn.Linear | nn.LayerNorm):
                if parametrized:
                    parametrize.register_parametrization(module, "weight", Doubled())
                else:
                    doubled(module)
        found.append(model(ragged(S).to(device), ids(B, T).to(device)))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def without_biases(model: Transformer) -> None:
    for block in (*model.encoder, *model.decoder):
        for name in ("inner", "output"):
            getattr(block.feedforward, name).register_parameter("bias", None)
        block.attention.output.register_parameter("bias", None)
        block.around_attention.norm.register_parameter("bias", None)
        norm = block.around_feedforward.norm
        block.around_feedforward.norm = nn.LayerNorm(
            d, elementwise_affine=False, device=norm.weight.device
        )


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@both_norms
@every_impl
def test_maps_and_norms_may_have_no_bias(impl, device, norm, half):
    found = []
    for way in (impl, "reference"):
        torch.manual_seed(3)
        model = make(norm, impl=way).to(device, torch.float32)
        without_biases(model)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            hidden = model(ragged(S).to(device), ids(B, T).to(device))
        (hidden * torch.linspace(-1, 1, d, device=device)).sum().backward()
        gradients = [p.grad.flatten() for p in model.parameters()]
        found.append(torch.cat([hidden.detach().flatten(), *gradients]))
    ours, theirs = found
    assert (ours - theirs).norm() <= (0.03 if half else 1e-5) * theirs.norm()


@both_norms
@every_impl
def test_kernels_beside_adapters_keep_the_dtypes_of_autocast(impl, device, norm):
    """A norm called after a map that was not, and a map called before a norm that was not."""
    for of in ("around_attention.norm", "attention.output", "feedforward.inner"):
        found = []
        for way in (impl, "reference"):
            torch.manual_seed(3)
            model = make(norm, 0.0, impl=way).to(device, torch.float32)
            for block in (*model.encoder, *model.decoder):
                block.get_submodule(of).register_forward_hook(lambda *_: None)
            with torch.autocast(device, torch.bfloat16):
                hidden = model(ragged(S).to(device), ids(B, T).to(device))
            hidden.square().sum().backward()
            found.append(hidden.detach())
        assert found[0].dtype == found[1].dtype
        assert (found[0] - found[1]).norm() <= 0.03 * found[1].norm()


# -- sizes and start values -----------------------------------------------------------------------


def test_the_base_model_has_the_published_counts():
    with torch.device("meta"):
        model = Transformer.preset("base", nn.Embedding(1000, 512))

    def count(*parts: nn.Module) -> int:
        return sum(p.numel() for part in parts for p in part.parameters())

    assert count(model.encoder, model.encoder_norm) == 18_915_328
    assert count(model.decoder, model.decoder_norm) == 25_225_216
    assert count(model) == 18_915_328 + 25_225_216 + 1000 * 512  # a shared embedding counts once


@pytest.mark.parametrize("name", PRESETS)
def test_presets_take_changes(name):
    with torch.device("meta"):
        model = Transformer.preset(name, nn.Embedding(9, PRESETS[name].width), norm="post", pad=3)
    assert (model.norm, model.pad, len(model.decoder)) == ("post", 3, PRESETS[name].layers)
    assert model.encoder[0].feedforward.inner.out_features == PRESETS[name].feedforward


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


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "width 12, which 5 heads .* take a multiple of 10"),
        ({"heads": 0}, "heads is a whole number of at least 1, not 0"),
        ({"dropout": 1.0}, r"dropout is a number in \[0, 1\), not 1.0"),
        ({"norm": "middle"}, "norm is one of pre, post, not 'middle'"),
        ({"impl": "fast"}, "impl is one of auto, reference, triton, not 'fast'"),
        ({"pad": V}, f"pad is {V}, but an embedding has only {V} rows"),
    ],
)
def test_settings_that_cannot_be_name_themselves(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_embeddings_that_do_not_fit_name_the_mend():
    with pytest.raises(
        ValueError, match="source embedding has width 12 and the target embedding 8"
    ):
        Transformer(nn.Embedding(V, 12), nn.Embedding(V, 8))
    with pytest.raises(ValueError, match=r"build nn.Embedding\(words, 512\)"):
        Transformer.preset("base", nn.Embedding(V, 12))
    with pytest.raises(TypeError, match=r"the model's nn.Embeddings, not Linear"):
        Transformer(nn.Linear(3, 3))


def test_steps_with_gradients_are_refused():
    model = make()
    cache = model.start(model.encode(ids(1, S)))
    with pytest.raises(RuntimeError, match=r"under torch.no_grad\(\), or all at once to train"):
        model.step(torch.ones(1, dtype=torch.int64), cache)


@torch.no_grad()
def test_ids_of_another_shape_are_refused():
    model = make()
    with pytest.raises(TypeError, match=r"source is whole numbers of shape \(B, T\), not"):
        model.encode(ids(1, S)[0])
    with pytest.raises(ValueError, match="target has 2 rows, but the encoded source has 3"):
        model(ids(3, S), ids(2, T))
    cache = model.start(model.encode(ids(3, S)), hypotheses=2)
    with pytest.raises(ValueError, match="ids has 5 rows, but the encoded source has 6"):
        model.step(torch.ones(5, dtype=torch.int64), cache)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [32, 64, 128, 192])
def test_queries_that_fit_no_key_have_gradients(length):
    """cuDNN's gradient is NaN at 64 and 192, so that kernel is not asked: all scores are -120."""
    made = torch.randn(3, 2, 4, length, 64, device="cuda", dtype=torch.bfloat16)
    made[:2] *= 0.1
    made[0, ..., 0], made[1, ..., 0] = 1.0, -120.0 * math.sqrt(64)
    mask = made.new_zeros(2, 1, 1, length)
    mask[1, ..., length // 2 :] = -torch.inf
    gradients = []
    for dtype in (torch.bfloat16, torch.float64):
        parts = [each.to(dtype).requires_grad_() for each in made]
        attended(*parts, mask.to(dtype), 0.0).sin().sum().backward()
        gradients.append(torch.stack([part.grad.double() for part in parts]))
    ours, exact = gradients
    assert ours.isfinite().all()
    for part in (1, 2):  # the queries' is a sum of large numbers that cancel
        error = (ours[part] - exact[part]).abs().max()
        assert error < 0.02 * exact[part].abs().max()
