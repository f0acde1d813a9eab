"""Renew every table of README.md and docs/ that is made from results/, and measured.json.

With a ledger, print what it says about translators instead: BLEU, F1 by frequency, losses.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import ledger_tables as ledger
import numpy as np
from columns import COLUMNS, Row, cells, section, title
from setting import LARGE

from drill import report
from drill.report.results.paper import CURVES, FINETUNED, PAPER
from drill.report.study.plan import read_plan
from drill.report.study.states import States, stage_results
from drill.report.study.statistics import paired_difference
from drill.report.study.tables import finished_results, stage_table
from drill.report.tables.markup import markdown_table

ROOT = Path(__file__).parents[1]

QUESTIONS = {
    "layers": "What does each output layer cost in training, against weight tying?",
    "loss": "How fast, how small and how exact is the loss?",
    "memory": "Does the loss stay within its memory budget, however many tokens there are?",
    "inference": "What does a trained layer cost at inference?",
    "lstm": "What do the LSTMs of AWD-LSTM cost, with weight drop, against cuDNN?",
    "step": "What does a whole training step of a language model cost, against plain PyTorch?",
    "translation": "How fast is a translator trained and searched, against MarianMT?",
    "gpt": "How fast is a GPT-style model trained, against the same model of transformers?",
    "epoch": "How long does an epoch take, validation included?",
}


# -- all results ----------------------------------------------------------------------------------


def results_page(rows: Sequence[Row], runs: Sequence[report.Row] = ()) -> Iterator[str]:
    """Every row of the benchmarks, and the translators of ``runs``."""
    machines = sorted({f"{row['device']}, torch {row['torch']}" for row in rows})
    commits = sorted({row["commit"] for row in rows})
    made = f"what {'benchmarks and runs' if runs else 'the benchmarks'} wrote, not by hand."
    yield from ("# Measured", "", f"Made by `python bench/tables.py` from {made}")
    how = "How it is measured: [bench/README.md](../bench/README.md)."
    yield f"{'; '.join(machines)}, commit {' and '.join(commits)}. {how}"
    for benchmark, question in QUESTIONS.items():
        own = [row for row in rows if row["benchmark"] == benchmark]
        if not own:
            continue
        called = (f"python bench/{benchmark}.py {row['arguments']}".strip() for row in own)
        commands = (f"`{command}`" for command in dict.fromkeys(called))
        yield from ("", f"## {question}", "", ", ".join(commands))
        if benchmark == "epoch":
            yield from ("", *epochs(own))
            continue
        for _, group in groupby(own, section):
            table = list(group)
            size, _, rest = title(table[0]).partition(", ")
            about = f"**{size}**, {rest}{with_bias(table)}, commit {table[0]['commit']}"
            yield from ("", about, "")
            yield from markdown_table(cells(benchmark, table))
    if runs:
        yield from ("", "## How good are translations by each output layer?", "")
        recorded = "`drill ledger add RUN --ledger results/runs.jsonl`"
        yield f"`drill train RECIPE`, `drill evaluate RUN --split test --bands`, {recorded}"
        about = "BLEU is of the test text, by sacrebleu; where rows come from stands below."
        yield from ("", about, "", *ledger.translators(runs))


def with_bias(rows: Sequence[Row]) -> str:
    """Which heads have a bias, where rows say so."""
    known = {row["name"]: row["bias"] for row in rows if "bias" in row}
    without = [name for name, bias in known.items() if not bias]
    if len(without) == len(known):
        return ", without a bias" if known else ""
    return ", with a bias" + (f" except {'; '.join(without)}" if without else "")


def epochs(rows: Sequence[Row]) -> list[str]:
    lines = [["recipe", "precision", *COLUMNS["epoch"], ""]]
    for row in rows:
        times = (cell(row, {}) for cell in COLUMNS["epoch"].values())
        lines.append([row["name"], row["precision"], *times, f"commit {row['commit']}"])
    return markdown_table(lines, f"ll{'r' * len(COLUMNS['epoch'])}l")


# -- figures --------------------------------------------------------------------------------------


def layers_and_losses(rows: Sequence[Row]) -> Iterator[str]:
    """Layers at every size that all were measured at, losses at the largest."""
    layers = [row for row in rows if row["benchmark"] == "layers" and row["dtype"] == "bfloat16"]
    layers = [row for row in layers if row["size"] not in LARGE]
    ms = {(row["name"], row["size"]): row["ms_graph_median"] for row in layers}
    sizes = list(dict.fromkeys(row["size"] for row in layers))
    lines = [["nll, forward + backward: ms (x tied)", *sizes]]
    for name in dict.fromkeys(row["name"] for row in layers):
        times = ((ms[name, size], ms["tied", size]) for size in sizes)
        lines.append([name, *(f"{ours:,.2f} ({ours / tied:.2f})" for ours, tied in times)])
    yield from (*markdown_table(lines), "")
    losses = [row for row in rows if row["benchmark"] == "loss" and row["size"] == "llm"]
    headings, *lines = cells("loss", [row for row in losses if "error" not in row])
    yield from markdown_table([["tied head at llm size", *headings[1:]], *lines])


class Found(NamedTuple):
    """A measured value: the number, how it is shown, and the commit it was measured at."""

    value: float
    text: str
    commit: str | None = None


class Aim(NamedTuple):
    """A line of the table of aims; ``peers`` are a text or measured values."""

    what: str
    ours: Found | None
    aim: float | None = None
    unit: str = ""
    stretch: float | None = None
    peers: str | dict[str, Found | None] = ""
    paper: str = ""
    at_least: bool = False  # a speed: more is better


def newest(rows: Sequence[Row], key: str = "ms_median", **wanted: object) -> Row | None:
    """The last such row that has ``key``; None where what was measured last failed."""
    found = [row for row in rows if wanted.items() <= row.items()]
    found = [row for row in found if "error" in row or row.get(key)]
    last = max(found, key=lambda row: row["time"], default=None)
    return None if last is None or "error" in last else last


def of_one_run(rows: Sequence[Row], *names: str, **wanted: object) -> list[Row] | None:
    """The newest row of the first name, and the other names from the same run of a script."""
    first = newest(rows, name=names[0], **wanted)
    together = [row for row in rows if first and row["time"] == first["time"]]
    found = [newest(together, name=name, **wanted) for name in names]
    return None if None in found else [row for row in found if row]


def aims(rows: Sequence[Row]) -> dict[str, Aim]:
    """What was to be reached on an H200, by a short name.

    The released code was timed once, on an H200; the paper's figures are its own.
    """

    step = {"benchmark": "step", "dtype": "autocast"}

    def both(graph: float, launched: float, commit: str) -> Found:
        return Found(graph, f"{graph:.2f} ms replayed, {launched:.2f} launched", commit)

    def lstm(impl: str, size: str, dtype: str = "autocast") -> Found | None:
        wanted = {"benchmark": "lstm", "name": impl, "size": size, "dtype": dtype}
        row = newest(rows, "ms_graph_median", **wanted)
        return row and both(row["ms_graph_median"], row["ms_median"], row["commit"])

    def lstms(what: str, size: str, aim: float, stretch: float) -> Aim:
        peers = {"cuDNN tf32": lstm("cudnn", size, "tf32"), "cuDNN bfloat16": lstm("cudnn", size)}
        return Aim(what, lstm("persistent", size), aim, " ms", stretch, peers)

    def epoch(what: str, name: str, key: str, how: str, aim: float, peers: str = "") -> Aim:
        row = newest(rows, key, benchmark="epoch", name=name, precision="bfloat16")
        ours = row and Found(row[key], f"{row[key]:.2f} s, {how}", row["commit"])
        return Aim(what, ours, aim, " s", peers=peers)

    def epochs_of(corpus: str, name: str, aim: float, released: str) -> Aim:
        what, peers = f"epoch of {corpus} with validation, `{name}`", f"{RELEASED} {released} s"
        return epoch(what, name, "seconds_median", "steps replayed", aim, peers)

    def tied_step(size: str, released: float) -> Aim:
        found = of_one_run(rows, "drill tied, replayed", "drill tied", size=size, **step)
        ours = found and both(*(row["ms_median"] for row in found), found[0]["commit"])
        row = newest(rows, name="plain nn.LSTM + F.cross_entropy", size=size, **step)
        plain = row and Found(0, f"{row['ms_median']:.1f} ms launched", row["commit"])
        peers = {RELEASED: Found(0, f"{released:.1f} ms launched"), "plain PyTorch": plain}
        return Aim(f"training step of `{size}-tied`", ours, peers=peers)

    def ratio(what: str, layer: str, size: str, aim: float, paper: str, peers: str = "") -> Aim:
        names = [f"drill {each}{how}" for how in (", replayed", "") for each in (layer, "tied")]
        ours = None
        if found := of_one_run(rows, *names, size=size, **step):
            deep, tied, launched, tied_launched = (row["ms_median"] for row in found)
            text = f"{deep / tied:.3f} replayed ({deep:.2f} over {tied:.2f} ms), "
            text += f"{launched / tied_launched:.2f} launched"
            ours = Found(deep / tied, text, found[0]["commit"])
        what = f"step {what} over that of `{size}-tied`"
        return Aim(what, ours, aim, peers=peers, paper=paper)

    def speed(what: str, peers: str, aim: float, pairs: dict[str, Sequence[str]], **of: str) -> Aim:
        wanted = {"benchmark": "translation", "size": "nmt", **of}
        found = {how: of_one_run(rows, *names, **wanted) for how, names in pairs.items()}
        ours = None
        if all(found.values()):
            ms = {how: [row["ms_median"] for row in each] for how, each in found.items()}
            speeds = {how: theirs / own for how, (own, theirs) in ms.items()}
            text = ", ".join(f"{each:.2f} times with {how}" for how, each in speeds.items())
            first = next(iter(pairs))
            ours = Found(speeds[first], text, found[first][0]["commit"])
        return Aim(what, ours, aim, peers=peers, at_least=True)

    lstm_parts = "three LSTMs with weight drop, forward and backward, batch 20"
    dynamic = "dynamic evaluation of the Penn Treebank test text, gradient statistics included"
    training = "training of the paper's Transformer base, 4,096 target tokens a step, by speed"
    search = "its search, beam 4, 64 sentences at once, by speed"
    deep, mixture = "deep-residual 4", "mixture 15"
    trained = {
        "both in CUDA graphs": ("drill tied, CUDA graph", "MarianMT, CUDA graph"),
        "both launched": ("drill tied", "MarianMT"),
    }
    searched = {
        "ours in CUDA graphs": ("drill tied", "MarianMT"),
        "both launched": ("drill tied, graph=False", "MarianMT"),
    }
    marian = "MarianMT of `transformers`"
    return {
        "lstms": lstms(lstm_parts, "ptb", 1.65, 1.4),
        "lstms wt2": lstms("the same, batch 80", "wt2", 4.4, 3.4),
        "epoch": epochs_of("Penn Treebank", "ptb-drill-4", 2.0, "12.6"),
        "epoch wt2": epochs_of("WikiText-2", "wt2-drill-4", 3.5, "17.5"),
        "step": tied_step("ptb", 16.0),
        "step wt2": tied_step("wt2", 35.6),
        "ratio": ratio("of `ptb-drill-4`", deep, "ptb", 1.08, "1.1", f"{RELEASED} 1.04"),
        "ratio wt2": ratio("of `wt2-drill-4`", deep, "wt2", 1.08, "1.2", f"{RELEASED} 1.15"),
        "mixture": ratio("with 15 softmaxes", mixture, "ptb", 1.5, "3.0"),
        "mixture wt2": ratio("with 15 softmaxes", mixture, "wt2", 2.5, "9.7"),
        "dynamic": epoch(dynamic, "ptb-drill-4", "dynamic_seconds", "gradients replayed", 60),
        "training": speed(training, marian, 1.5, trained, task="training", dtype="autocast"),
        "search": speed(search, "the same", 2.0, searched, task="search", dtype="bfloat16"),
    }


RELEASED = "released code"


def aims_table(rows: Sequence[Row]) -> list[str]:
    lines = [["on one H200", "peer", "paper", "aim", "ours", "", "commit"]]
    for line in aims(rows).values():
        timed = line.peers if isinstance(line.peers, dict) else {}
        peers = "; ".join(f"{name} {shown(found)}" for name, found in timed.items()) or line.peers
        aim = "at least " if line.at_least else ""
        aim += "" if line.aim is None else f"{line.aim:g}{line.unit}"
        aim += f" (stretch {line.stretch:g})" if line.stretch else ""
        own = line.ours.commit if line.ours else ""
        others = {name: found.commit for name, found in timed.items() if found and found.commit}
        commits = "; ".join([own, *(f"{name} {x}" for name, x in others.items() if x != own)])
        ours = shown(line.ours)
        lines.append([line.what, peers, line.paper, aim, ours, verdict(line), commits])
    return markdown_table(lines, "llrrl")


def shown(found: Found | None, form: str = "{0.text}") -> str:
    return "not measured" if found is None else form.format(found)


def verdict(line: Aim) -> str:
    """Met, or missed by what share of the aim; the stretch where the aim is met."""
    if line.aim is None or line.ours is None:
        return ""
    over = line.ours.value / line.aim - 1
    if (-over if line.at_least else over) > 0:
        return f"missed by {abs(over):.1%}"
    if line.stretch is None:
        return "met"
    over = line.ours.value / line.stretch - 1
    return f"met; stretch missed by {over:.1%}" if over > 0 else "met, stretch too"


# -- the README's figures -------------------------------------------------------------------------

SPEED, MODELS = "docs/figures.md#the-layers", "docs/figures.md#the-language-models"
TRANSLATORS = "docs/figures.md#the-translators"
STUDIES = (
    "ptb-full-length",
    "ptb",
    "demo-maps",
    "demo-norm",
    "multi30k",
    "multi30k-maps",
    "multi30k-maps-2",
)
COMPARED = "europarl"
"""The corpus whose layers are compared by single runs, not by a study."""


def headline(rows: Sequence[Row], runs: Sequence[report.Row]) -> list[str]:
    """What it is, ours, what to compare it with, and the command."""
    lines = [["", "ours", "compared with", "measured by"], *losses(rows)]
    goals = aims(rows)
    what = f"[the three LSTMs]({MODELS}) of the paper's language model, a batch of Penn Treebank "
    ours, peers = (goals["lstms"].ours, goals["lstms"].peers.items())
    cudnn = "; ".join(f"{name} {shown(each, '{0.value:.1f} ms')}" for name, each in peers)
    ms = shown(ours, "{0.value:.2f} ms")
    lines.append([f"{what}forward and backward", ms, cudnn, "`python bench/lstm.py`"])
    what = f"time of a [training step]({MODELS}) with four label maps on Penn Treebank, as a "
    ratio = goals["ratio"]
    times, peers = shown(ratio.ours, "{0.value:.2f} times"), f"authors' {ratio.peers}"
    command = "`python bench/step.py --dtype autocast`"
    lines.append(
        [f"{what}multiple of tied weights'", times, f"paper {ratio.paper}, {peers}", command]
    )
    what, epoch = f"[epoch]({MODELS}) of `ptb-drill-4`, validation included", goals["epoch"]
    ours, peers = shown(epoch.ours, "{0.value:.1f} s"), f"authors' {epoch.peers}"
    lines.append([what, ours, peers, "`python bench/epoch.py --recipe ptb-drill-4`"])
    lines.append(validation_perplexity(runs))
    keys = (FINETUNED, f"{FINETUNED}+dynamic")
    paper = "; ".join(str(PAPER[f"ptb-drill-4{each}"].test) for each in keys)
    what = (
        f"[test perplexity]({MODELS}) of `ptb-drill-4` after 500 epochs and 120 of finetuning; "
        f"then with dynamic evaluation (paper {paper})"
    )
    lines.append(study_row("ptb-full-length", "drill-4", what, "finetune", "dynamic"))
    what = (
        f"[the same]({MODELS}) after 215 epochs of the short recipe; then with dynamic evaluation"
    )
    lines.append(study_row("ptb", "drill-4", what, "train", "dynamic"))
    what = f"[BLEU]({TRANSLATORS}) of `multi30k-drill`, English-German"
    lines += [study_row("multi30k", "drill", what, "train"), translations(runs)]
    return markdown_table(lines, "lrl")


def losses(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A tied head's loss and gradients over their matrix products alone, and its memory."""
    found = [row for row in rows if row["benchmark"] == "loss" and row["size"] == "llm"]
    timed = {row["name"]: row for row in found if "error" not in row}

    def over(name: str) -> str:
        times = timed[name]["ms_median"] / timed["GEMM floor"]["ms_median"]
        return f"{times:.2f} times, {timed[name]['working_bytes'] / 2**20:,.0f} MiB"

    what = f"time of a tied head's [loss]({SPEED}) at an LLM's size, as a multiple of its matrix "
    command = "`python bench/loss.py --size llm --dtype bfloat16 --no-bias --memory 64`"
    peer = f"torch.compile {over('the same, torch.compile')}"
    yield [f"{what}products alone", over("drill auto"), peer, command]
    peer = f"liger-kernel {over('liger-kernel')}; "
    peer += f"cut-cross-entropy {over('cut-cross-entropy cce')}; both timed in an earlier run"
    yield ["the same with `memory=64` MiB", over("drill triton, 64 MiB"), peer, command]


