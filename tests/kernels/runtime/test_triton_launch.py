"""Launches by addresses: what Triton has compiled is used again for what it was compiled for."""

import inspect
import logging
from types import SimpleNamespace

import pytest
import torch

from drill.kernels.runtime.dispatch import INTERPRETED, TRITON_INSTALLED, tell_once
from drill.kernels.transformer.relu_dropout import relu_dropout
from drill.kernels.transformer.residual_norm import residual_norm
from drill.models.translator import Translator
from drill.translation.step import translation_ways
from tests.tiny_translations import small_translator

if not TRITON_INSTALLED:
    pytest.skip("Triton is not installed", allow_module_level=True)

import triton
from triton.backends.nvidia.driver import CudaLauncher

from drill.kernels.runtime import triton_launch as launching
from drill.kernels.runtime.triton_launch import Launcher, launch_way


class OnDevice:
    """As much of a tensor on a GPU as a launch asks for."""

    def __init__(self, address: int, dtype: torch.dtype = torch.float32, device: int = 0) -> None:
        self.address, self.dtype, self.device = address, dtype, device

    def get_device(self) -> int:
        return self.device

    def data_ptr(self) -> int:
        return self.address


class Kernel:
    """Notes Triton's own launches in ``seen``, and those of what it has compiled in ``again``."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.seen: list[tuple] = []
        self.again: list[tuple] = []

    def __getitem__(self, grid):
        def launch(*arguments, num_warps):
            self.seen.append((grid, *arguments, num_warps))
            return self

        return launch

    def run(self, *arguments):
        self.again.append(arguments)


@pytest.fixture
def gpu(monkeypatch):
    """A device 0 that has the stream 77, and a Triton that is launched by addresses."""
    active = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 77)
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(launching.triton, "__version__", "3.6.0")


def test_the_second_launch_of_a_kind_is_by_addresses(gpu):
    kernel = Kernel()
    launcher = Launcher(kernel)
    first, second = OnDevice(64), OnDevice(128)
    launcher((3, 2), (first, None), (10, 0.5), (512, True), 4)
    assert kernel.seen == [((3, 2), first, None, 10, 0.5, 512, True, 4)]
    launcher((7, 1), (second, None), (20, 0.1), (512, True), 4)
    assert len(kernel.seen) == 1
    arguments = (7, 1, 1, 77, "function", "metadata", None, None, None, 128, None, 20, 0.1, 512)
    assert kernel.again == [(*arguments, True)]


@pytest.mark.parametrize(
    ("tensors", "constants", "warps"),
    [
        ((OnDevice(64), OnDevice(64)), (512,), 4),
        ((OnDevice(64, torch.bfloat16), None), (512,), 4),
        ((OnDevice(64), None), (256,), 4),
        ((OnDevice(64), None), (512,), 8),
    ],
    ids=["tensors", "dtypes", "constants", "warps"],
)
def test_what_is_of_another_kind_is_looked_at_by_triton(gpu, tensors, constants, warps):
    kernel = Kernel()
    launcher = Launcher(kernel)
    launcher((1, 1), (OnDevice(64), None), (1,), (512,), 4)
    launcher((1, 1), tensors, (1,), constants, warps)
    assert (len(kernel.seen), len(kernel.again)) == (2, 0)


def test_unaligned_addresses_are_always_looked_at_and_never_kept(gpu):
    kernel = Kernel()
    launcher = Launcher(kernel)
    for address in (8, 64, 8, 64, 2):
        launcher((1, 1), (OnDevice(64), OnDevice(address)), (1,), (512,), 4)
    assert [each[2].address for each in kernel.seen] == [8, 64, 8, 2]
    assert [each[10] for each in kernel.again] == [64]


def test_a_profiler_of_triton_hears_of_every_launch(gpu):
    kernel = Kernel()
    launcher = Launcher(kernel)
    hooks = launching.knobs.runtime.launch_enter_hook
    hooks.add(print)
    try:
        for _ in range(3):
            launcher((1, 1), (OnDevice(64),), (1,), (512,), 4)
    finally:
        hooks.remove(print)
    assert (len(kernel.seen), len(kernel.again)) == (3, 0)


@pytest.mark.parametrize("version", ["3.7.1", "3.60.0", "9.1.0"])
def test_an_unknown_triton_launches_by_itself_and_that_is_told(gpu, monkeypatch, caplog, version):
    tell_once.cache_clear()
    monkeypatch.setattr(launching.triton, "__version__", version)
    kernel = Kernel()
    launcher = Launcher(kernel)
    with caplog.at_level(logging.INFO, "drill"):
        for _ in range(3):
            launcher((1, 1), (OnDevice(64),), (1,), (512,), 4)
    assert (len(kernel.seen), len(kernel.again)) == (3, 0)
    reason = f"Triton is {version}, and launches by addresses are proven with 3.6"
    assert [each.message for each in caplog.records] == [
        f"launches: by Triton, which costs the host more ({reason})"
    ]
    assert launch_way(torch.device("cuda")) == f"by Triton ({reason})"


def said_of_launches(model: Translator) -> list[str]:
    ways = translation_ways(model, None, 60, None)
    return [each for each in ways if each.startswith("launches")]


def test_a_translator_says_how_its_kernels_are_launched(gpu):
    assert launch_way(torch.device("cuda")) == "by addresses"
    model = small_translator()
    assert said_of_launches(model) == []
    if INTERPRETED:
        model.transformer.impl = "triton"
        assert said_of_launches(model) == ["launches by Triton (which interprets them)"]


@pytest.mark.gpu
def test_a_translator_on_a_gpu_says_how_its_kernels_are_launched():
    (way,) = said_of_launches(small_translator().cuda())
    assert way.startswith("launches by addresses" if launching._known() else "launches by Triton")


OF_THE_SAME_SOURCE = ("3.6.", "3.7.")


@pytest.mark.skipif(
    not triton.__version__.startswith(OF_THE_SAME_SOURCE), reason="this Triton was never read"
)
def test_the_installed_triton_is_launched_with_the_arguments_it_takes(gpu):
    """A grid, a stream, a function; then, by these names or without, metadata and two hooks."""
    kernel = Kernel()
    launcher = Launcher(kernel)
    for _ in range(2):
        launcher((1, 1), (OnDevice(64),), (1,), (512,), 4)
    taken = inspect.signature(CudaLauncher.__call__).bind(None, *kernel.again[0])
    named = {name: given for name, given in taken.arguments.items() if name not in ("self", "args")}
    expected = {"gridX": 1, "gridY": 1, "gridZ": 1, "stream": 77, "function": "function"}
    rest = {"kernel_metadata": "metadata", "launch_metadata": None}
    rest |= {"launch_enter_hook": None, "launch_exit_hook": None}
    assert named in (expected, expected | rest)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_dropout_that_is_a_whole_number_launches_what_a_float_compiled(device, monkeypatch):
    if device == "cpu" and not INTERPRETED:
        pytest.skip("Triton does not interpret here")
    seen = []
    launch = Launcher.__call__

    def noted(self, grid, tensors, numbers, constants, warps):
        seen.append([type(each) for each in numbers])
        launch(self, grid, tensors, numbers, constants, warps)

    monkeypatch.setattr(Launcher, "__call__", noted)
    x = torch.randn(4, 16, device=device).requires_grad_()
    vector = torch.ones(16, device=device)

    def launches(dropout):
        relu_dropout(x, vector, dropout, impl="triton").sum().backward()
        sums = residual_norm(x, x, vector, vector, dropout=dropout, impl="triton")
        sum(sums).sum().backward()
        found = seen.copy()
        seen.clear()
        return found

    assert launches(0) == launches(0.0)


@pytest.mark.gpu
def test_rows_at_any_address_come_out_alike():
    """16 does not divide the second address; launched as the first it would be read wrongly."""
    memory = torch.randn(8 * 64 + 1, device="cuda")
    bias = torch.zeros(64, device="cuda")
    for first in (0, 1, 0, 1):
        x = memory[first : first + 8 * 64].view(8, 64)
        assert torch.equal(relu_dropout(x, bias, 0.0, impl="triton"), x.relu())
