"""CUDA C++ compiled at first use by the compiler that comes with PyTorch, cached on disk.

No CUDA toolkit is needed: NVRTC is part of a CUDA build of PyTorch, and the driver loads the code.
"""

import ctypes
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drill.errors import DrillError
from drill.files import WriteError, atomic_write, cache_folder, warn_uncached

MAXIMUM_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

UNCACHED = ("compiled kernels", "every start compiles them again, half a minute")


class CompileError(DrillError, RuntimeError):
    """CUDA source that does not compile here, or that the driver does not load."""


class DriverError(DrillError, RuntimeError):
    """What the NVIDIA driver refuses."""

    hint = "run it again on a free GPU"


Argument = Tensor | int | ctypes.Structure | ctypes.c_float


@cache
def unavailable_reason() -> str | None:
    """Why nothing can be compiled and loaded here; None where it can."""
    if torch.version.cuda is None:
        return "PyTorch is built without CUDA"
    try:
        _driver()
    except OSError as error:
        return f"the NVIDIA driver's library is not found ({error})"
    try:
        _compiler()
    except CompileError as error:
        return str(error)
    return None


class Kernel:
    """A compiled kernel; calling it launches it."""

    def __init__(self, function: ctypes.c_void_p, shared: int) -> None:
        self._function = function
        self._shared = shared
        _check(_driver().cuFuncSetAttribute(function, MAXIMUM_SHARED, shared), "shared memory")

    def __call__(
        self,
        blocks: int,
        threads: int,
        arguments: Sequence[Argument],
        *,
        cooperative: bool = False,
    ) -> None:
        """Launch on the current stream. A tensor is passed as its address, an int as 32 bits, what
        ctypes made as it is.

        If ``cooperative``, all blocks are on the device at once, as those that wait for one another
        have to be; more than an empty device holds raise. During another launch some may come when
        that one is done, and those that are there wait for them.
        """
        values = [_passed(each) for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(each), ctypes.c_void_p) for each in values)
        )
        _enter_context()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        shape = (self._function, blocks, 1, 1, threads, 1, 1, self._shared, stream, pointers)
        driver = _driver()
        if cooperative:
            _check(driver.cuLaunchCooperativeKernel(*shape), "launch")
        else:
            _check(driver.cuLaunchKernel(*shape, None), "launch")

    def clusters_at_once(self, blocks: int, threads: int) -> int:
        """How many clusters of a kernel with ``__cluster_dims__`` an empty device runs at once."""
        _enter_context()
        config = _LaunchConfig(grid=(blocks, 1, 1), block=(threads, 1, 1), shared=self._shared)
        count = ctypes.c_int()
        asked = _driver().cuOccupancyMaxActiveClusters(
            ctypes.byref(count), self._function, ctypes.byref(config)
        )
        _check(asked, "counting clusters")
        return count.value


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def _enter_context() -> None:
    """Make torch's context that of this thread, where it has none.

    A thread that autograd has started gets one when torch first calls CUDA in it, and a launch of
    ours may come before that.
    """
    current = ctypes.c_void_p()
    _check(_driver().cuCtxGetCurrent(ctypes.byref(current)), "asking for the context")
    if current.value is None:
        context = _context(torch.cuda.current_device())
        _check(_driver().cuCtxSetCurrent(context), "entering the context")


@cache
def _context(index: int) -> ctypes.c_void_p:
    """The context that torch uses on this device, for the rest of the process."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index), "finding the device")
    retained = _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _check(retained, "retaining the context")
    return context


def _passed(argument: Argument) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else argument


def load_kernel(
    source: Path, name: str, defines: Mapping[str, int], shared: int, device: torch.device
) -> Kernel:
    """The kernel ``name`` of ``source`` for this device with these macros."""
    return _kernel(source, name, tuple(sorted(defines.items())), shared, device.index or 0)


@cache
def _kernel(
    source: Path, name: str, defines: tuple[tuple[str, int], ...], shared: int, index: int
) -> Kernel:
    major, minor = torch.cuda.get_device_capability(index)
    target = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    options = [f"--gpu-architecture={target}", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in defines]
    text = _text(source)
    key = hashlib.sha256("\0".join([*options, str(torch.version.cuda)]).encode() + text).hexdigest()
    cubin = _cached(f"{key}.cubin", lambda: _compile(text, options, source.name))
    torch.cuda.init()
    with torch.cuda.device(index):
        torch.zeros(1, device="cuda")  # the module loads into the context that torch has made
        try:
            return _loaded(cubin, name, shared)
        except DriverError as error:
            raise CompileError(
                f"{source.name}: does not load ({error.message}); update the NVIDIA driver, or "
                f"install a PyTorch of an older CUDA than {torch.version.cuda}"
            ) from error


def _text(source: Path) -> bytes:
    """The source with the files of its folder that it includes; errors name the right file."""
    lines = []
    for number, line in enumerate(source.read_bytes().split(b"\n"), 1):
        found = re.fullmatch(rb'#include "(.+)"', line)
        if found is None:
            lines.append(line)
            continue
        included = source.parent / found[1].decode()
        lines.append(f'#line 1 "{included.name}"'.encode())
        lines.append(_text(included))
        lines.append(f'#line {number + 1} "{source.name}"'.encode())
    return b"\n".join(lines)


def _loaded(cubin: bytes, name: str, shared: int) -> Kernel:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), cubin), "loading")
    found = _driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode())
    _check(found, f"finding {name}")
    return Kernel(function, shared)


def _cached(name: str, make: Callable[[], bytes]) -> bytes:
    """The file ``name`` of the cache; made and saved if it is missing."""
    path = cache_folder() / "cubins" / name
    try:
        return path.read_bytes()
    except OSError:
        content = make()
    try:
        atomic_write(path, content)
    except WriteError as error:
        warn_uncached(*UNCACHED, path.parent, error.reason)
    return content


def _compile(source: bytes, options: Sequence[str], name: str) -> bytes:
    compiler = _compiler()
    program = ctypes.c_void_p()
    made = compiler.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None)
    if made != 0:
        raise CompileError(f"{name}: NVRTC makes no program (error {made})")
    try:
        given = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
        if compiler.nvrtcCompileProgram(program, len(options), given) != 0:
            size = ctypes.c_size_t()
            compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            compiler.nvrtcGetProgramLog(program, log)
            raise CompileError(
                f"{name}: NVRTC of CUDA {torch.version.cuda} does not compile it with "
                f"{' '.join(options)} ({' '.join(log.value.decode().split())}); install a PyTorch "
                "whose CUDA knows this GPU"
            )
        size = ctypes.c_size_t()
        compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiler() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompileError(f"NVRTC of CUDA {major} is not found, though PyTorch brings it")


def _check(result: int, what: str) -> None:
    if result != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown"
        raise DriverError(f"CUDA, {what}: {reason} (error {result})")
