"""Whether others use this machine's cores, and what the command does about it before torch starts.

Threads of torch that wait for each other spin. On idle cores that is faster than sleeping; where
others work it takes the cores from the threads that are waited for. torch's OpenMP reads which it
shall be when it is loaded, so this module imports nothing of torch.
"""

import os
import sys
import time
from pathlib import Path

POLICY, PASSIVE = "OMP_WAIT_POLICY", "passive"
SAMPLES, PAUSE = 10, 0.01  # seconds between two


def wait_passively_in_a_crowd() -> None:
    """Let threads sleep while they wait, unless somebody has chosen or it is too late to."""
    if POLICY not in os.environ and "torch" not in sys.modules and crowded() and others_running():
        os.environ[POLICY] = PASSIVE


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
