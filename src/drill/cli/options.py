"""Options that several commands share, and the input they name. Nothing here imports torch."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option

from drill.errors import DataError, DrillError, SettingsError
from drill.files import UNPACKING_FAULTS, check_run, decode_text, opened_text
from drill.recipes.reader import apply_overrides, read, recipe_names


class Split(StrEnum):  # typer has no lists of literals
    train = "train"
    valid = "valid"
    test = "test"


def run_folder(folder: Path) -> Path:
    """``folder``, which must have a run; checked here, before a command imports torch."""
    check_run(folder)
    return folder


def is_run_folder(recipe: str, changes: Sequence[str]) -> bool:
    """Whether RECIPE is the folder of a run. A recipe comes before a folder of its name.

    Raises what a wrong name or change does before a command imports torch.
    """
    # Path.is_dir() raises where a name is too long.
    if recipe in recipe_names() or not os.path.isdir(recipe):
        apply_overrides(read(recipe), changes)
        return False
    check_run(Path(recipe), "name a run folder, or a recipe: `drill recipes` lists them")
    return True


Run = Annotated[Path, Argument(metavar="RUN", help="A run folder.", callback=run_folder)]
Runs = Annotated[Path, Option("--runs", help="The folder of all run folders.")]
Lines = Annotated[
    Path | None, Argument(metavar="FILE", help="One sentence per line; standard input by default.")
]
Weights = Annotated[
    Literal["averaged", "best", "last"] | None,
    Option(help="Which checkpoint to load; the best by default."),
]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:1, ...")]
Precision = Annotated[
    Literal["auto", "float32", "tf32", "bfloat16"] | None,
    Option(help="Precision of matrix products; the run's by default."),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print results and warnings only.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, Option("--json", help="Print JSON, one object per line.")]
Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, e.g. layer.depth=2; repeatable. See `drill settings RECIPE`.",
    ),
]
Beam = Annotated[int | None, Option(min=1, help="Translators: beam width; the run's by default.")]
LengthPenalty = Annotated[
    float | None, Option(help="Translators: exponent of the length penalty; the run's by default.")
]
BatchTokens = Annotated[
    int, Option(min=1, help="Translators: subwords per batch; fewer need less memory.")
]
TopK = Annotated[int | None, Option(min=1, help="Sampling: only the k most probable tokens.")]
TopP = Annotated[
    float | None,
    Option(help="Nucleus sampling: the smallest set of tokens whose probability reaches p."),
]
Seed = Annotated[int | None, Option(min=0, help="Sampling: random seed.")]


def recipes_from(start: str) -> list[str]:
    """Names that complete ``start``, for the shell."""
    return [name for name in recipe_names() if name.startswith(start)]


@contextmanager
def as_settings_error() -> Iterator[None]:
    """Turn a ValueError about a value of the command line into a SettingsError.

    Only what reads such values goes into the block: elsewhere a ValueError is a bug.
    """
    try:
        yield
    except DrillError:
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from error


@contextmanager
def checked(block: AbstractContextManager[Any]) -> Iterator[Any]:
    """``block``, whose start reads values of the command line: a ValueError there is about one."""
    with ExitStack() as stack:
        with as_settings_error():
            entered = stack.enter_context(block)
        yield entered


def given_options(context: Context) -> list[str]:
    """Names of the parameters that the command line gives."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def check_one_text(split: list[Split] | None, file: object, option: str) -> None:
    if split and file is not None:
        raise SettingsError(
            f"is a split of the run's corpus; leave it or {option} out", key="--split"
        )


# -- lines of input -------------------------------------------------------------------------------

CHUNK = 1 << 16  # bytes read at a time, some hundred lines


def is_standard_input(file: Path | None) -> bool:
    return file is None or str(file) == "-"


def name_of(file: Path | None) -> str:
    return "standard input" if is_standard_input(file) else str(file)


def _opened(file: Path | None) -> AbstractContextManager[Any]:
    if file is None or is_standard_input(file):
        if sys.stdin is None:
            raise DataError("is closed; name a file", key=name_of(file))
        return nullcontext(sys.stdin.buffer)
    return opened_text(file)


def blocks_of_lines(file: Path | None, *, nul: bool = False) -> Iterator[list[str]]:
    """Lines of a file or of standard input, in blocks as they arrive.

    A .gz or .xz file is unpacked. A line that is not UTF-8 is a DataError, and so is one with NUL,
    unless ``nul``.
    """
    name, rest, done, more = name_of(file), b"", 0, True
    with _opened(file) as stream:
        while more:
            try:
                chunk = stream.read1(CHUNK)
            except UNPACKING_FAULTS as error:
                raise DataError(f"cannot be read ({error})", key=name) from None
            more = bool(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            if not more and rest:
                lines.append(rest)
            if lines:
                yield [
                    decode_text(line.removesuffix(b"\r"), name, number, nul=nul)
                    for number, line in enumerate(lines, start=done + 1)
                ]
            done += len(lines)
