"""Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def python(*arguments: object, cwd: Path = ROOT, timeout: float = 900, **environment: str) -> str:
    """Run Python with one thread, which must succeed; what it prints."""
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", **environment},
        timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def two_processes(*arguments: object, **options: Any) -> str:
    """The same by torchrun, in two processes."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    return python(*launcher, *arguments, **options)