def validation_perplexity(runs: Sequence[report.Row]) -> list[str]:
    """Early epochs, where there are several runs."""
    name, over = "ptb-drill-4", range(16, 21)
    own = [run for run in ledger.of_recipe(runs, name) if run.precision == "bfloat16"]
    found = [run for run in own if {*over} <= ledger.validation(run).keys()]
    ours = mean(ledger.validation(run)[epoch] for run in found for epoch in over)
    theirs = np.interp(over, [*CURVES[name]], [*CURVES[name].values()]).mean()  # has gaps
    return [
        f"[validation perplexity]({MODELS}) of `{name}`, mean of epochs {over[0]} to {over[-1]}, "
        f"{len(found)} runs of {len({run.seed for run in found})} seeds",
        f"{ours:.1f}",
        f"authors' published curve {theirs:.1f}",
        f"`drill train {name} --set training.epochs={over[-1]}`",
    ]


def study(name: str) -> States:
    plan = read_plan(ROOT / f"studies/{name}.toml")
    return States(plan, ROOT / f"results/{plan.ledger}.jsonl", None)


def study_table(name: str) -> Iterator[str]:
    """A table for each stage."""
    states = study(name)
    for stage in states.plan.stages:
        yield from [f"**{stage}**", ""] if len(states.plan.stages) > 1 else []
        yield from stage_table(states, stage).markdown().splitlines()
        yield from [""] if stage != states.plan.stages[-1] else []


