"""How long does an epoch take, validation included? And dynamic evaluation of the test text?

Trains recipes as `drill train` does, on their corpora (DRILL_DATA), and reads the seconds of every
epoch but the first, which records graphs and may compile kernels. Dynamic evaluation is that of
`drill dynamic --split test` on what was trained, for however few epochs: its time does
not depend on them.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from columns import cells, text_table
from measure import append, machine

from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity
from drill.language_modeling.evaluation.gradient_statistics import (
    gradient_statistics,
    statistics_batch_size,
)
from drill.language_modeling.run import load_language_model
from drill.tasks import train
from drill.training.device import pick_device
from drill.training.precision import for_dynamic_evaluation, matmul_precision, resolve_precision
from drill.training.run.folder import RunFolder
from drill.training.settings import recipe

RECIPES = ("ptb-tied", "ptb-drill-4", "wt2-tied", "wt2-drill-4")
TOKENS = 5  # per step of dynamic evaluation


def measured(
    name: str, changes: Sequence[str], epochs: int, device: torch.device, dynamic: bool
) -> dict[str, Any]:
    """One row: seconds of each epoch, and of dynamic evaluation where that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        settings = recipe(name, [*changes, f"training.epochs={epochs}"])
        train(settings, folder, device=device)
        rows = RunFolder(folder).rows()
        first, *seconds = (each["seconds"] for each in rows if each["kind"] == "epoch")
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
    run = load_language_model(folder, device=device)
    size = statistics_batch_size(len(run.ids.train), TOKENS)
    precision = for_dynamic_evaluation(run.settings.training["precision"], device)
    with matmul_precision(precision, device):
        begin = time.perf_counter()
        statistics = gradient_statistics(
            run.model, run.ids.train, batch_size=size, segment_length=TOKENS
        )
        gathered = time.perf_counter()
        found = dynamic_perplexity(run.model, run.ids.test, statistics, segment_length=TOKENS)
        end = time.perf_counter()
    return {
        "statistics_seconds": gathered - begin,
        "dynamic_seconds": end - begin,
        "dynamic_precision": resolve_precision(precision, device),
        "dynamic_perplexity": found.perplexity,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--recipe", nargs="+", default=list(RECIPES), help="default: %(default)s")
    options.add_argument("--epochs", type=int, default=6, help="of which the first is not counted")
    options.add_argument("--precision", default="bfloat16", help="of training")
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="changes")
    options.add_argument("--dynamic", action="store_true", help="also dynamic evaluation")
    options.add_argument("--device", default="auto")
    options.add_argument("--json", type=Path, help="append one JSON row per line")
    args = options.parse_args()
    if args.epochs < (1 if args.dynamic else 2):
        options.error("--epochs is at least 2 (with --dynamic 1): the first one is not counted")
    device = pick_device(args.device)
    rows = []
    for name in args.recipe:
        changes = [*args.changes, f"training.precision={args.precision}"]
        rows.append(measured(name, changes, args.epochs, device, args.dynamic))
        append(args.json, rows[-1] | machine(device))
    print(f"{args.precision}\n\n{text_table(cells('epoch', rows))}")


if __name__ == "__main__":
    main()
