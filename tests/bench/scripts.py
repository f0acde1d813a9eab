"""The scripts of bench/ as somebody types them, in the test's own process.

Each would import torch anew, which takes seconds and tells nothing of a script.
"""

import io
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str, *arguments: str | Path, cwd: Path = ROOT) -> CompletedProcess[str]:
    """`python bench/name.py arguments`: how it ended and what it printed.

    An error that a user would see as a traceback is raised.
    """
    path, words = ROOT / "bench" / f"{name}.py", [*map(str, arguments)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.syspath_prepend(str(path.parent))
        patch.setattr(sys, "argv", [str(path), *words])
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:  # a sentence goes to stderr, as the interpreter does it
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                print(ended.code, file=err)
    return CompletedProcess([str(path), *words], code, out.getvalue(), err.getvalue())
