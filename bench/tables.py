"""Renew every table of README.md and docs/ that is made from results/."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from cases import LARGE
from columns import COLUMNS, Row, cells, section, title

from drill.report.results.paper import PAPER
from drill.report.study.plan import read_plan
from drill.report.study.states import States
from drill.report.study.tables import (
    difference_cells,
    plan_settings,
    results_by_row,
    stage_scores,
    stage_table,
)
from drill.report.tables.markup import markdown_table

ROOT = Path(__file__).parents[1]

# The benchmarks on the page of results, in its order.
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


def results_page(heading: str, rows: Sequence[Row]) -> Iterator[str]:
    """Every row of the benchmarks."""
    machines = sorted({f"{row['device']}, torch {row['torch']}" for row in rows})
    commits = sorted({row["commit"] for row in rows})
    made = "Every benchmark row of this device, question by question; [figures](figures.md) has "
    made += "the summary. Made by `python bench/tables.py`, not by hand."
    yield from (f"# {heading}", "", made)
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
    (_, *headings), *lines = large_losses(rows)
    yield from markdown_table([["tied head at llm size", *headings], *lines])


def large_losses(rows: Sequence[Row]) -> list[list[str]]:
    found = [row for row in rows if row["benchmark"] == "loss" and row["size"] == "llm"]
    return cells("loss", [row for row in found if "error" not in row])


class Measured(NamedTuple):
    """A value: the number where it is known, how it is shown, and the commit it was measured at."""

    value: float | None
    text: str
    commit: str | None = None


class Aim(NamedTuple):
    """A line of the table of aims."""

    what: str
    ours: Measured | None
    peers: dict[str, Measured | None]
    aim: float | None = None
    unit: str = ""
    stretch: float | None = None
    paper: str = ""
    at_least: bool = False  # a speed: more is better


def newest(
    rows: Sequence[Row], names: Sequence[str], *keys: str, **wanted: object
) -> tuple[list[float], str] | None:
    """``keys`` of the newest row of the first name, then of the others, and their commit.

    The others are of the same call of the benchmark, whose rows all have its ``time``. None where
    a row is missing, and where what was measured last failed.
    """
    values: list[float] = []
    for name in names:
        own = [row for row in rows if {"name": name, **wanted}.items() <= row.items()]
        own = [row for row in own if "error" in row or row.get(keys[0])]
        last = max(own, key=lambda row: row["time"], default={"error": "not measured"})
        if "error" in last:
            return None
        values += (last[key] for key in keys)
        rows = [row for row in rows if row["time"] == last["time"]]
    return values, last["commit"]


def measured(
    rows: Sequence[Row], names: Sequence[str], text: str, *keys: str, **wanted: object
) -> Measured | None:
    """The first of the newest values, and all in ``text``."""
    if (last := newest(rows, names, *(keys or ["ms_median"]), **wanted)) is None:
        return None
    values, commit = last
    return Measured(values[0], text.format(*values), commit)


def measured_ratios(
    rows: Sequence[Row], names: Sequence[str], text: str, **wanted: object
) -> Measured | None:
    """First over second and third over fourth of the newest times; ``text`` has both, then all."""
    if (last := newest(rows, names, "ms_median", **wanted)) is None:
        return None
    (a, b, c, d), commit = last
    return Measured(a / b, text.format(a / b, c / d, a, b, c, d), commit)


def aims(rows: Sequence[Row]) -> dict[str, Aim]:
    """What was to be reached on an H200, by a short name.

    The released code was timed once, on an H200; the paper's figures are its own.
    """
    step = {"benchmark": "step", "dtype": "autocast"}
    both = "{:.2f} ms replayed, {:.2f} launched"

    def released(text: str) -> dict[str, Measured | None]:
        return {"released code": Measured(None, text)}

    def lstms(what: str, size: str, aim: float, stretch: float) -> Aim:
        def lstm(impl: str, dtype: str) -> Measured | None:
            wanted = {"benchmark": "lstm", "size": size, "dtype": dtype}
            return measured(rows, [impl], both, "ms_graph_median", "ms_median", **wanted)

        peers = {"cuDNN tf32": lstm("cudnn", "tf32"), "cuDNN bfloat16": lstm("cudnn", "autocast")}
        return Aim(what, lstm("persistent", "autocast"), peers, aim, " ms", stretch)

    def epoch(name: str, key: str, how: str) -> Measured | None:
        about = {"benchmark": "epoch", "precision": "bfloat16"}
        return measured(rows, [name], f"{{:.2f}} s, {how} replayed", key, **about)

    def epochs_of(corpus: str, name: str, aim: float, theirs: str) -> Aim:
        what = f"epoch of {corpus} with validation, `{name}`"
        return Aim(what, epoch(name, "seconds_median", "steps"), released(theirs), aim, " s")

    def tied_step(size: str, theirs: str) -> Aim:
        ours = measured(rows, ["drill tied, replayed", "drill tied"], both, size=size, **step)
        name = "plain nn.LSTM + F.cross_entropy"
        plain = measured(rows, [name], "{:.1f} ms launched", size=size, **step)
        peers = {**released(f"{theirs} ms launched"), "plain PyTorch": plain}
        return Aim(f"training step of `{size}-tied`", ours, peers)

    def ratio(what: str, layer: str, size: str, aim: float, paper: str, theirs: str = "") -> Aim:
        names = [f"drill {each}{how}" for how in (", replayed", "") for each in (layer, "tied")]
        text = "{0:.3f} replayed ({2:.2f} over {3:.2f} ms), {1:.2f} launched"
        ours = measured_ratios(rows, names, text, size=size, **step)
        what = f"step {what} over that of `{size}-tied`"
        return Aim(what, ours, released(theirs) if theirs else {}, aim, paper=paper)

    def speed(what: str, peer: str, aim: float, how: str, names: Sequence[str], task: str) -> Aim:
        text = f"{{:.2f}} times with {how} in CUDA graphs, {{:.2f}} times with both launched"
        about = {"task": task, "dtype": "autocast" if task == "training" else "bfloat16"}
        ours = measured_ratios(rows, names, text, benchmark="translation", size="nmt", **about)
        return Aim(what, ours, {peer: Measured(None, "")}, aim, at_least=True)

    lstm_parts = "three LSTMs with weight drop, forward and backward, batch 20"
    dynamic = "dynamic evaluation of the Penn Treebank test text, gradient statistics included"
    seconds = epoch("ptb-drill-4", "dynamic_seconds", "gradients")
    training = "training of the paper's Transformer base, 4,096 target tokens a step, by speed"
    trained = ("MarianMT, CUDA graph", "drill tied, CUDA graph", "MarianMT", "drill tied")
    search = "its search, beam 4, 64 sentences at once, by speed"
    searched = ("MarianMT", "drill tied", "MarianMT", "drill tied, graph=False")
    deep, mixture, marian = "deep-residual 4", "mixture 15", "MarianMT of `transformers`"
    return {
        "lstms": lstms(lstm_parts, "ptb", 1.65, 1.4),
        "lstms wt2": lstms("the same, batch 80", "wt2", 4.4, 3.4),
        "epoch": epochs_of("Penn Treebank", "ptb-drill-4", 2.0, "12.6 s"),
        "epoch wt2": epochs_of("WikiText-2", "wt2-drill-4", 3.5, "17.5 s"),
        "step": tied_step("ptb", "16.0"),
        "step wt2": tied_step("wt2", "35.6"),
        "ratio": ratio("of `ptb-drill-4`", deep, "ptb", 1.08, "1.1", "1.04"),
        "ratio wt2": ratio("of `wt2-drill-4`", deep, "wt2", 1.08, "1.2", "1.15"),
        "mixture": ratio("with 15 softmaxes", mixture, "ptb", 1.5, "3.0"),
        "mixture wt2": ratio("with 15 softmaxes", mixture, "wt2", 2.5, "9.7"),
        "dynamic": Aim(dynamic, seconds, {}, 60, " s"),
        "training": speed(training, marian, 1.5, "both", trained, "training"),
        "search": speed(search, "the same", 2.0, "ours", searched, "search"),
    }


def aims_table(rows: Sequence[Row]) -> list[str]:
    lines = [["on one H200", "peer", "paper", "aim", "ours", "", "commit"]]
    for line in aims(rows).values():
        aim = "at least " if line.at_least else ""
        aim += "" if line.aim is None else f"{line.aim:g}{line.unit}"
        aim += f" (stretch {line.stretch:g})" if line.stretch else ""
        own = line.ours.commit if line.ours else ""
        others = {name: found.commit for name, found in line.peers.items() if found}
        others = (f"{name} {x}" for name, x in others.items() if x not in (None, own))
        cells = [line.what, peers(line), line.paper, aim, shown(line.ours), verdict(line)]
        lines.append([*cells, "; ".join(filter(None, [own, *others]))])
    return markdown_table(lines, "llrrl")


def peers(line: Aim, form: str = "{0.text}") -> str:
    return "; ".join(f"{name} {shown(found, form)}".rstrip() for name, found in line.peers.items())


def shown(found: Measured | None, form: str = "{0.text}") -> str:
    return "not measured" if found is None else form.format(found)


def verdict(line: Aim) -> str:
    """Met, or missed by what share of the aim; the stretch where the aim is met."""
    if line.aim is None or line.ours is None or line.ours.value is None:
        return ""
    ours, sign = line.ours.value, -1 if line.at_least else 1
    missed, further = (sign * (ours / goal - 1) for goal in (line.aim, line.stretch or line.aim))
    if missed > 0:
        return f"missed by {missed:.1%}"
    if line.stretch is None:
        return "met"
    return f"met; stretch missed by {further:.1%}" if further > 0 else "met, stretch too"


# -- the README's figures -------------------------------------------------------------------------

SPEED, MODELS = "docs/figures.md#the-layers", "docs/figures.md#the-language-models"


def quality() -> list[str]:
    """Test scores of tied weights and of the paper's layer, their difference, the paper's two."""
    headings = ["test", "tied weights", "deep residual", "difference", "paper: both", "seeds"]
    full, dynamic = "ptb-full-length", "the same with dynamic evaluation"
    lines = [
        [*headings, "measured by"],
        study_row(full, "finetune", "drill-4", "Penn Treebank, finetuned", "finetune"),
        study_row(full, "dynamic", "drill-4", dynamic, "finetune+dynamic"),
        study_row("ptb", "train", "drill-4", "Penn Treebank, short training"),
        study_row("ptb", "dynamic", "drill-4", dynamic),
        study_row("demo", "train", "drill", "World English Bible, the demo"),
        study_row("multi30k", "train", "drill", "Multi30k, BLEU"),
        study_row("europarl", "train", "drill", "Europarl, BLEU"),
    ]
    return markdown_table(lines, "lrrrrrl")


def speed(rows: Sequence[Row]) -> list[str]:
    """What it is, ours, what to compare it with, and the command."""
    goals = aims(rows)
    lstms, ratio, epoch = (goals[name] for name in ("lstms", "ratio", "epoch"))
    lines = [["", "ours", "compared with", "measured by"], *losses(rows)]
    what = (
        f"[the three LSTMs]({MODELS}) of the paper's language model, a batch of Penn Treebank "
        "forward and backward"
    )
    ours, theirs = shown(lstms.ours, "{0.value:.2f} ms"), peers(lstms, "{0.value:.1f} ms")
    lines.append([what, ours, theirs, "`python bench/lstm.py`"])
    what = (
        f"time of a [training step]({MODELS}) with four label maps on Penn Treebank, as a multiple "
        "of tied weights'"
    )
    ours = shown(ratio.ours, "{0.value:.2f} times")
    theirs = f"paper {ratio.paper}, authors' {peers(ratio)}"
    lines.append([what, ours, theirs, "`python bench/step.py --dtype autocast`"])
    what = f"[epoch]({MODELS}) of `ptb-drill-4`, validation included"
    ours, theirs = shown(epoch.ours, "{0.value:.1f} s"), f"authors' {peers(epoch)}"
    lines.append([what, ours, theirs, "`python bench/epoch.py --recipe ptb-drill-4`"])
    return markdown_table(lines, "lrl")


def losses(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A tied head's loss and gradients over their matrix products alone, and its memory."""
    headings, *lines = large_losses(rows)
    found = {line[0]: dict(zip(headings, line, strict=True)) for line in lines}

    def over(name: str) -> str:
        return f"{found[name]['x floor']} times, {found[name]['MiB beyond gradients']} MiB"

    what = f"time of a tied head's [loss]({SPEED}) at an LLM's size, as a multiple of its matrix "
    command = "`python bench/loss.py --size llm --dtype bfloat16 --no-bias --memory 64`"
    peer = f"torch.compile {over('the same, torch.compile')}"
    yield [f"{what}products alone", over("drill auto"), peer, command]
    peer = f"liger-kernel {over('liger-kernel')}; "
    peer += f"cut-cross-entropy {over('cut-cross-entropy cce')}; both timed in an earlier run"
    yield ["the same with `memory=64` MiB", over("drill triton, 64 MiB"), peer, command]


