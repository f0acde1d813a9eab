"""How long does an epoch take, validation included? And dynamic evaluation of the test text?

Trains recipes as `drill train` does, on their corpora (DRILL_DATA), and reads the seconds of every
epoch but the first, which records graphs and may compile kernels. Dynamic evaluation is that of
`drill evaluate --dynamic --split test` on what was trained, for however few epochs: its time does
not depend on them.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from table import machine_of

from drill.language_modeling.dynamic_evaluation import dynamic_perplexity
from drill.language_modeling.gradient_statistics import gradient_statistics, statistics_columns
from drill.language_modeling.run import load_run
from drill.tasks import train_run
from drill.training.device import pick_device
from drill.training.precision import effective, for_dynamic_evaluation, products
from drill.training.settings import recipe

RECIPES = ("ptb-tied", "ptb-drill-4", "wt2-tied", "wt2-drill-4")
EVERY = 5  # tokens a step of dynamic evaluation
COLUMNS = {
    "seconds an epoch": ("seconds_median", 2),
    "first epoch": ("first_seconds", 2),
    "gradient statistics": ("statistics_seconds", 1),
    "dynamic evaluation, these included": ("dynamic_seconds", 1),
}
"""What the table shows of a row, and with how many digits."""


def measured(
    name: str, changes: Sequence[str], epochs: int, device: torch.device, dynamic: bool
) -> dict[str, Any]:
    """One row: seconds of each epoch, and of dynamic evaluation where that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        settings = recipe(name, [*changes, f"training.epochs={epochs}"])
        train_run(settings, folder, device=device)
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        first, *seconds = (line["seconds"] for line in lines if line["kind"] == "epoch")
        row: dict[str, Any] = {
            "benchmark": "epoch",
            "name": name,
            "precision": settings.training["precision"],
            "first_seconds": first,
        }
        if seconds:
            row |= {"seconds": seconds, "seconds_median": median(seconds)}
        return row | (evaluated(folder, device) if dynamic else {})


def evaluated(folder: str, device: torch.device) -> dict[str, Any]:
    """Seconds of dynamic evaluation, in the precision that the command takes for it."""
    run = load_run(folder, device=device)
    columns = statistics_columns(len(run.ids.train), EVERY)
    precision = for_dynamic_evaluation(run.settings.training["precision"], device)
    with products(precision, device):
        begin = time.perf_counter()
        statistics = gradient_statistics(run.model, run.ids.train, batch_size=columns, bptt=EVERY)
        gathered = time.perf_counter()
        found = dynamic_perplexity(run.model, run.ids.test, statistics, bptt=EVERY)
        end = time.perf_counter()
    return {
        "statistics_seconds": gathered - begin,
        "dynamic_seconds": end - begin,
        "dynamic_precision": effective(precision, device),
        "dynamic_perplexity": found.perplexity,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--recipe", nargs="+", default=list(RECIPES), help="default: %(default)s")
    options.add_argument("--epochs", type=int, default=6, help="of which the first is not counted")
    options.add_argument("--precision", nargs="+", default=["bfloat16"], help="of training")
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="changes")
    options.add_argument(
        "--dynamic", action="store_true", help="also dynamic evaluation; --epochs 1 is then enough"
    )
    options.add_argument("--device", default="auto")
    options.add_argument("--json", type=Path, help="append one JSON row per line")
    args = options.parse_args()
    if args.epochs < (1 if args.dynamic else 2):
        options.error("--epochs is at least 2 (with --dynamic 1): the first one is not counted")
    device = pick_device(args.device)
    shown = Table("recipe", "precision", *COLUMNS, box=box.SIMPLE_HEAD)
    for name in args.recipe:
        for precision in args.precision:
            changes = [*args.changes, f"training.precision={precision}"]
            row = measured(name, changes, args.epochs, device, args.dynamic)
            cells = (
                f"{row[key]:.{digits}f}" if key in row else "" for key, digits in COLUMNS.values()
            )
            shown.add_row(name, precision, *cells)
            if args.json is not None:
                with args.json.open("a") as file:
                    file.write(json.dumps(row | machine_of(device)) + "\n")
    console = Console()
    if not console.is_terminal:  # nobody can widen a pipe: never cut or wrap
        console.width = 200
    console.print(shown)


if __name__ == "__main__":
    main()
