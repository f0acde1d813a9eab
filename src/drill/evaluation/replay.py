"""A turn of a search as a CUDA graph: one launch instead of hundreds, where the host is slow."""

from collections.abc import Callable

import torch

TURNS = 2
"""Turns in one graph: a search that swaps two halves of its memory is back after two."""


class Replay:
    """Turns that change tensors in place, read none back and always find them at one address.

    On a CPU they run as they are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def warm_up(self, turn: Callable[[], None]) -> None:
        """One turn as it is: it loads what a capture must not load."""
        if self._stream is None:
            turn()
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            turn()
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def captured(self, turn: Callable[[], None]) -> Callable[[], None]:
        """``TURNS`` turns a call; to be made anew wherever a tensor has moved."""

        def turns() -> None:
            for _ in range(TURNS):
                turn()

        if self._stream is None:
            return turns
        graph = torch.cuda.CUDAGraph()
        pool = None if self._graph is None else self._graph.pool()
        torch.cuda.synchronize(self.device)
        # Not torch.cuda.graph(): that gives all free memory back first, which is slow to get again.
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                turns()
            finally:
                graph.capture_end()
        self._graph = graph  # only now may the graph before it go: they share their memory
        return graph.replay
