"""One table on the screen, one JSON row per line in a file."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from setting import Setting
from timing import OUT_OF_MEMORY, Result

Cell = Callable[[Result], str]
"""What a column shows of a result that has times."""


def milliseconds(value: float) -> str:
    return f"{value:,.3f}" if value < 100 else f"{value:,.0f}"


def mib(size: float) -> str:
    return f"{size / 2**20:,.1f}"


def ratio(base: Result, digits: int = 2) -> Cell:
    """Median over the median of ``base``, both of this run."""
    return lambda result: f"{result.median / base.median:.{digits}f}" if base.ms else "-"


TIMES: dict[str, Cell] = {
    "ms": lambda result: milliseconds(result.median),
    "min": lambda result: milliseconds(result.ms[0]),
    "p90": lambda result: milliseconds(result.p90),
}
ON_CUDA: dict[str, Cell] = {"graph ms": lambda result: on_device(result)}


def on_device(result: Result, base: Result | None = None) -> str:
    """The device's own time, or how much longer it is than that of ``base``."""
    if result.device is None:
        return "-"
    if base is None:
        return milliseconds(result.device)
    return "-" if base.device is None else f"{result.device - base.device:+.3f}"


def device_ratio(base: Result) -> Cell:
    """As ``ratio``, of the device's own times."""
    return lambda result: (
        f"{result.device / base.device:.2f}" if result.device and base.device else "-"
    )


def machine_of(device: torch.device) -> dict[str, Any]:
    """What a row must tell to be repeated."""
    return {
        "device": _device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "arguments": _arguments(sys.argv[1:]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
    }


class Report:
    """Collects the results of one benchmark; ``finish`` prints the table."""

    def __init__(self, benchmark: str, device: torch.device, path: Path | None) -> None:
        self.benchmark, self.path = benchmark, path
        self.cuda = device.type == "cuda"
        self.table: Table | None = None
        self.notes: dict[str, None] = {}  # in order, each once
        self.machine = machine_of(device)

    def add(
        self,
        setting: Setting,
        results: dict[str, Result],
        columns: dict[str, Cell],
        **facts: Any,
    ) -> None:
        """One section of the table; ``facts`` go into every JSON row of it."""
        headings = {**TIMES, **(ON_CUDA if self.cuda else {}), **columns}
        if self.table is None:
            self.table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
            self.table.add_column(self.benchmark, no_wrap=True)
            for heading in headings:
                self.table.add_column(heading, justify="right", no_wrap=True)
        self.table.add_section()
        self.table.add_row(f"[bold]{setting}")
        for name, result in results.items():
            self._write(setting, name, result, facts)
            if result.ms:
                self.table.add_row(f"  {name}", *(cell(result) for cell in headings.values()))
            else:
                full = str(result.error).startswith(OUT_OF_MEMORY)
                self.table.add_row(f"  {name}", OUT_OF_MEMORY if full else "-")
                if result.error != OUT_OF_MEMORY:
                    self.note(f"{name}: {result.error}")
        print(f"{self.benchmark}: {setting} done", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line under the table."""
        self.notes[text] = None

    def finish(self) -> None:
        console = Console(highlight=False)
        if not console.is_terminal:  # nobody can widen a pipe: never cut or wrap
            console.width = 200
        console.print(f"{self.machine['device']}, torch {self.machine['torch']}")
        if self.table is not None:
            console.print(self.table)
        for note in self.notes:
            console.print(note, markup=False, soft_wrap=True)

    def _write(self, setting: Setting, name: str, result: Result, facts: dict[str, Any]) -> None:
        if self.path is None:
            return
        row: dict[str, Any] = {
            "benchmark": self.benchmark,
            "name": name,
            "size": setting.name,
            "tokens": setting.size.tokens,
            "labels": setting.size.labels,
            "width": setting.size.width,
            "dtype": setting.dtype,
            **self.machine,
            **facts,
        }
        if result.ms:
            row |= {
                "ms_median": result.median,
                "ms_min": result.ms[0],
                "ms_p90": result.p90,
                "ms_graph_median": result.device,
                "rounds": len(result.ms),
                "peak_extra_bytes": result.peak,  # beyond inputs
                "working_bytes": result.working_memory,  # beyond inputs and returned tensors
                **result.found,
            }
        else:
            row["error"] = result.error
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _arguments(given: list[str]) -> str:
    """The options that were given, without the file the rows go to."""
    kept = list(given)
    while "--json" in kept:
        at = kept.index("--json")
        del kept[at : at + 2]
    return shlex.join(kept)


def _commit() -> str | None:
    """The commit that is measured: what DRILL_COMMIT says, else what git says."""
    if "DRILL_COMMIT" in os.environ:
        return os.environ["DRILL_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model} ({torch.get_num_threads()} threads)"
