"""How long does an epoch take, validation included? And dynamic evaluation of the test text?

Trains recipes as `drill train` does, on their corpora (DRILL_DATA), and reads the seconds of every
epoch but the first, which records graphs and may compile kernels.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from table import machine_of

from drill.build import load_run, train_run
from drill.config import recipe
from drill.evaluation import dynamic_perplexity, gradient_statistics

RECIPES = ("ptb-tied", "ptb-drill-4", "wt2-tied", "wt2-drill-4")


def measured(name: str, changes: Sequence[str], epochs: int, device: str, dynamic: bool) -> dict:
    """One row: seconds of each epoch, and of dynamic evaluation where that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        settings = recipe(name, [*changes, f"training.epochs={epochs}"])
        train_run(settings, folder, device=device)
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        seconds = [line["seconds"] for line in lines if line["kind"] == "epoch"]
        row = {
            "benchmark": "epoch",
            "name": name,
            "precision": settings.training["precision"],
            "first_seconds": seconds[0],
            "seconds": seconds[1:],
            "seconds_median": median(seconds[1:]),
        }
        if dynamic:
            run = load_run(folder, device=device)
            begin = time.perf_counter()
            statistics = gradient_statistics(run.model, run.ids.train)
            dynamic_perplexity(run.model, run.ids.test, statistics)
            row["dynamic_seconds"] = time.perf_counter() - begin
        return row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--recipe", nargs="+", default=list(RECIPES), help="default: %(default)s")
    options.add_argument("--epochs", type=int, default=6, help="of which the first is not counted")
    options.add_argument("--precision", nargs="+", default=["bfloat16"])
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="changes")
    options.add_argument("--dynamic", action="store_true", help="also dynamic evaluation")
    options.add_argument("--device", default="auto")
    options.add_argument("--json", type=Path, help="append one JSON row per line")
    args = options.parse_args()
    if args.epochs < 2:
        options.error("--epochs is at least 2: the first one is not counted")
    titles = ("recipe", "precision", "seconds an epoch", "first epoch", "dynamic evaluation")
    shown = Table(*titles, box=box.SIMPLE_HEAD)
    for name in args.recipe:
        for precision in args.precision:
            changes = [*args.changes, f"training.precision={precision}"]
            row = measured(name, changes, args.epochs, args.device, args.dynamic)
            taken = f"{row['dynamic_seconds']:.1f}" if args.dynamic else ""
            times = (f"{row['seconds_median']:.2f}", f"{row['first_seconds']:.2f}", taken)
            shown.add_row(name, precision, *times)
            if args.json is not None:
                place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
                with args.json.open("a") as file:
                    file.write(json.dumps(row | machine_of(place)) + "\n")
    Console().print(shown)


if __name__ == "__main__":
    main()
