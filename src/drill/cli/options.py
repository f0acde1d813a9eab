"""What the commands on a trained run share: its folder, its weights, its device."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from drill.errors import SettingsError
from drill.language_modeling.run import Run, load_run
from drill.translation.run import TranslationRun, load_translation


class Weights(StrEnum):
    averaged = "averaged"
    best = "best"
    last = "last"


class Precision(StrEnum):
    auto = "auto"
    float32 = "float32"
    tf32 = "tf32"
    bfloat16 = "bfloat16"


RunFolderArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
WeightsOption = Annotated[
    Weights | None, typer.Option(help="Which weights; the best there are by default.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def loaded(folder: Path, weights: Weights | None, device: str) -> Run:
    chosen: Any = None if weights is None else weights.value
    return load_run(folder, chosen, device)


def loaded_translator(folder: Path, weights: Weights | None, device: str) -> TranslationRun:
    chosen: Any = None if weights is None else weights.value
    return load_translation(folder, chosen, device)


@contextmanager
def told() -> Iterator[None]:
    """What a function says about a value of the command line is told as its sentence."""
    try:
        yield
    except (ValueError, TypeError, FloatingPointError) as error:
        raise SettingsError(str(error)) from error
