"""Validation loss of a ledger's translators over that of tied weights, at the same update.

Layers that learn at the same rate have the same loss there, whatever their steps cost. Runs stand
together as in ``bleu.py``; each is held against the tied one of its own seed.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import mean

import bleu
from pages import main

from drill.report import Row


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Nats a token, mean over seeds and each of them; at updates after which all runs validated."""
    groups = bleu.comparisons([row for row in rows if row.validations])
    compared = {corpus: layers for corpus, layers in groups.items() if {bleu.BASE} < layers.keys()}
    if not compared:
        raise SystemExit(
            f"no corpus has {bleu.BASE} and another layer in rows that hold their validations; "
            "record such runs again with `drill record RUN --force`"
        )
    for corpus, layers in compared.items():
        others = [name for name in layers if name != bleu.BASE]
        yield f"| {corpus}, update | {' | '.join(others)} |"
        yield f"|---:|{'---:|' * len(others)}"
        for step in shared_steps(layers):
            cells = (told(gaps(layers[name], layers[bleu.BASE], step)) for name in others)
            yield f"| {step:,} | {' | '.join(cells)} |"
        yield ""


def gaps(runs: Sequence[Row], base: Sequence[Row], step: int) -> list[float]:
    """Of seeds that both have."""
    tied = {row.seed: losses(row)[step] for row in base}
    return [losses(row)[step] - tied[row.seed] for row in runs if row.seed in tied]


def shared_steps(layers: bleu.Layers) -> list[int]:
    every = [losses(row).keys() for runs in layers.values() for row in runs]
    return sorted(set.intersection(*map(set, every)))


def losses(row: Row) -> dict[int, float]:
    """Step -> loss, where that is finite."""
    return {int(step): math.log(valid) for step, valid in row.validations if step and valid}


def told(found: Sequence[float]) -> str:
    if not found:
        return ""
    each = ", ".join(f"{value:+.3f}" for value in found)
    return f"{mean(found):+.3f} ({each})"


if __name__ == "__main__":
    main(__doc__, "gaps", table, bleu.scored)
