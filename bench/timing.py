"""Time several contestants in one run, in turns, and take the memory of each.

A contestant is a function that prepares a step; a step is the call to be timed and returns the
tensors it leaves behind (gradients, logits). Whatever a contestant raises becomes its result, so
one that does not import or does not fit does not end the run.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Step = Callable[[], Sequence[Tensor]]
Prepare = Callable[[], Step]
Inspect = Callable[[Sequence[Tensor]], dict[str, Any]]

OUT_OF_MEMORY = "out of memory"

WARM_UP_SECONDS = 0.2
"""Turns run untimed at least this long: an idle GPU needs it to raise its clocks."""


@dataclass
class Result:
    ms: list[float] = field(default_factory=list)  # sorted
    graph: list[float] = field(default_factory=list)  # the same as replays of a CUDA graph
    peak: int = 0  # bytes beyond what lay in memory before the step
    left: int = 0  # of these, bytes of the tensors the step returns
    found: dict[str, Any] = field(default_factory=dict)  # what ``inspect`` saw in these tensors
    error: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    @property
    def device(self) -> float | None:
        """Median of the graph's replays: the device's time, whatever launching costs the host."""
        return statistics.median(self.graph) if self.graph else None

    @property
    def p90(self) -> float:
        return self.ms[int(0.9 * (len(self.ms) - 1))]

    @property
    def working_memory(self) -> int:
        """Peak bytes beyond inputs and returned tensors, such as gradients."""
        return max(0, self.peak - self.left)


def measure(
    contestants: dict[str, Prepare],
    device: torch.device,
    *,
    seconds: float,
    rounds: tuple[int, int] = (5, 300),
    inspect: Inspect | None = None,
    waiting: Sequence[str] = (),
) -> dict[str, Result]:
    """Results by name; ``seconds`` per contestant, within the lowest and highest ``rounds``.

    Contestants whose names start as one of ``waiting`` read values back from the device. They are
    not tried as CUDA graphs: a capture that fails leaves the device's random numbers unusable.
    """
    results: dict[str, Result] = {}
    steps: dict[str, Step] = {}
    for name, prepare in contestants.items():
        try:
            step = prepare()
            step()  # compiles, loads libraries, allocates their workspaces
            results[name] = _memory(step, device, inspect)
            steps[name] = step
        except Exception as error:
            results[name] = Result(error=_reason(error))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if steps:
        for name, ms in _take_turns(steps, device, seconds, rounds).items():
            results[name].ms = sorted(ms)
    if steps and device.type == "cuda":
        replays = {
            name: replay
            for name, step in steps.items()
            if not name.startswith(tuple(waiting)) and (replay := _captured(step))
        }
        for name, ms in _take_turns(replays, device, seconds, rounds).items():
            results[name].graph = sorted(ms)
    return results


def fastest(steps: Sequence[Step], device: torch.device) -> Step:
    """The step of the lowest median, of a few rounds."""
    named = {str(i): step for i, step in enumerate(steps)}
    times = _take_turns(named, device, seconds=0.0, rounds=(5, 5))
    return named[min(times, key=lambda name: statistics.median(times[name]))]


def _captured(step: Step) -> Step | None:
    """The step as one CUDA graph; None where it cannot be captured (it waits for the device)."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(aside):
            step()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            left = step()
    except Exception:
        torch.cuda.synchronize()
        return None

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return left

    return replay


def _take_turns(
    steps: dict[str, Step], device: torch.device, seconds: float, rounds: tuple[int, int]
) -> dict[str, list[float]]:
    """Each runs ``lowest`` rounds, then on until its seconds or the ``highest`` round are up."""
    stopwatch = _cuda_stopwatch(device) if device.type == "cuda" else _cpu_stopwatch
    lowest, highest = rounds
    begin = time.perf_counter()
    while highest > 1:  # a single round makes do with the two calls before this
        for step in steps.values():
            stopwatch(step)
        if time.perf_counter() - begin > WARM_UP_SECONDS:
            break
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(highest):
        names = [name for name in steps if turn < lowest or sum(times[name]) < seconds * 1e3]
        first = turn % max(1, len(names))  # each round starts with another one
        for name in names[first:] + names[:first]:
            times[name].append(stopwatch(steps[name]))
    return times


def _cpu_stopwatch(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e3


def _cuda_stopwatch(device: torch.device) -> Callable[[Step], float]:
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    flush = torch.empty(max(4 * cache, 2**27), dtype=torch.uint8, device=device)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def stopwatch(step: Step) -> float:
        torch.cuda.synchronize(device)
        flush.zero_()  # no step finds its inputs in the cache because another one left them there
        start.record()
        step()
        stop.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(stop)

    return stopwatch


def _memory(step: Step, device: torch.device, inspect: Inspect | None) -> Result:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        left = step()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        peak, left = _cpu_peak(step)
    return Result(
        peak=peak,
        left=sum(tensor.nbytes for tensor in left),
        found=inspect(left) if inspect else {},
    )


def _cpu_peak(step: Step) -> tuple[int, Sequence[Tensor]]:
    """The highest running sum of what PyTorch's CPU allocator gave and took back."""
    with (
        _silent_stderr(),
        torch.autograd.profiler.profile(profile_memory=True, use_device=None) as profile,
    ):
        left = step()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    peak = held = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, left


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's library writes two lines to the file descriptor at every use."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _reason(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY}: {text}"
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        return OUT_OF_MEMORY
    return text[:160]
