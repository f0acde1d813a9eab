"""Blocks of a Transformer: one pass between products, and attention that can be trained."""

import math

import pytest
import torch
from torch import nn

from drill.models import Transformer
from drill.models.transformer import fused_blocks
from drill.models.transformer.attention import WithoutCudnn, fused_attention
from drill.training.cuda_graphs import CapturedGradients
from tests.helpers.devices import every_impl, triton_devices
from tests.models.small_transformers import B, S, T, both_norms, d, ids, make, ragged, trained


@pytest.mark.parametrize(
    ("norm", "half"),
    [
        ("pre", False),
        ("post", True),
        pytest.param("pre", True, marks=pytest.mark.slow),
        pytest.param("post", False, marks=pytest.mark.slow),
    ],
)
@triton_devices
def test_one_pass_between_products_is_plain_pytorch(norm, device, half):
    ours, theirs = (trained(impl, norm, device, half) for impl in ("triton", "reference"))
    assert [each.dtype for each in ours] == [each.dtype for each in theirs]
    found, expected = (torch.cat([each.flatten() for each in made]) for made in (ours, theirs))
    assert (found - expected).norm() <= (0.03 if half else 1e-5) * expected.norm()
    if not half:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
@triton_devices
def test_no_two_modules_drop_by_one_seed(calls_of, norm, device):
    """All seeds of a stack are drawn at once, and each residual and network takes its own."""
    model = make(norm, 0.3, attention_dropout=0.0, impl="triton").to(device, torch.float32)
    kernels = [calls_of(fused_blocks, name) for name in ("residual_norm", "relu_dropout")]
    draws = calls_of(fused_blocks, "drawn_seeds")
    model(ragged(S).to(device), ids(B, T).to(device))
    taken = [call.options for calls in kernels for call in calls]
    taken = [options["seed"] for options in taken if options.get("dropout", 0.3)]
    seeds = {each.data_ptr() for each in taken if each is not None}
    assert [len(call.result) for call in draws] == [2 * 3, 2 * 4]
    assert seeds == {seed.data_ptr() for call in draws for seed in call.result}
    assert len([each for each in taken if each is not None]) == len(seeds) == 14
    draws.clear()
    model.eval()
    model(ragged(S).to(device), ids(B, T).to(device))
    assert [call.result for call in draws] == [(), ()]


@pytest.mark.parametrize("enabled", [True, False])
def test_attention_past_padding_leaves_cudnn_as_it_was(enabled):
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(enabled)
    with WithoutCudnn():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == enabled
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.gpu
def test_replays_of_one_pass_drop_other_entries():
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
    ours, theirs = (
        torch.cat([x.flatten() for x in trained(each, norm, device, half, without_biases)])
        for each in (impl, "reference")
    )
    assert (ours - theirs).norm() <= (0.03 if half else 1e-5) * theirs.norm()


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
        fused_attention(*parts, mask.to(dtype), 0.0).sin().sum().backward()
        gradients.append(torch.stack([part.grad.double() for part in parts]))
    ours, exact = gradients
    assert ours.isfinite().all()
    for part in (1, 2):  # the queries' is a sum of large numbers that cancel
        error = (ours[part] - exact[part]).abs().max()
        assert error < 0.02 * exact[part].abs().max()
