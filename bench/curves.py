"""The first epochs of the ledger's runs beside the published curves: the README's table."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from drill.report import Row, read
from drill.report.paper import CURVES

EPOCHS = (1, 3, 5, 10, 20)
MEAN_OF = range(16, 21)
MARKS = ("<!-- from bench/curves.py -->", "<!-- end of curves -->")


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Our perplexities divide by all tokens, as the published ones do; in brackets the gap."""
    found = {name: [row for row in rows if row.recipe == name and row.curve] for name in CURVES}
    found = {name: runs for name, runs in found.items() if runs}
    titles = (f"{runs[0].layer}, published | ours (gap)" for runs in found.values())
    yield f"| epoch | {' | '.join(titles)} |"
    yield f"|---:|{'---:|---:|' * len(found)}"
    for epochs in [*([epoch] for epoch in EPOCHS), list(MEAN_OF)]:
        cells = []
        for name, runs in found.items():
            theirs = mean(interpolated(CURVES[name], epoch) for epoch in epochs)
            ours = [mean(published(run)[epoch] for epoch in epochs) for run in runs]
            gaps = (f"{each:.1f} ({each / theirs - 1:+.1%})" for each in ours)
            cells += [f"{theirs:.1f}", ", ".join(gaps)]
        label = str(epochs[0]) if len(epochs) == 1 else f"mean of {epochs[0]} to {epochs[-1]}"
        yield f"| {label} | {' | '.join(cells)} |"


def published(run: Row) -> dict[int, float]:
    return {int(epoch): valid for epoch, _, valid in run.curve if epoch and valid is not None}


def interpolated(curve: Mapping[int, float], epoch: int) -> float:
    """Not every epoch is printed: a straight line joins those that are."""
    before = max(each for each in curve if each <= epoch)
    after = min(each for each in curve if each >= epoch)
    share = (epoch - before) / max(1, after - before)
    return curve[before] + share * (curve[after] - curve[before])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("ledger", type=Path, help="rows of `drill record`")
    options.add_argument("--into", type=Path, help="renew the table of this page instead")
    args = options.parse_args()
    lines = "\n".join(table(read(args.ledger)))
    if args.into is None:
        print(lines)
        return
    before, marked = args.into.read_text().split(MARKS[0])
    after = marked.split(MARKS[1])[1]
    args.into.write_text(f"{before}{MARKS[0]}\n{lines}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
