"""Exceptions as the command line prints them: one line each."""

import re
import tempfile
import traceback

from drill.cli.display import printable
from drill.errors import DrillError, OutOfMemory

CPU_MEMORY = "DefaultCPUAllocator: "  # in torch's message, whose class is a plain RuntimeError
LONGEST = 200  # characters of a value in a message


def as_drill_error(error: Exception) -> DrillError | None:
    """The error if a user can act on it, also one of the operating system; None for a bug."""
    if isinstance(error, DrillError):
        return error
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be loaded
        return _out_of_memory("GPU memory", str(error).splitlines()[0])
    if isinstance(error, MemoryError) or CPU_MEMORY in str(error):
        cause = str(error).split(CPU_MEMORY)[-1].split(". Error code")[0]
        return _out_of_memory("memory", cause)
    if isinstance(error, OSError):
        return DrillError(error.strerror or str(error), key=str(error.filename or "output"))
    return None


def _out_of_memory(kind: str, cause: str) -> OutOfMemory:
    return OutOfMemory(
        f"out of {kind} ({cause or 'none left'})",
        hint="take a smaller model or training.batch_size, or training.micro_batch for the same "
        "result in pieces; for a translator a smaller training.max_tokens and a larger "
        "training.gradient_accumulation_steps",
    )


def one_line(error: Exception) -> str:
    """The message with long values shortened and control characters escaped."""
    values = rf"'[^']{{{LONGEST},}}'|\S{{{LONGEST},}}"
    return printable(re.sub(values, lambda m: f"{m[0][:80]}...{m[0][-40:]}", str(error)))


def bug_line(error: Exception) -> str:
    """What failed and where the traceback is saved, or the traceback if it cannot be saved."""
    trace = "".join(traceback.format_exception(error))
    what = f"{type(error).__name__}: {one_line(error)}; this is a bug in drill, please report it"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="drill-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(trace)
    except OSError:
        return f"{what}\n{trace}"
    return f"{what} with {file.name}"