def study(name: str) -> States:
    plan = read_plan(ROOT / f"studies/{name}.toml")
    return States(plan, ROOT / f"results/{plan.ledger}.jsonl", None)


def study_table(name: str) -> Iterator[str]:
    """A table for each stage."""
    states = study(name)
    for stage in states.plan.stages:
        yield from [f"**{stage}**", ""] if len(states.plan.stages) > 1 else []
        yield from stage_table(states, stage).markdown().splitlines()
        if settings := plan_settings(states.plan, stage):
            yield from ["", f"{settings.caption}:", "", *settings.markdown().splitlines()]
        yield from [""] if stage != states.plan.stages[-1] else []


def study_row(name: str, stage: str, row: str, what: str, paper_suffix: str = "") -> list[str]:
    """A line of ``quality`` from a row of a study and its baseline."""
    states = study(name)
    found = results_by_row(states, stage)
    _, (score, test), *_ = stage_scores(stage, [*found[row].values()]).items()
    tied, ours = found[states.plan.baseline], found[row]
    means = [f"{mean(test(each[seed]) for seed in ours):.2f}" for each in (tied, ours)]
    change, _ = difference_cells(ours, tied, test, score)
    published = [
        PAPER[f"{each}-{paper_suffix}"].test for each in ("ptb-tied", "ptb-drill-4") if paper_suffix
    ]
    cells = [*means, change, ", ".join(map(str, published)), str(len(ours))]
    return [what, *cells, f"`drill study studies/{name}.toml --report`"]


# -- files ----------------------------------------------------------------------------------------

MARKED = re.compile(r"(<!-- (\S+): python bench/tables.py -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
"""A table of a page, between comments with its name."""


def read_rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (ROOT / "results" / name).read_text().splitlines()]


def pages() -> dict[Path, str]:
    """Every file that is made from results/, as it should be."""
    rows = read_rows("h200.jsonl")
    tables = {
        "quality": quality(),
        "speed": speed(rows),
        "layers": [*layers_and_losses(rows)],
        "aims": aims_table(rows),
    }

    def renewed(table: re.Match[str]) -> str:
        begin, name, end = table.groups()
        return begin + "\n".join([*(tables.get(name) or study_table(name)), end])

    found = {
        "docs/results.md": "\n".join([*results_page("Results on an H200", rows), ""]),
        "docs/results-cpu.md": "\n".join(
            [*results_page("Results on a CPU", read_rows("cpu.jsonl")), ""]
        ),
    }
    for page in ("README.md", "docs/figures.md"):
        found[page] = MARKED.sub(renewed, (ROOT / page).read_text())
    return {ROOT / path: text for path, text in found.items()}


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
