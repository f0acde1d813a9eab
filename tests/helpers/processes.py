"""Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*arguments: object, timeout: float = 300, **environment: str) -> str:
    """Run Python with one thread in the root of the project, which must succeed; what it prints."""
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", **environment},
        timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
