"""Options that several commands share, and what they load. Nothing here imports torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drill.errors import DrillError, SettingsError

if TYPE_CHECKING:
    from drill.language_modeling.run import Run
    from drill.translation.run import TranslationRun


class Weights(StrEnum):
    averaged = "averaged"
    best = "best"
    last = "last"


class Precision(StrEnum):
    auto = "auto"
    float32 = "float32"
    tf32 = "tf32"
    bfloat16 = "bfloat16"


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


RunFolderArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
WeightsOption = Annotated[
    Weights | None, typer.Option(help="Which checkpoint to load; the best by default.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
PrecisionOption = Annotated[
    Precision | None, typer.Option(help="Precision of matrix products; the run's by default.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show progress about once a minute only.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, e.g. layer.depth=2; repeatable. See `drill settings RECIPE`.",
    ),
]
BeamOption = Annotated[
    int | None, typer.Option(min=1, help="Beam width; the run's by default.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Exponent of the length penalty; the run's by default."),
]
BatchTokensOption = Annotated[
    int, typer.Option(min=1, help="Subwords per batch; fewer need less memory.")
]


def load_language_model(folder: Path, weights: Weights | None, device: str) -> "Run":
    from drill.language_modeling.run import load_run

    chosen: Any = None if weights is None else weights.value
    return load_run(folder, chosen, device)


def load_translator(folder: Path, weights: Weights | None, device: str) -> "TranslationRun":
    from drill.translation.run import load_translation

    chosen: Any = None if weights is None else weights.value
    return load_translation(folder, chosen, device)


@contextmanager
def as_settings_error() -> Iterator[None]:
    """Inside, what a function says about a value of the command line is a SettingsError."""
    try:
        yield
    except DrillError:
        raise
    except (ValueError, TypeError, FloatingPointError) as error:
        raise SettingsError(str(error)) from error


def given(context: typer.Context) -> list[str]:
    """Names of the parameters that the command line gives."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
