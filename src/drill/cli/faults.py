"""Errors that a user can mend, each as its sentence."""

import torch

from drill.checkpoint import CheckpointError
from drill.data import DataError
from drill.data.files import NotWritten
from drill.divergence import Diverged
from drill.evaluation.memory import MemoryShort
from drill.evaluation.stalls import Stalled
from drill.graphs import CaptureError
from drill.kernels.nvrtc import CompileError
from drill.recipes import SettingsError
from drill.report.runs import ReportError
from drill.run_folder import RunFolderError
from drill.translation_training import NothingTrained

USER_ERRORS = (
    CaptureError,
    CheckpointError,
    CompileError,
    DataError,
    Diverged,
    MemoryShort,
    NothingTrained,
    NotWritten,
    ReportError,
    RunFolderError,
    SettingsError,
    Stalled,
)
"""They say it themselves."""

FAULTS = (*USER_ERRORS, torch.OutOfMemoryError, OSError)
"""All that is shown as a sentence. Of BrokenPipeError nobody would read it: catch that before."""


def sentence(fault: BaseException) -> str:
    if isinstance(fault, torch.OutOfMemoryError):
        return (
            f"the GPU's memory is too small ({str(fault).splitlines()[0]}); take a smaller "
            "training.batch_size, or training.micro_batch for the same result in pieces; of a "
            "translator a smaller training.max_tokens and a larger training.accumulate"
        )
    if isinstance(fault, OSError) and not isinstance(fault, USER_ERRORS):
        return f"{fault.filename or 'output'}: {fault.strerror or fault}"
    return f"{fault}"
