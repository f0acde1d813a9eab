"""How long recipes take, as `drill recipes` tells: from the ledger and from rows of epoch.py.

Of a recipe the last whole run, else an epoch, else the last run that was shorter than the recipe
says; runs that shared their machine only where no recipe of the corpus has a time without company,
and that is told: else layers would be compared by what ran beside them. A run whose settings differ
by more than its length and precision tells nothing of a recipe.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from drill import report
from drill.recipes.reader import Measured, recipe_names
from drill.training.settings import recipe

MAY_DIFFER = ("training.epochs", "training.max_minutes", "training.precision")
COMPANY = ("beside", "at once", "at a time", "at the same time")
"""What notes say of runs that had a machine not for themselves."""


def times(
    runs: Sequence[report.Row], benchmarks: Iterable[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Recipe -> ``Measured``, of recipes that were."""
    whole, epochs, shorter, whole_shared, shorter_shared = {}, {}, {}, {}, {}
    for row in sorted(runs, key=lambda row: row.recorded):
        if row.recipe in recipe_names() and row.seconds and as_its_recipe_says(row):
            company = any(words in row.note for words in COMPANY)
            note = f"shared: {row.note}" if company else row.note
            found = Measured(round(row.seconds, 1), row.epochs, row.device, row.commit, note)
            full = row.epochs == recipe(row.recipe).training["epochs"]
            kinds = (whole_shared, shorter_shared) if company else (whole, shorter)
            kinds[0 if full else 1][row.recipe] = found
    for row in benchmarks:
        if row.get("benchmark") == "epoch" and row["name"] in recipe_names():
            seconds = round(median(row["seconds"]), 2)
            epochs[row["name"]] = Measured(seconds, 1, row["device"], row["commit"], "")
    alone, shared = shorter | epochs | whole, shorter_shared | whole_shared
    compared = {_corpus(name) for name in alone}
    told = {name: time for name, time in shared.items() if _corpus(name) not in compared} | alone
    return {name: asdict(told[name]) for name in sorted(told)}


def _corpus(name: str) -> str:
    return str(recipe(name).data["corpus"])


def as_its_recipe_says(row: report.Row) -> bool:
    """Whether a run is its recipe's but for what ``MAY_DIFFER``; older rows do not say."""
    changed = None if row.changes is None else [each.split(":")[0] for each in row.changes]
    return changed is not None and set(changed) <= set(MAY_DIFFER)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="+", type=Path, help="a ledger, and rows of benchmarks")
    args = options.parse_args()
    held = [json.loads(line) for path in args.files for line in path.read_text().splitlines()]
    runs = [row for path in args.files for row in report.read(path)]
    print(json.dumps(times(runs, held), indent=2))


if __name__ == "__main__":
    main()
