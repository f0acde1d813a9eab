"""Whether others use this machine's cores.

Threads of torch that wait for each other spin. On idle cores that is faster than sleeping; where
others work it takes the cores from the threads that are waited for. torch's OpenMP reads which it
shall be when it is loaded, so the command asks before that: this module imports nothing of torch.
"""

import logging
import os
import time
from pathlib import Path

POLICY, PASSIVE = "OMP_WAIT_POLICY", "passive"
THREADS = "OMP_NUM_THREADS"
SAMPLES, PAUSE = 10, 0.01  # seconds between two

logger = logging.getLogger("drill")

_told = False


def crowded() -> bool:
    """Whether the cores were busy in the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1)


def others_running() -> bool:
    """Whether they are busy now too: the last minute may have been one of our own commands."""
    running = 0
    for _ in range(SAMPLES):
        try:  # "2.10 1.80 1.50 3/420 9999": of 420 threads 3 run, one of them this one
            running += int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
        except (OSError, IndexError, ValueError):
            return True  # not Linux: the last minute is all that is known
        time.sleep(PAUSE)
    return running >= 0.25 * (os.cpu_count() or 1) * SAMPLES


def warn_of_spinning(threads: int) -> None:
    """Log, once a process, that so many threads of torch will spin among others.

    Where either variable is set somebody has chosen. A library can set none: torch has read both.
    """
    global _told
    if _told or threads < 2 or POLICY in os.environ or THREADS in os.environ:
        return
    if crowded() and others_running():
        _told = True
        logger.warning(
            f"others use this machine's cores, and {threads} threads of torch that spin while they "
            f"wait may be many times slower: set {POLICY}={PASSIVE}, or {THREADS}=1, before Python "
            "starts"
        )
