"""Exceptions as the command line prints them: one line each."""

import traceback

from drill.cli.display import printable
from drill.errors import DrillError, OutOfMemory

CPU_MEMORY = "DefaultCPUAllocator: "  # in torch's message, whose class is a plain RuntimeError


def as_drill_error(error: Exception) -> DrillError | None:
    """The error if a user can act on it, also one of the operating system; None for a bug."""
    if isinstance(error, DrillError):
        return error
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be loaded
        return _out_of_memory("GPU memory", str(error).splitlines()[0])
    if isinstance(error, MemoryError) or CPU_MEMORY in str(error):
        cause = str(error).split(CPU_MEMORY)[-1].split(". Error code")[0]
        return _out_of_memory("memory", cause)
    if isinstance(error, FloatingPointError):  # weights that give NaN
        return DrillError(str(error))
    if isinstance(error, OSError):
        return DrillError(error.strerror or str(error), key=str(error.filename or "output"))
    return None


def _out_of_memory(kind: str, cause: str) -> OutOfMemory:
    return OutOfMemory(
        f"out of {kind} ({cause or 'none left'})",
        hint="take a smaller model or training.batch_size, or training.micro_batch for the same "
        "result in pieces; for a translator a smaller training.max_tokens and a larger "
        "training.gradient_accumulation_steps, or a smaller --batch-tokens or --beam; where other "
        "programs hold the memory, make room: the same command resumes a training",
    )


def bug_lines(error: Exception) -> str:
    """The traceback, then a line that says what failed."""
    trace = "".join(traceback.format_exception(error))
    fault = f"{type(error).__name__}: {printable(str(error))}"
    return f"{trace}drill: {fault}; this is a bug in drill, please report it with these lines"