def study_row(name: str, row: str, what: str, *stages: str) -> list[str]:
    """The mean score of a study's row by each stage, and its difference to tied weights."""
    states, cells = study(name), []
    rows = {each.name: each for each in states.plan.rows}
    for stage in stages:
        found = [finished_results(states, rows[each], stage) for each in (row, "tied")]
        ours, tied = ([final_score(each[n], stage) for n in sorted(each)] for each in found)
        by = paired_difference(ours, tied)
        change = f"difference {by.mean:+.2f}"
        if by.half is not None:
            change += f", 95% interval {by.mean - by.half:+.2f} to {by.mean + by.half:+.2f}"
        cells.append((f"{mean(ours):.2f}", f"{mean(tied):.2f}, {change}"))
    own, others = ("; ".join(each) for each in zip(*cells, strict=True))
    command = f"`drill study studies/{name}.toml --report`"
    seeds = f"mean of {len(ours)} seeds" if len(ours) > 1 else "one seed"
    return [f"{what}, {seeds}", own, f"tied weights {others}", command]


def final_score(row: report.Row, stage: str) -> float:
    """BLEU of a translator, test perplexity of a language model."""
    trained = stage in ("train", "finetune")
    last = row.test if trained else stage_results(row, stage)[-1]["perplexity"]
    return row.extra.get("bleu", last)


