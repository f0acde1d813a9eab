"""Evaluations that take more memory than a GPU has, told in a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class MemoryShort(RuntimeError):
    """A GPU's memory is too small for an evaluation; nothing that was trained is lost."""


@contextmanager
def told_of_memory(what: str, mend: str) -> Iterator[None]:
    """Running out of a GPU's memory inside ends in a sentence about ``what``, with its ``mend``."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryShort(
            f"{what}: the GPU's memory is too small ({str(error).splitlines()[0]}); {mend}"
        ) from None
