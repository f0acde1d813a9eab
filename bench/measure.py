"""Time several variants of one computation in turns, and measure the memory of each.

A variant is a function that prepares a step. A step is the call to be timed; it returns the tensors
it leaves behind, such as gradients. A variant that raises gets a row with its ``error``: one that
does not import or does not fit does not end the run.
"""

import argparse
import gc
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import torch
from cases import Case
from columns import Row, cells, section, text_table, title
from torch import Tensor

from drill.training.device import device_name
from drill.training.run.environment import commit

Step = Callable[[], Sequence[Tensor]]
Prepare = Callable[[], Step]

WARM_UP_SECONDS = 0.2
"""Untimed turns take at least this long: an idle GPU needs it to raise its clocks."""


# -- time and memory ------------------------------------------------------------------------------


def measure(
    variants: dict[str, Prepare],
    args: argparse.Namespace,
    *,
    rounds: tuple[int, int] = (5, 300),
    inspect: Callable[[Sequence[Tensor]], dict[str, Any]] | None = None,
    no_graph: Sequence[str] = (),
) -> dict[str, Row]:
    """Times, memory or the error of every variant, by name.

    Args:
        args: its ``device``, its ``seconds`` per variant, and whether it is ``quick``.
        rounds: fewest and most rounds.
        inspect: adds to a row what it computes from the tensors that a step returns.
        no_graph: beginnings of names. Such variants read values back from the device and are not
            captured as CUDA graphs: a failed capture leaves the random generator unusable.
    """
    device: torch.device = args.device
    seconds, rounds = (0.0, (1, 1)) if args.quick else (args.seconds, rounds)
    rows: dict[str, Row] = {}
    steps: dict[str, Step] = {}
    for name, prepare in variants.items():
        try:
            step = prepare()
            step()  # compiles, loads libraries, allocates their workspaces
            rows[name] = _memory(step, device, inspect)
            steps[name] = step
        except Exception as error:
            rows[name] = {"error": _reason(error)}
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for name, ms in _take_turns(steps, device, seconds, rounds).items():
        rows[name] = {
            **_spread("ms", ms),
            "ms_graph_median": None,
            "rounds": len(ms),
            **rows[name],
        }
    if device.type == "cuda":
        graphs = {
            name: graph
            for name, step in steps.items()
            if not name.startswith(tuple(no_graph)) and (graph := _captured(step))
        }
        for name, ms in _take_turns(graphs, device, seconds, rounds).items():
            rows[name] |= _spread("ms_graph", ms)
    return rows


def _spread(key: str, ms: Sequence[float]) -> Row:
    p90 = sorted(ms)[int(0.9 * (len(ms) - 1))]
    return {f"{key}_median": median(ms), f"{key}_min": min(ms), f"{key}_p90": p90}


def fastest(steps: Sequence[Step], device: torch.device) -> Step:
    """The step of the lowest median, of a few rounds."""
    times = _take_turns(dict(enumerate(steps)), device, seconds=0.0, rounds=(5, 5))
    return steps[min(times, key=lambda at: median(times[at]))]


def _captured(step: Step) -> Step | None:
    """The step as one CUDA graph; None where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
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
    steps: dict[Any, Step], device: torch.device, seconds: float, rounds: tuple[int, int]
) -> dict[Any, list[float]]:
    """Milliseconds of each; it runs the fewest rounds, then on until its seconds are used up."""
    stopwatch = _cuda_stopwatch(device) if device.type == "cuda" else _cpu_stopwatch
    fewest, most = rounds
    begin = time.perf_counter()
    while most > 1 and time.perf_counter() - begin < WARM_UP_SECONDS:
        for step in steps.values():
            stopwatch(step)
    times: dict[Any, list[float]] = {name: [] for name in steps}
    for turn in range(most):
        names = [name for name in steps if turn < fewest or sum(times[name]) < seconds * 1e3]
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


def _memory(step: Step, device: torch.device, inspect: Callable[..., dict[str, Any]] | None) -> Row:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        left = step()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        peak, left = _cpu_peak(step)
    return {
        "peak_extra_bytes": peak,  # beyond inputs
        "working_bytes": max(0, peak - sum(each.nbytes for each in left)),  # and returned tensors
        **(inspect(left) if inspect else {}),
    }


def _cpu_peak(step: Step) -> tuple[int, Sequence[Tensor]]:
    """The highest running sum of what PyTorch's CPU allocator allocated and freed."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes two lines at every use
    with torch.autograd.profiler.profile(profile_memory=True, use_device=None) as profile:
        left = step()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    peak = current = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak, left


def _reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


# -- rows -----------------------------------------------------------------------------------------


def machine(device: torch.device) -> Row:
    """What a row needs so that somebody can measure it again."""
    threads = f" ({torch.get_num_threads()} threads)" if device.type == "cpu" else ""
    return {
        "device": device_name(device) + threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "arguments": re.sub(r"--json \S+ ?", "", shlex.join(sys.argv[1:])).strip(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def append(path: Path | None, row: Row) -> None:
    """Add a line of JSON to a file, where one is given."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Report:
    """The rows of one benchmark: into a file as they come, on the screen at the end."""

    def __init__(self, benchmark: str, args: argparse.Namespace) -> None:
        self.benchmark, self.path = benchmark, args.json
        self.machine = machine(args.device)
        self.rows: list[Row] = []

    def add(self, case: Case, results: dict[str, Row], **facts: Any) -> None:
        """Rows of one section of the table; ``facts`` go into each."""
        about = {"size": case.name, **case.size._asdict(), "dtype": case.dtype}
        for name, result in results.items():
            row = {"benchmark": self.benchmark, "name": name, **about, **self.machine}
            self.rows.append(row | facts | result)
            append(self.path, self.rows[-1])
        print(f"{self.benchmark}: {title(self.rows[-1])} done", file=sys.stderr, flush=True)

    def finish(self, *notes: str) -> None:
        """Print the tables, the errors and ``notes``."""
        print(f"{self.machine['device']}, torch {self.machine['torch']}")
        for _, group in groupby(self.rows, section):
            rows = list(group)
            print(f"\n{self.benchmark}: {title(rows[0])}\n")
            print(text_table(cells(self.benchmark, rows)))
        failed = (f"{row['name']}: {row['error']}" for row in self.rows if "error" in row)
        print("\n".join(["", *dict.fromkeys([*failed, *notes])]))


def add_rate(results: dict[str, Row], key: str, amount: int) -> None:
    """Add to every row how many of ``amount`` things a step it does in a second."""
    for row in results.values():
        if "error" not in row:
            row[key] = 1e3 * amount / row["ms_median"]