def compared_translators(runs: Sequence[report.Row]) -> dict[str, ledger.Layers]:
    return ledger.comparisons([run for run in runs if ledger.corpus_of(run) == COMPARED])


def translations(runs: Sequence[report.Row]) -> list[str]:
    """BLEU of the paper's layer and of tied weights, by the latest settings of most seeds."""
    wanted, found = ("deep-residual 2", ledger.BASE), reversed(compared_translators(runs).values())
    pairs = [[layers[each] for each in wanted] for layers in found if {*wanted} <= {*layers}]
    ours, tied = max(pairs, key=lambda pair: min(map(len, pair)))
    settings = ", settings there" if any(row.changes for row in ours) else ""
    return [
        f"[BLEU]({TRANSLATORS}) of `{COMPARED}-drill`, English-German, mean of {len(ours)} seeds",
        f"{ledger.mean_bleu(ours):.2f}",
        f"tied weights {ledger.mean_bleu(tied):.2f}",
        f"`drill train {COMPARED}-drill --seed 1`{settings}",
    ]


# -- files ----------------------------------------------------------------------------------------


def renewed(text: str, name: str, lines: Iterable[str]) -> str:
    """A page with ``lines`` between the marks of the table called ``name``."""
    begin, end = f"<!-- {name}: python bench/tables.py -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    return "\n".join([before + begin, *lines, end + rest.split(end)[1]])


