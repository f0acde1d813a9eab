"""Checks of arguments: every error says what a value must be, and what it is."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypeVar

from drill.errors import require

Name = TypeVar("Name", bound=str)


def require_type(
    value: object, kind: type | tuple[type, ...], owner: str, name: str, expected: str
) -> None:
    """Raise TypeError with the type of ``value`` unless it is a ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{owner}: {name} must be {expected}, got {type(value).__name__}")


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def one_of(owner: str, name: str, value: Name, known: Sequence[str]) -> Name:
    require(value in known, owner, name, f"one of {', '.join(known)}", value)
    return value
