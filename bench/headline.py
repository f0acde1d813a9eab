"""The README's few figures, each beside what it is to be held against and how to measure it again.

From rows of the benchmarks and from the ledger; the pages that the table links have all of them.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import aims
import at_length
import bleu
import curves
from pages import marks, renew

from drill import report
from drill.report.results.paper import FINETUNED, PAPER

Row = dict[str, Any]
Figure = tuple[str, str, str, str]
"""What it is, ours, what to hold it against, the command."""

PAGES = {
    "speed": "docs/figures.md#the-layers",
    "models": "docs/figures.md#the-language-models",
    "translators": "#translation-in-two-commands",
}

RECORD = "drill record RUN --ledger LEDGER"


def table(rows: Sequence[Row], runs: Sequence[report.Row]) -> Iterable[str]:
    yield "| | ours | beside it | measured by |"
    yield "|---|---:|---|---|"
    for what, ours, peers, command in (
        *losses(rows),
        lstms(rows),
        step(rows),
        epoch(rows),
        perplexity(runs),
        at_the_end(runs),
        *translations(runs),
    ):
        yield f"| {what} | {ours} | {peers} | {command} |"


def losses(rows: Sequence[Row]) -> Iterable[Figure]:
    """A tied head's loss and its gradients over their matrix products alone, and its memory.

    As it is by default beside a peer that keeps logits, and in little memory beside those that do
    not.
    """
    found = [row for row in rows if row["benchmark"] == "loss" and row["size"] == "llm"]
    timings = {row["name"]: row for row in found if "error" not in row}
    command = "python bench/loss.py --size llm --dtype bfloat16 --no-bias --memory 64"

    def timed(name: str) -> Row:
        if name not in timings:
            raise missing(f"{name!r} of the loss at an LLM's size", f"{command} --json ROWS")
        return timings[name]

    def over(name: str) -> str:
        memory = timed(name)["working_bytes"] / 2**20
        times = timed(name)["ms_median"] / timed("GEMM floor")["ms_median"]
        return f"{times:.2f} times, {memory:,.0f} MiB"

    what = f"time of a tied head's [loss]({PAGES['speed']}) at an LLM's size, as a multiple of its "
    what += "matrix products alone"
    peers = {"liger-kernel": "liger-kernel", "cut-cross-entropy": "cut-cross-entropy cce"}
    compiled = over("the same, torch.compile")
    yield what, over("drill auto"), f"torch.compile {compiled}", f"`{command}`"
    yield (
        "the same with `memory=64` MiB",
        over("drill triton, 64 MiB"),
        "; ".join(f"{name} {over(own)}" for name, own in peers.items()),
        f"`{command}`",
    )


def lstms(rows: Sequence[Row]) -> Figure:
    command = "python bench/lstm.py"
    line, reached = aimed(rows, "three LSTMs", command)
    cudnn = line.peer(rows) if callable(line.peer) else {}
    peers = [f"{name} {found.value:.1f} ms" for name, found in cudnn.items() if found]
    return (
        f"[the three LSTMs]({PAGES['models']}) of the paper's language model, a batch of Penn "
        "Treebank forward and backward",
        f"{reached:.2f} ms",
        "; ".join(peers),
        f"`{command}`",
    )


def step(rows: Sequence[Row]) -> Figure:
    command = "python bench/step.py --dtype autocast"
    line, reached = aimed(rows, "step of `ptb-drill-4` over", command)
    return (
        f"time of a [training step]({PAGES['models']}) with four label maps on Penn Treebank, as a "
        "multiple of tied weights'",
        f"{reached:.2f} times",
        f"paper {line.paper}, authors' {line.peer.partition(' (')[0]}",
        f"`{command}`",
    )


def epoch(rows: Sequence[Row]) -> Figure:
    command = "python bench/epoch.py --recipe ptb-drill-4"
    line, reached = aimed(rows, "epoch of Penn Treebank", command)
    return (
        f"[epoch]({PAGES['models']}) of `ptb-drill-4`, validation included",
        f"{reached:.1f} s",
        f"authors' {line.peer}",
        f"`{command}`",
    )


def aimed(rows: Sequence[Row], beginning: str, command: str) -> tuple[aims.Line, float]:
    """A line of the aims and what was reached of it."""
    line = line_of(beginning)
    found = line.ours(rows)
    if found is None:
        raise missing(line.what, f"{command} --json ROWS")
    return line, found.value


def line_of(beginning: str) -> aims.Line:
    (found,) = (line for line in aims.LINES if line.what.startswith(beginning))
    return found


def perplexity(runs: Sequence[report.Row]) -> Figure:
    name, epochs = "ptb-drill-4", curves.MEAN_OF
    command = f"drill train {name} --set training.epochs={epochs[-1]}"
    found = [run for run in curves.comparable(runs, name) if run.precision == "bfloat16"]
    ours = [mean(curves.published(run)[epoch] for epoch in epochs) for run in found]
    if not ours:
        raise missing(f"{epochs[-1]} epochs of {name} in bfloat16", f"{command}` and `{RECORD}")
    theirs = mean(curves.interpolated(curves.CURVES[name], epoch) for epoch in epochs)
    return (
        f"[validation perplexity]({PAGES['models']}) of `{name}`, mean of epochs {epochs[0]} to "
        f"{epochs[-1]}, {len(ours)} runs of {curves.seeds(found)}",
        f"{mean(ours):.1f}",
        f"authors' published curve {theirs:.1f}",
        f"`{command}`",
    )


def at_the_end(runs: Sequence[report.Row]) -> Figure:
    """What a run at length ends with on the test text, what it is finetuned and adapted to."""
    name = "ptb-drill-4"
    steps = [f"drill train {name} --set training.epochs=600", "drill finetune", "drill evaluate"]
    own = (run for run in runs if run.recipe == name and at_length.at_length(run))
    found = [run for run in own if at_length.as_long_as_theirs(run)]
    tuned = [run for run in runs if found and at_length.starts_from(run, found[-1])]
    adapted = [each for run in tuned[-1:] for each in at_length.found_by(run, "dynamic", "test")]
    if not adapted:
        commands = "`, `".join([*steps, RECORD])
        raise missing(f"{name} at length, finetuned, with dynamic evaluation", commands)
    ours = (found[-1].test_published, tuned[-1].test_published, adapted[-1]["perplexity"])
    recipes = (name, f"{name}{FINETUNED}", f"{name}{FINETUNED}+dynamic")
    seconds = (found[-1].seconds or 0.0, tuned[-1].seconds or 0.0, adapted[-1]["seconds"])
    return (
        f"[test perplexity]({PAGES['models']}) of `{name}`, one seed: {found[-1].epochs} epochs; "
        f"finetuned for {tuned[-1].epochs}; then with dynamic evaluation. "
        f"{sum(seconds) / 60:.0f} minutes in all",
        "; ".join(f"{each:.1f}" for each in ours),
        f"paper {'; '.join(str(PAPER[each].test) for each in recipes)}",
        f"`{steps[0]}`, `{steps[1]}`, `{steps[2]} --dynamic`, [settings]({PAGES['models']})",
    )


def translations(runs: Sequence[report.Row]) -> Iterable[Figure]:
    """Every corpus whose BLEU the README has, be the paper's layer ahead or not.

    Of one that was trained with several settings those of most seeds, and of these the latest.
    """
    both = ("deep-residual 2", bleu.BASE)
    scored = [run for run in runs if "bleu" in run.extra]
    for corpus in bleu.TOLD_APART:
        own = [run for run in scored if bleu.corpus_of(run) == corpus]
        groups = [layers for layers in bleu.comparisons(own).values() if layers.keys() >= {*both}]
        if not groups:
            raise missing(f"translators of {corpus} with {' and '.join(both)}", RECORD)
        ours, tied = max(
            ([layers[name] for name in both] for layers in reversed(groups)),
            key=lambda found: min(map(len, found)),
        )
        changed = any(row.changes for row in ours)  # then the table of BLEU tells what
        yield (
            f"[BLEU]({PAGES['translators']}) of `{corpus}-drill`, English-German, mean of "
            f"{len(ours)} seeds",
            f"{bleu.average(ours):.2f}",
            f"tied weights {bleu.average(tied):.2f}",
            f"`drill train {corpus}-drill --seed 1`" + (", settings below" if changed else ""),
        )


def missing(what: str, command: str) -> SystemExit:
    return SystemExit(f"the headline is about {what}, of which there is no row; add by `{command}`")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("rows", type=Path, help="rows of the benchmarks")
    options.add_argument("ledger", type=Path, help="rows of `drill record`")
    options.add_argument("--into", type=Path, help="renew the table of this page instead")
    args = options.parse_args()
    lines = table(aims.read(args.rows), report.read(args.ledger))
    if args.into is None:
        print("\n".join(lines))
    else:
        renew(args.into, marks("headline"), lines)


if __name__ == "__main__":
    main()