def read_rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (ROOT / "results" / name).read_text().splitlines()]


def pages() -> dict[Path, str]:
    """Every file that is made from results/, as it should be."""
    rows, runs = read_rows("h200.jsonl"), report.read(ROOT / "results/runs.jsonl")
    tables = {
        "README.md": {"headline": headline(rows, runs)},
        "docs/figures.md": {
            **{name: study_table(name) for name in STUDIES},
            "bleu": ledger.bleu(compared_translators(runs)),
            "layers": layers_and_losses(rows),
            "aims": aims_table(rows),
        },
    }
    times = ledger.recipe_times(runs, rows)
    found = {
        "docs/results.md": "\n".join([*results_page(rows, runs), ""]),
        "docs/results-cpu.md": "\n".join([*results_page(read_rows("cpu.jsonl")), ""]),
        "src/drill/recipes/measured.json": json.dumps(times, indent=2) + "\n",
    }
    for page, own in tables.items():
        found[page] = (ROOT / page).read_text()
        for name, lines in own.items():
            found[page] = renewed(found[page], name, lines)
    return {ROOT / path: text for path, text in found.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("ledger", nargs="?", type=Path, help="rows of `drill ledger add`")
    args = options.parse_args()
    if args.ledger:
        print("\n".join(ledger.translators(report.read(args.ledger), gaps=True)))
        return
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
