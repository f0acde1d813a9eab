"""Turn the JSON rows of the benchmarks, and the translators of a ledger, into one Markdown page."""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import bleu
from pages import renew

from drill import report

Row = dict[str, Any]
Cell = Callable[[Row, dict[str, Row]], str]

QUESTIONS = {
    "layers": "What does each output layer cost in training, against weight tying?",
    "loss": "How fast, how small and how exact is the loss?",
    "memory": "Does the loss stay within its memory budget, however many tokens there are?",
    "inference": "What does a trained layer cost at inference?",
    "lstm": "What do the LSTMs of AWD-LSTM cost, with weight drop, against cuDNN?",
    "step": "What does a whole training step of a language model cost, against plain PyTorch?",
    "translation": "How fast is a translator trained and searched, against MarianMT?",
}


def milliseconds(key: str) -> Cell:
    return lambda row, _: f"{row[key]:,.3f}" if row.get(key) is not None else ""


def mib(key: str) -> Cell:
    return lambda row, _: f"{row[key] / 2**20:,.0f}" if row.get(key) is not None else ""


def against(base: str, key: str) -> Cell:
    """Row over ``base`` of the same size, precision and run."""

    def cell(row: Row, others: dict[str, Row]) -> str:
        top, bottom = row.get(key), others.get(base, {}).get(key)
        return f"{top / bottom:.2f}" if top and bottom else ""

    return cell


def against_named(base: str, key: str) -> Cell:
    """As ``against``, over what the row itself names as its ``base``."""
    return lambda row, others: against(row.get(base, ""), key)(row, others)


def over(base: str, key: str) -> Cell:
    def cell(row: Row, others: dict[str, Row]) -> str:
        here, there = row.get(key), others.get(base, {}).get(key)
        return f"{here - there:+.3f}" if here is not None and there is not None else ""

    return cell


def faster(base: str) -> Cell:
    """How many times the rate of ``base``."""

    def cell(row: Row, others: dict[str, Row]) -> str:
        ours, theirs = row.get("ms_median"), others.get(base, {}).get("ms_median")
        return f"{theirs / ours:.2f}" if ours and theirs else ""

    return cell


def rate(key: str) -> Cell:
    return lambda row, _: f"{row[key]:,.0f}" if row.get(key) is not None else ""


def error(key: str) -> Cell:
    return lambda row, _: f"{row[key]:.1e}" if row.get(key) is not None else ""


COLUMNS: dict[str, dict[str, Cell]] = {
    "layers": {
        "ms": milliseconds("ms_median"),
        "x tied": against("tied", "ms_median"),
        "graph ms": milliseconds("ms_graph_median"),
        "x tied (graph)": against("tied", "ms_graph_median"),
        "graph ms over tied": over("tied", "ms_graph_median"),
        "MiB beyond gradients": mib("working_bytes"),
    },
    "loss": {
        "ms": milliseconds("ms_median"),
        "x floor": against("GEMM floor", "ms_median"),
        "graph ms": milliseconds("ms_graph_median"),
        "MiB beyond gradients": mib("working_bytes"),
        "d hidden error": error("hidden_error"),
        "d weight error": error("weight_error"),
    },
    "memory": {
        "ms": milliseconds("ms_median"),
        "MiB beyond gradients": mib("working_bytes"),
        "MiB budget": mib("budget_bytes"),
        "MiB logits": mib("logits_bytes"),
    },
    "inference": {
        "ms": milliseconds("ms_median"),
        "x nn.Linear": against("nn.Linear", "ms_median"),
        "graph ms": milliseconds("ms_graph_median"),
        "x nn.Linear (graph)": against("nn.Linear", "ms_graph_median"),
    },
    "lstm": {
        "ms": milliseconds("ms_median"),
        "x cudnn": against("cudnn", "ms_median"),
        "graph ms": milliseconds("ms_graph_median"),
        "x cudnn (graph)": against("cudnn", "ms_graph_median"),
        "MiB beyond gradients": mib("working_bytes"),
        "output error": error("output_error"),
        "gradient error": error("gradient_error"),
    },
    "step": {
        "ms": milliseconds("ms_median"),
        "x plain tied": against("plain nn.LSTM + F.cross_entropy", "ms_median"),
        "x its own plain": against_named("own_plain", "ms_median"),
        "x tied, replayed": against("drill tied, replayed", "ms_median"),
        "MiB beyond gradients": mib("working_bytes"),
    },
    "translation": {
        "ms": milliseconds("ms_median"),
        "target tokens/s": rate("target_tokens_per_second"),
        "sentences/s": rate("sentences_per_second"),
        "x MarianMT": faster("MarianMT"),
        "peak MiB": mib("peak_extra_bytes"),
    },
}


# Seconds, and with how many digits.
EPOCH_COLUMNS = {
    "seconds": ("seconds_median", 2),
    "of the first epoch": ("first_seconds", 2),
    "of gradient statistics": ("statistics_seconds", 1),
    "of dynamic evaluation, these included": ("dynamic_seconds", 1),
}


def section(row: Row) -> tuple[Any, ...]:
    sizes = (row[key] for key in ("size", "tokens", "labels", "width", "dtype"))
    return (*sizes, row.get("task"), row.get("commit"))


def commands(benchmark: str, rows: list[Row]) -> list[str]:
    """What was called to make these rows, each once; old rows do not say with which options."""
    called = (f"python bench/{benchmark}.py {row.get('arguments') or ''}".strip() for row in rows)
    return [f"`{command}`" for command in dict.fromkeys(called)]


