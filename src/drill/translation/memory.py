"""Smaller batches where a GPU runs out of memory."""

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

logger = logging.getLogger("drill")

Result = TypeVar("Result")


def within_memory(
    work: Callable[[int], Result], tokens: int, least: int, hint: str
) -> tuple[Result, int]:
    """``work(tokens)``, with half the tokens until they fit into GPU memory, and how many fit.

    Args:
        least: with as few, running out of memory is raised.
        hint: the end of the warning.
    """
    while True:
        try:
            return work(tokens), tokens
        except torch.OutOfMemoryError:
            if tokens <= least:
                raise
        # After the handler: inside it, the error's traceback would keep all tensors of the work.
        gc.collect()
        tokens //= 2
        logger.warning("out of GPU memory, continuing with batches of %d %s", tokens, hint)
