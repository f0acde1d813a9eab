"""Optional packages: a missing one is an error with the command that installs it."""

import importlib
from importlib.util import find_spec
from typing import Any

from drill.errors import DataError


def check_packages(who_needs: str, *packages: str) -> None:
    """DataError, which begins with ``who_needs``, if one is not installed; none is imported."""
    missing = [name for name in packages if find_spec(name.replace("-", "_")) is None]
    if missing:
        raise DataError(f"{who_needs} {', '.join(missing)}; pip install {' '.join(missing)}")


def import_optional(module: str, who_needs: str, *packages: str) -> Any:
    """A module of optional packages; DataError as in ``check_packages`` if it is not there."""
    check_packages(who_needs, *packages)
    return importlib.import_module(module)