def with_bias(table: dict[str, Row]) -> str:
    """Which heads of a section had a bias, where its rows say so."""
    known = {name: row["bias"] for name, row in table.items() if "bias" in row}
    if not known:
        return ""
    if len(set(known.values())) == 1:
        return ", with a bias" if all(known.values()) else ", without a bias"
    return f", with a bias except {'; '.join(name for name, bias in known.items() if not bias)}"


def measured_at(commit: str | None) -> str:
    return f"commit {commit}" if commit else "at an unknown commit"


def page(rows: list[Row], source: str, runs: Sequence[report.Row] = ()) -> Iterable[str]:
    machines = sorted({f"{row['device']}, torch {row['torch']}" for row in rows})
    commits = sorted({row["commit"] for row in rows if row.get("commit")})
    yield "# Measured"
    yield ""
    wrote = "benchmarks and runs" if runs else "the benchmarks"
    yield f"Made by `python bench/summary.py {source}` from what {wrote} wrote, not by hand."
    of = f", commit {' and '.join(commits)}" if commits else ""
    yield "; ".join(machines) + f"{of}. How it is measured: [bench/README.md](../bench/README.md)."
    unknown = sum(not row.get("commit") for row in rows)
    if unknown:
        yield ""
        yield (
            f"**Of {unknown} of the {len(rows)} rows nobody knows which commit they measured**: "
            "run the benchmarks again."
        )
    for benchmark, question in QUESTIONS.items():
        ours = [row for row in rows if row["benchmark"] == benchmark]
        if ours:
            yield from ("", f"## {question}", "", ", ".join(commands(benchmark, ours)))
        for (size, tokens, labels, width, dtype, task, commit), group in groupby(ours, section):
            table = {row["name"]: row for row in group}
            shown = {
                name: [cell(row, table) for row in table.values()]
                for name, cell in COLUMNS[benchmark].items()
            }
            shown = {name: cells for name, cells in shown.items() if any(cells)}
            what = f"**{size}**, N={tokens:,} V={labels:,} d={width:,}, {dtype}"
            what += with_bias(table)
            what += f", {task}" if task else ""
            what += f", {measured_at(commit)}"
            yield from ("", what, "")
            yield f"| | {' | '.join(shown)} |"
            yield f"|---|{'---:|' * len(shown)}"
            for i, (name, row) in enumerate(table.items()):
                if "error" in row:
                    yield f"| {name} | {row['error']} |{' |' * (len(shown) - 1)}"
                else:
                    yield f"| {name} | {' | '.join(cells[i] for cells in shown.values())} |"
    whole = [row for row in rows if row["benchmark"] == "epoch"]
    if whole:
        yield from epochs(whole)
    if any("bleu" in run.extra for run in runs):
        yield from translators(runs)


def epochs(rows: list[Row]) -> Iterable[str]:
    """What ``epoch.py`` wrote: whole epochs, no size to time."""
    yield from ("", "## How long does an epoch take, validation included?", "")
    yield from (", ".join(commands("epoch", rows)), "")
    yield f"| recipe | precision | {' | '.join(EPOCH_COLUMNS)} | |"
    yield f"|---|---|{'---:|' * len(EPOCH_COLUMNS)}---|"
    for row in rows:
        cells = (
            f"{row[key]:.{digits}f}" if key in row else "" for key, digits in EPOCH_COLUMNS.values()
        )
        shown = (row["name"], row["precision"], *cells, measured_at(row.get("commit")))
        yield f"| {' | '.join(shown)} |"


def translators(runs: Sequence[report.Row]) -> Iterable[str]:
    """What `drill record` took into the ledger of translators: BLEU, and labels by frequency."""
    yield from ("", "## How good are translations by each output layer?", "")
    recorded = "`drill record RUN --ledger results/runs.jsonl`"
    yield f"`drill train RECIPE`, `drill evaluate RUN --split test --words`, {recorded}"
    yield from (
        "",
        "BLEU is of the test text, by sacrebleu; where rows come from stands below.",
        "",
    )
    yield from bleu.table(runs, kinds=("subword", "word"))


def short(rows: list[Row]) -> Iterable[str]:
    """Two tables of the page of figures: layers at every size, losses at the largest."""
    layers = [row for row in rows if row["benchmark"] == "layers" and row["dtype"] == "bfloat16"]
    found = {(row["name"], row["size"]): row for row in layers}
    sizes = list(dict.fromkeys(row["size"] for row in layers))
    yield f"| nll, forward + backward: ms (x tied) | {' | '.join(sizes)} |"
    yield f"|---|{'---:|' * len(sizes)}"
    for name in dict.fromkeys(row["name"] for row in layers):
        times = [
            (found[name, size]["ms_graph_median"], found["tied", size]["ms_graph_median"])
            for size in sizes
        ]
        cells = (f"{ms:,.2f} ({ms / tied:.2f})" for ms, tied in times)
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    losses = [row for row in rows if row["benchmark"] == "loss" and row["size"] == "llm"]
    table = {row["name"]: row for row in losses}
    columns = COLUMNS["loss"]
    yield f"| tied head at llm size | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for name, row in table.items():
        if "error" not in row:
            yield f"| {name} | {' | '.join(cell(row, table) for cell in columns.values())} |"


MARKS = ("<!-- from bench/summary.py -->", "<!-- end -->")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "files", nargs="+", type=Path, help="rows of benchmarks, and of `drill record`"
    )
    options.add_argument("--into", type=Path, help="renew the short tables of this page instead")
    args = options.parse_args()
    held = [json.loads(line) for path in args.files for line in path.read_text().splitlines()]
    rows = [row for row in held if "benchmark" in row]
    if args.into is None:
        runs = [row for path in args.files for row in report.read(path)]
        print("\n".join(page(rows, " ".join(path.as_posix() for path in args.files), runs)))
        return
    renew(args.into, MARKS, short(rows))


if __name__ == "__main__":
    main()
