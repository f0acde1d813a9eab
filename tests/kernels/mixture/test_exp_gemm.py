"""The product that writes exponentials: the passes around it, and on a Hopper GPU the whole."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from drill.kernels.loss.checks import IGNORE_INDEX
from drill.kernels.mixture import mixture_nll as mixture_module
from drill.kernels.mixture.mixture_nll import mixture_nll
from drill.kernels.runtime import padding
from drill.kernels.runtime.dispatch import INTERPRETED
from tests.helpers.devices import interpreted, needs_hopper, numpy_warnings, on_hopper

pytest.importorskip("triton")

from drill.kernels.mixture import exp_gemm as module
from drill.kernels.mixture.exp_gemm import (
    CLUSTER,
    DEEPEST,
    LABELS,
    ROWS,
    Exponentials,
    depth_of,
    exponentials_missing,
)

pytestmark = numpy_warnings


@pytest.fixture(autouse=True)
def padded_as_on_a_gpu(monkeypatch):
    """And by few programs: 700 labels are widened by 11 of them, not 176, one after the other."""
    monkeypatch.setitem(padding.ALIGN, "cpu", padding.ALIGN["cuda"])
    monkeypatch.setitem(mixture_module.WIDTH_ALIGN, "cpu", mixture_module.WIDTH_ALIGN["cuda"])
    if INTERPRETED:
        monkeypatch.setattr("drill.kernels.mixture.passes_triton._ROWS", 64)


class Emulated(Exponentials):
    """With the kernel's product in PyTorch, and its sums as that many clusters leave them."""

    cluster_count = 5

    def clusters(self) -> int:
        return self.cluster_count

    def multiply(
        self, rows: Tensor, shifts: Tensor, out: Tensor, sums: Tensor, clusters: int
    ) -> None:
        E = (rows.double() @ self.unpacked_weight().t() - shifts[:, None]).exp()
        for at in range(0, self.tiles * LABELS, LABELS):
            left = min(LABELS, out.shape[1] - at)
            assert left > 0  # the kernel stores a part of every tile, never nothing
            out[:, at : at + left] = E[:, at : at + left]
        sums.fill_(torch.nan)  # what no cluster writes is not read
        # Clusters take equal shares of one line: the tiles of the first group of rows, those of the
        # second, ... A group has a sum from each cluster that had some of its tiles.
        high, line = CLUSTER * ROWS, -(-rows.shape[0] // (CLUSTER * ROWS)) * self.tiles
        by_tile = E.view(-1, self.tiles, LABELS).sum(2)
        for cluster in range(clusters):
            at, stop = (line * c // clusters for c in (cluster, cluster + 1))
            while at < stop:
                group, begin = divmod(at, self.tiles)
                end = min(self.tiles, begin + stop - at)
                part = cluster - ((group * self.tiles + 1) * clusters - 1) // line
                here = slice(group * high, (group + 1) * high)
                sums[part, here] = by_tile[here, begin:end].sum(1).float()
                at += end - begin

    def unpacked_weight(self) -> Tensor:
        """W as the kernel multiplies it, (labels of all tiles, depth)."""
        blocks = self.packed.view(self.tiles, -1, 2, 2, LABELS // 8, 8, 4, 2)
        # tile, 32 columns, instruction, half of it, labels by 8, label, thread's columns, of two
        order = blocks.permute(0, 4, 5, 1, 6, 2, 3, 7)  # a thread's eight columns lie together
        return order.reshape(self.tiles * LABELS, self.depth).double()


both_kernels = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(Emulated, marks=interpreted),
        pytest.param(Exponentials, marks=[pytest.mark.gpu, needs_hopper]),
    ],
)


class Chunk(NamedTuple):
    """What ``Exponentials.logit_gradients`` takes, and what it leaves."""

    contexts: Tensor  # (tokens * K, k)
    weight: Tensor  # (V, k)
    bias: Tensor | None
    targets: Tensor  # (tokens,)
    experts: int

    @property
    def rows_targets(self) -> Tensor:
        return self.targets.repeat_interleave(self.experts)

    def solve(self, kernel: type[Exponentials]) -> tuple[Tensor, Tensor, Tensor]:
        """E after the passes (R, V padded), the losses (R,) and the sums (R,)."""
        w, labels, columns = self.widened()
        maker = kernel(w, labels, columns, self.experts, self.contexts.shape[0])
        out = w.new_full((self.contexts.shape[0], w.shape[0]), torch.nan)
        losses, row_factor = out.new_empty((2, out.shape[0]), dtype=torch.float32)
        rows = maker.logit_gradients(self.contexts, self.targets, out, losses, row_factor)
        assert torch.equal(rows[:, : self.contexts.shape[1]], self.contexts)
        assert (rows[:, self.contexts.shape[1] :] == 1).all()
        return out, losses, row_factor

    def widened(self) -> tuple[Tensor, int, int]:
        dtype = torch.bfloat16
        passes = mixture_module._passes("triton")
        w = mixture_module._with_bias(self.weight, self.bias, dtype, passes)
        columns = self.weight.shape[1] + mixture_module._bias_columns(self.bias, dtype)
        return w, self.weight.shape[0], columns

    def truth(self) -> tuple[Tensor, Tensor]:
        """softmax - onehot (R, V) and the losses (R,) of the operands as they were rounded."""
        w, labels, _ = self.widened()
        rows = self.contexts.new_ones(self.contexts.shape[0], w.shape[1])
        rows[:, : self.contexts.shape[1]] = self.contexts
        log_p = (rows.double() @ w[:labels].double().t()).log_softmax(1)
        at = self.rows_targets.clamp(0, labels - 1)[:, None]
        return log_p.exp().scatter_add(1, at, -log_p.new_ones(at.shape)), -log_p.gather(1, at)[:, 0]


def chunk(
    kernel: type[Exponentials],
    tokens: int,
    experts: int,
    labels: int,
    width: int,
    bias: bool = True,
    scale: float = 1.0,
) -> Chunk:
    device = "cpu" if kernel is Emulated else "cuda"
    g = torch.Generator().manual_seed(tokens * labels)
    contexts = scale * torch.randn(tokens * experts, width, generator=g)
    weight = scale * torch.randn(labels, width, generator=g) / width**0.5
    b = torch.randn(labels, generator=g).to(device) if bias else None
    targets = torch.randint(labels, (tokens,), generator=g).to(device)
    return Chunk(contexts.to(device, torch.bfloat16), weight.to(device), b, targets, experts)


def assert_close(found: tuple[Tensor, Tensor, Tensor], given: Chunk, rows: Tensor | slice) -> None:
    out, losses, row_factor = (x[rows].double() for x in found)
    errors, truth = (x[rows] for x in given.truth())
    torch.testing.assert_close(losses, truth, rtol=1e-4, atol=1e-4)
    # Triton's interpreter cuts float32 to bfloat16 where a GPU rounds.
    digit = torch.finfo(torch.bfloat16).eps
    distance = (out[:, : errors.shape[1]] / row_factor[:, None] - errors).norm()
    assert distance < digit * errors.norm() + 1e-5
    assert not out[:, errors.shape[1] :].any()


SIZES = [
    (7, 2, 50, 10),  # one tile, one group
    (1, 1, 1, 1),
    (40, 15, 333, 29),  # several groups, a ragged tile
    (3, 5, 801, 100),
    (20, 16, 170, 410),
    (6, 3, 150, 20),  # labels end in a tile before that in which their padding does
    (6, 3, 449, 20),
]  # tokens, experts, labels, width


@pytest.mark.parametrize(
    ("size", "bias"),
    [*((size, True) for size in SIZES), (SIZES[0], False), (SIZES[3], False)],
    ids=str,
)
@both_kernels
def test_what_is_written_is_the_error_of_the_softmax_times_the_sum(kernel, size, bias):
    given = chunk(kernel, *size, bias)
    assert_close(given.solve(kernel), given, slice(None))


@pytest.mark.parametrize("clusters", [1, 3, 7, 1000])
@interpreted
def test_sums_are_found_however_many_clusters_share_the_labels(clusters, monkeypatch):
    monkeypatch.setattr(Emulated, "cluster_count", clusters)
    given = chunk(Emulated, 20, 30, 700, 6)  # three groups of five tiles
    assert_close(given.solve(Emulated), given, slice(None))


@both_kernels
def test_rows_whose_target_lies_far_below_are_recomputed(kernel):
    given = chunk(kernel, 24, 5, 300, 64, scale=6.0)
    _, losses = given.truth()
    assert (losses > 90).sum() > 20  # their exponentials would be infinite
    assert (losses < 50).sum() > 5
    assert_close(given.solve(kernel), given, slice(None))


@both_kernels
def test_rows_without_a_target_among_the_labels_are_zeros(kernel):
    given = chunk(kernel, 12, 3, 170, 20)
    given.targets[4] = IGNORE_INDEX
    given.targets[7] = 170
    out, losses, row_factor = found = given.solve(kernel)
    lost = (given.rows_targets == IGNORE_INDEX) | (given.rows_targets == 170)
    assert losses[lost].isnan().all()
    assert not out[lost].any()
    assert not row_factor[lost].any()
    assert_close(found, given, ~lost)


@both_kernels
def test_a_masked_target_costs_infinity_and_a_masked_label_has_no_error(kernel):
    given = chunk(kernel, 12, 3, 170, 20)
    given.targets.copy_(torch.arange(12) + 20)
    given.bias[[3, 25]] = -torch.inf
    out, losses, _ = found = given.solve(kernel)
    lost = given.rows_targets == 25
    assert (losses[lost] == torch.inf).all()
    assert not out[lost].any()
    assert not out[~lost, 3].any()
    assert_close(found, given, ~lost)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("label", [0, 169])
@both_kernels
def test_a_label_without_a_finite_logit_leaves_no_finite_loss(kernel, label, value):
    given = chunk(kernel, 12, 3, 170, 20)
    given.bias[label] = value
    _, losses, row_factor = given.solve(kernel)
    assert losses.isnan().all()
    assert row_factor.isnan().all()


def test_columns_are_padded_by_one_at_least():
    assert [depth_of(n) for n in (1, 31, 32, 403, 415)] == [32, 32, 64, 416, 416]


@on_hopper
def test_what_the_kernel_does_not_take_is_said():
    device = torch.device("cuda")
    assert exponentials_missing(device, torch.bfloat16, 9) is None
    assert "not torch.float16" in exponentials_missing(device, torch.float16, 9)
    assert f"up to {DEEPEST - 1} columns" in exponentials_missing(device, torch.bfloat16, DEEPEST)


def test_nothing_is_asked_of_a_gpu_for_a_loss_that_is_not_swept(monkeypatch):
    def missing(*_) -> str:
        raise AssertionError("asked, which may compile")

    monkeypatch.setattr(module, "exponentials_missing", missing)
    given = chunk(Emulated, 4, 2, 50, 10)
    contexts = given.contexts.view(4, 2, -1).float()
    loss = mixture_nll(
        torch.zeros(4, 2), contexts, given.weight, given.targets, given.bias, impl="triton"
    )
    assert loss.isfinite()


@on_hopper
def test_many_chunks_leave_the_same_bits_twice_and_gradients_as_exact_as_pytorch_s(monkeypatch):
    torch.manual_seed(0)
    tokens, experts, labels, width = 300, 15, 3001, 400
    log_prior = torch.randn(tokens, experts, device="cuda").log_softmax(-1).requires_grad_()
    contexts = torch.randn(tokens, experts, width, device="cuda").tanh().requires_grad_()
    weight = (torch.randn(labels, width, device="cuda") / 10).requires_grad_()
    bias = torch.randn(labels, device="cuda").requires_grad_()
    leaves = [log_prior, contexts, weight, bias]
    targets = torch.randint(labels, (tokens,), device="cuda")
    monkeypatch.setitem(mixture_module.CHUNK_ELEMENTS, "cuda", 70 * experts * labels)

    def solve(impl: str = "triton") -> list[Tensor]:
        loss = mixture_nll(log_prior, contexts, weight, targets, bias, impl=impl)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    exact = solve("reference")
    with torch.autocast("cuda", torch.bfloat16):
        found, again, eager = solve(), solve(), solve("reference")
        monkeypatch.setattr(module, "exponentials_missing", lambda *_: "left out")
        by_pass = solve()
    assert all(map(torch.equal, found, again))
    assert not torch.equal(found[1], by_pass[1])  # by another kernel
    # The loss is one number, whose error is luck; see the next test.
    errors = [
        [
            (gradient - truth).norm() / truth.norm()
            for gradient, truth in zip(each, exact, strict=True)
        ]
        for each in (found, eager)
    ]
    for new, old in zip(errors[0][1:-1], errors[1][1:-1], strict=True):
        assert new <= 1.05 * old
    assert errors[0][-1] <= 2**-9  # the bias sums rounded rows; PyTorch sums in float32


@both_kernels
def test_a_sweep_leaves_the_loss_of_the_operands_as_they_were_rounded(
    kernel, monkeypatch, nan_in_fresh_memory
):
    """The rounding itself changes it by 1e-5 either way, and one of the logits as much again."""
    tokens, experts, labels = (300, 15, 3010) if kernel is Exponentials else (40, 3, 449)
    given = chunk(kernel, tokens, experts, labels, 400)
    device, at_once = given.contexts.device, 30
    monkeypatch.setattr(mixture_module, "tokens_at_once", lambda *_: at_once)
    if kernel is Emulated:
        maker = Emulated(*given.widened(), experts, at_once * experts)
        monkeypatch.setattr(mixture_module, "_gradients_by", lambda *_: maker)
    torch.manual_seed(0)
    log_prior = torch.randn(tokens, experts, device=device).log_softmax(-1)
    contexts = given.contexts.float().view(tokens, experts, -1).requires_grad_()
    with torch.autocast(device.type, torch.bfloat16):
        loss = mixture_nll(
            log_prior, contexts, given.weight, given.targets, given.bias, impl="triton"
        )
    _, each = given.truth()
    truth = -(log_prior.double() - each.view(tokens, experts)).logsumexp(1).mean()
    torch.testing.assert_close(loss.detach().double(), truth, rtol=2e-6, atol=0)
    (grad,) = torch.autograd.grad(loss, contexts)
    assert grad.isfinite().all()  # nothing was multiplied that nobody has written
