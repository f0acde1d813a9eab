"""Losses of a ledger's translators over those of tied weights, at the same update.

Layers that learn at the same rate have the same loss there, whatever their steps cost; one that
fits as well and generalises worse is behind in validation alone. Runs stand together as in
``bleu.py``; each is held against the tied one of its own seed, which trains on the same batches.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import mean

import bleu
from pages import main

from drill.report import Row

TEXTS = {"validation": 1, "training": 2}  # places in a row's validations


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
        titles = [f"{name}, {text}" for name in others for text in TEXTS]
        yield f"| {corpus}, update | {' | '.join(titles)} |"
        yield f"|---:|{'---:|' * len(titles)}"
        for step in shared_steps(layers):
            cells = (
                told(gaps(layers[name], layers[bleu.BASE], step, text))
                for name in others
                for text in TEXTS
            )
            yield f"| {step:,} | {' | '.join(cells)} |"
        yield ""


def gaps(runs: Sequence[Row], base: Sequence[Row], step: int, text: str) -> list[float]:
    """Of seeds that both have."""
    tied = {row.seed: losses(row, text).get(step) for row in base}
    pairs = [(losses(row, text).get(step), tied.get(row.seed)) for row in runs]
    return [loss - other for loss, other in pairs if loss is not None and other is not None]


def shared_steps(layers: bleu.Layers) -> list[int]:
    every = [losses(row, "validation").keys() for runs in layers.values() for row in runs]
    return sorted(set.intersection(*map(set, every)))


def losses(row: Row, text: str) -> dict[int, float]:
    """Step -> loss, where that is finite; older rows do not tell of training."""
    place = TEXTS[text]
    found = ((each[0], each[place]) for each in row.validations if len(each) > place)
    return {int(step): math.log(perplexity) for step, perplexity in found if step and perplexity}


def told(found: Sequence[float]) -> str:
    if not found:
        return ""
    each = ", ".join(f"{value:+.3f}" for value in found)
    return f"{mean(found):+.3f} ({each})"


if __name__ == "__main__":
    main(__doc__, "gaps", table, bleu.scored)
