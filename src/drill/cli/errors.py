"""Errors that a user can mend, each as its sentence."""

import torch

from drill.data import DataError
from drill.errors import (
    CaptureError,
    CheckpointError,
    Diverged,
    MemoryShort,
    NothingTrained,
    ReportError,
    RunFolderError,
    SettingsError,
)
from drill.files import WriteError
from drill.kernels.lstm.persistent.recurrence import Stalled
from drill.kernels.runtime.nvrtc import CompileError, DriverError

USER_ERRORS = (
    CaptureError,
    CheckpointError,
    CompileError,
    DataError,
    Diverged,
    MemoryShort,
    NothingTrained,
    WriteError,
    ReportError,
    RunFolderError,
    SettingsError,
    Stalled,
)
"""They say it themselves."""

CPU_MEMORY = "DefaultCPUAllocator: "
"""What torch's message says of memory beside a GPU's, which has no class of its own."""


def sentence(fault: BaseException) -> str | None:
    """What is shown of it; None where the fault is not the user's, and a traceback is wanted.

    Of BrokenPipeError nobody would read it: catch that before.
    """
    if isinstance(fault, USER_ERRORS):
        return f"{fault}"
    if isinstance(fault, torch.OutOfMemoryError):
        return _memory("the GPU's memory", str(fault).splitlines()[0])
    if isinstance(fault, MemoryError) or _is_memory(fault):
        return _memory("the memory", str(fault).split(CPU_MEMORY)[-1].split(". Error code")[0])
    if isinstance(fault, DriverError):
        return f"the GPU refuses work ({fault}); run it again on a free GPU"
    if isinstance(fault, OSError):
        return f"{fault.filename or 'output'}: {fault.strerror or fault}"
    return None


def _is_memory(fault: BaseException) -> bool:
    return isinstance(fault, RuntimeError) and CPU_MEMORY in str(fault)


def _memory(whose: str, what: str) -> str:
    return (
        f"{whose} is too small ({what or 'no more of it'}); take a smaller model or "
        "training.batch_size, or training.micro_batch for the same result in pieces; of a "
        "translator a smaller training.max_tokens and a larger training.accumulate"
    )
