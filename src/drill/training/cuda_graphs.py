"""Work recorded as CUDA graphs: one launch instead of hundreds, where the host is slow."""

import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from drill.errors import CaptureError

Result = TypeVar("Result")


def taken_for_granted(modules: Sequence[nn.Module], parameters: Sequence[Tensor]) -> Hashable:
    """What a graph is recorded for: modes, addresses, which parameters are trained.

    Where it has changed, a replay would compute what was, or read memory that others have now.
    """
    return (
        tuple(module.training for module in modules),
        tuple((each.data_ptr(), each.requires_grad) for each in parameters),
    )


class Graphs:
    """Records work that changes tensors in place, reads none back and finds them at one address.

    All graphs of one recorder share their memory, so only one runs at a time, and what is to
    outlive a replay is written to a tensor from outside. On a CPU work runs as it is.

    instead  how a user does without, for errors
    """

    def __init__(self, device: torch.device, *, instead: str) -> None:
        self.device, self.instead = device, instead
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._last: torch.cuda.CUDAGraph | None = None

    def warm_up(self, work: Callable[[], Result]) -> Result:
        """Do the work as it is, where it will be recorded: it loads what a recording must not."""
        if self._stream is None:
            return work()
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            done = work()
        current.wait_stream(self._stream)
        return done

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What replays the work; recording does not do it."""
        if self._stream is None:
            return work
        graph = torch.cuda.CUDAGraph()
        pool = None if self._last is None else self._last.pool()
        torch.cuda.synchronize(self.device)
        # Memory that two streams of the last recording used is free at the next request outside of
        # one; without it this recording would take as much again.
        torch.empty(1, device=self.device)
        collecting = gc.isenabled()
        gc.disable()  # it may free another graph, which a recording does not allow
        try:
            # Not torch.cuda.graph(): that gives all free memory back first, slow to get again.
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    with suppress(RuntimeError):  # which only says that work has failed
                        self._end(graph)
                    raise
                self._end(graph)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                "this work cannot be recorded as a CUDA graph "
                f"({str(error).splitlines()[0]}); {self.instead}"
            ) from error
        finally:
            if collecting:
                gc.enable()
            # A recording begins by writing where replays find their random numbers: on its own
            # stream, so a replay on another must wait, or its numbers may be overwritten.
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._last = graph  # the one before may go only now: its memory is this one's
        return graph.replay

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording. After one that fails torch goes on taking random numbers for recorded.

        No dropout could be drawn any more, until another recording has ended well.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError):  # of the two errors the first one counts
                other = torch.cuda.CUDAGraph()
                other.capture_begin(capture_error_mode="thread_local")
                torch.zeros(1, device=self.device)
                other.capture_end()
            raise
