"""Errors that a user can act on: DrillError and its kinds; hints for unknown names."""

import difflib
from collections.abc import Iterable, Mapping


class DrillError(Exception):
    """What a user can fix; the command line prints it as one line and exits with 1.

    Args:
        message: what is wrong, with its place or value.
        key: the setting, option or path that is wrong; printed before the message.
        hint: what to do about it; printed after the message.
    """

    hint: str | None = None

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.key = message, key
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        text = self.message if self.key is None else f"{self.key}: {self.message}"
        return text if self.hint is None else f"{text}; {self.hint}"


class CaptureError(DrillError, RuntimeError):
    """Work that cannot be captured as a CUDA graph."""


class CheckpointError(DrillError, RuntimeError):
    """A checkpoint that cannot be read."""


class DataError(DrillError, ValueError):
    """Data that cannot be used."""


class Diverged(DrillError, RuntimeError):
    """The loss is no longer a number; the last good checkpoint is on disk."""


class NotExportable(DrillError, ValueError):
    """A model with a part that the other program does not have."""


class OutOfMemory(DrillError, RuntimeError):
    """The memory of the computer or of the GPU is too small."""


class ReportError(DrillError, ValueError):
    """What cannot be reported."""


class RunFolderError(DrillError, RuntimeError):
    """A run folder that cannot be used."""


class SettingsError(DrillError, ValueError):
    """Settings or options that cannot be used."""


class ArgumentError(ValueError):
    """A wrong argument: ``name`` of ``owner`` must be ``expected``, and it is ``value``."""

    def __init__(
        self, message: str, owner: str = "", name: str = "", expected: str = "", value: object = ""
    ) -> None:
        super().__init__(message)  # the one argument that pickle passes on
        self.owner, self.name, self.expected, self.value = owner, name, expected, value


def invalid(owner: str, name: str, expected: str, value: object) -> ArgumentError:
    text = f"{name} must be {expected}, got {value!r}"
    return ArgumentError(f"{owner}: {text}" if owner else text, owner, name, expected, value)


def require(
    ok: bool,
    owner: str,
    name: str,
    expected: str,
    value: object,
    error: type[Exception] = ArgumentError,
) -> None:
    """Raise ``error`` unless ``ok``; ``raise invalid`` where its words would cost time."""
    if not ok:
        found = invalid(owner, name, expected, value)
        raise found if error is ArgumentError else error(str(found))


def check_value(
    ok: bool, name: str, expected: str, value: object, error: type[Exception] = ArgumentError
) -> None:
    """``require`` for what has no owner, such as a setting."""
    require(ok, "", name, expected, value, error)


def nearest(
    word: str, known: Iterable[str] | Mapping[str, str], *, otherwise: str | None = None
) -> str:
    """A hint for an unknown name: what it may have been meant as.

    Args:
        known: names, or each with the text that suggests it: ``{"depth": "layer.depth"}``.
        otherwise: is said where no name is near; all that are known by default.
    """
    known = known if isinstance(known, Mapping) else {each: each for each in known}
    # a name inside a longer word is not meant: numbers in my-numbers.txt
    likely = [each for each in known if len(word) - len(each) < 5]
    for near in difflib.get_close_matches(word, likely, n=1):
        return f"; did you mean {known[near]}?"
    return f"; {otherwise or 'known are ' + ', '.join(known)}"
