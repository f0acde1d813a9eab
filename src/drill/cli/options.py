"""Options that several commands share, and the input they name. Nothing here imports torch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drill.errors import DataError, DrillError, SettingsError
from drill.files import BYTE_ORDER_MARK, GZIP, UNPACKING_FAULTS, XZ

if TYPE_CHECKING:
    from drill.language_modeling.run import LanguageModelRun
    from drill.translation.run import TranslationRun


ZERO_PROBABILITY = "the weights give a word zero probability; evaluate others, or train again"


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
BeamOption = Annotated[int | None, typer.Option(min=1, help="Beam width; the run's by default.")]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Exponent of the length penalty; the run's by default."),
]
BatchTokensOption = Annotated[
    int, typer.Option(min=1, help="Subwords per batch; fewer need less memory.")
]


def load_language_model(folder: Path, weights: Weights | None, device: str) -> "LanguageModelRun":
    from drill.language_modeling.run import load_run

    chosen: Any = None if weights is None else weights.value
    return load_run(folder, chosen, device)


def load_translator(folder: Path, weights: Weights | None, device: str) -> "TranslationRun":
    from drill.translation.run import load_translation

    chosen: Any = None if weights is None else weights.value
    return load_translation(folder, chosen, device)


@contextmanager
def as_settings_error() -> Iterator[None]:
    """Turn a ValueError about a value of the command line into a SettingsError."""
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


# -- lines of input -------------------------------------------------------------------------------

CHUNK = 1 << 16  # bytes read at a time, some hundred lines


def is_standard_input(file: Path | None) -> bool:
    return file is None or str(file) == "-"


def name_of(file: Path | None) -> str:
    return "standard input" if is_standard_input(file) else str(file)


def blocks_of_lines(file: Path | None, *, nul: bool = False) -> Iterator[list[str]]:
    """Lines of a file or of standard input, in blocks as they arrive.

    A .gz or .xz file is unpacked. A line that is not UTF-8 is a DataError, after the lines before
    it have been yielded; so is one with NUL, unless ``nul``.
    """
    if file is None or is_standard_input(file):
        yield from _blocks(sys.stdin.buffer, name_of(file), nul, plain=True)
    else:
        from drill.data.parallel.parallel_text import opened_text

        with opened_text(file) as stream:
            yield from _blocks(stream, name_of(file), nul)


def _blocks(stream: Any, name: str, nul: bool, plain: bool = False) -> Iterator[list[str]]:
    rest, number = b"", 0
    while chunk := _read(stream, name):
        if plain and number == 0:
            _check_uncompressed(rest + chunk, name)
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield from _decoded(whole, name, number, nul)
            number += len(whole)
    if rest:
        yield from _decoded([rest], name, number, nul)


def _check_uncompressed(start: bytes, name: str) -> None:
    for mark, kind, program in ((GZIP, "gzip", "gunzip"), (XZ, "xz", "unxz")):
        if start.startswith(mark):
            raise DataError(f"{name}: is {kind}, not text; pipe it through {program}")


def _read(stream: Any, name: str) -> bytes:
    try:
        chunk: bytes = stream.read1(CHUNK)
    except UNPACKING_FAULTS as error:
        raise DataError(
            f"{name}: cannot be read ({error}); the file is damaged or cut off, get it again"
        ) from None
    return chunk


def _decoded(lines: list[bytes], name: str, before: int, nul: bool) -> Iterator[list[str]]:
    """The lines as one block; ``before`` is the number of lines before it."""
    if before == 0:
        lines = [lines[0].removeprefix(BYTE_ORDER_MARK), *lines[1:]]
    found: list[str] = []
    for number, line in enumerate(lines, start=before + 1):
        fault = _fault(line, nul)
        if fault is not None:
            if found:
                yield found
            raise DataError(f"{name}: line {number} {fault}")
        found.append(line.removesuffix(b"\r").decode("utf-8"))
    yield found


def _fault(line: bytes, nul: bool) -> str | None:
    if b"\0" in line and not nul:
        return "contains NUL, so this is not plain text; give a UTF-8 text file"
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8; convert it first"
    return None
