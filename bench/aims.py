"""What the fast step was to reach on an H200 and what it reached: aims and peers beside our rows.

Of every kind of row the newest counts, and of what has no row the table says so. Two times are
divided where one run took both.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import main

Row = dict[str, Any]

NOT_MEASURED = "not measured"
PLAIN = "plain nn.LSTM + F.cross_entropy"
RELEASED = "released code"


class Found(NamedTuple):
    """What the rows say: the number that an aim is for, and how it is shown."""

    value: float
    words: str
    commit: str | None


Ask = Callable[[Sequence[Row]], Found | None]
Peer = Callable[[Sequence[Row]], dict[str, Found | None]]
"""Peers that our scripts time, by their names."""


class Line(NamedTuple):
    what: str
    ours: Ask
    aim: float | None = None
    stretch: float | None = None
    unit: str = ""
    peer: str | Peer = ""
    paper: str = ""
    at_least: bool = False  # a speed, not a time: more is better


def newest(rows: Sequence[Row], *keys: str, **wanted: Any) -> Row | None:
    """The last such row with all ``keys``; None too where what came last failed."""
    alike = [row for row in rows if wanted.items() <= row.items()]
    alike = [row for row in alike if "error" in row or all(row.get(key) for key in keys)]
    found = max(alike, key=lambda row: row.get("time", ""), default=None)
    return None if found is None or "error" in found else found


def stack(name: str, size: str, dtype: str) -> Ask:
    """The three LSTMs; what is aimed at is the replay."""

    def ask(rows: Sequence[Row]) -> Found | None:
        keys = ("ms_median", "ms_graph_median")
        row = newest(rows, *keys, benchmark="lstm", name=name, size=size, dtype=dtype)
        if row is None:
            return None
        launched, replayed = (row[key] for key in keys)
        words = f"{replayed:.2f} ms replayed, {launched:.2f} launched"
        return Found(replayed, words, row.get("commit"))

    return ask


def cudnn(size: str) -> Peer:
    """The same three by cuDNN, in both precisions."""
    asked = {"tf32": stack("cudnn", size, "tf32"), "bfloat16": stack("cudnn", size, "autocast")}

    return lambda rows: {f"cuDNN {precision}": ask(rows) for precision, ask in asked.items()}


def epoch(name: str, key: str, how: str, **wanted: Any) -> Ask:
    def ask(rows: Sequence[Row]) -> Found | None:
        row = newest(rows, key, benchmark="epoch", name=name, **wanted)
        if row is None:
            return None
        return Found(row[key], f"{row[key]:.2f} s, {how}", row.get("commit"))

    return ask


def step(rows: Sequence[Row], name: str, size: str) -> Row | None:
    return newest(rows, "ms_median", benchmark="step", name=name, size=size, dtype="autocast")


def plain_step(size: str, released: float) -> Peer:
    """By the paper's own code in ``released`` ms, and by the plain model of our script."""

    def found(rows: Sequence[Row]) -> dict[str, Found | None]:
        row = step(rows, PLAIN, size)
        timed = {RELEASED: launched(released, None)}
        return timed | {
            "plain PyTorch": row and launched(row["ms_median"], row.get("commit")),
        }

    def launched(ms: float, commit: str | None) -> Found:
        return Found(ms, f"{ms:.1f} ms launched", commit)

    return found


def of_one_run(rows: Sequence[Row], size: str, *names: str) -> list[Row] | None:
    """Steps of our models, as the newest of the first name has them around it."""
    first = step(rows, names[0], size)
    together = [row for row in rows if first and row.get("time") == first.get("time")]
    found = [row for name in names if (row := step(together, name, size)) is not None]
    return found if len(found) == len(names) else None


def tied_step(size: str) -> Ask:
    def ask(rows: Sequence[Row]) -> Found | None:
        found = of_one_run(rows, size, "drill tied, replayed", "drill tied")
        if found is None:
            return None
        replayed, launched = (row["ms_median"] for row in found)
        words = f"{replayed:.2f} ms replayed, {launched:.2f} launched"
        return Found(replayed, words, found[0].get("commit"))

    return ask


def over_tied(layer: str, size: str) -> Ask:
    """A layer's step over the tied one; what is aimed at is the replay."""
    names = [f"drill {each}{how}" for how in (", replayed", "") for each in (layer, "tied")]

    def ask(rows: Sequence[Row]) -> Found | None:
        found = of_one_run(rows, size, *names)
        if found is None:
            return None
        ours, tied, launched, tied_launched = (row["ms_median"] for row in found)
        words = f"{ours / tied:.3f} replayed ({ours:.2f} over {tied:.2f} ms), "
        words += f"{launched / tied_launched:.2f} launched"
        return Found(ours / tied, words, found[0].get("commit"))

    return ask


def beside_marian(task: str, dtype: str, pairs: Mapping[str, tuple[str, str]]) -> Ask:
    """Our translator's speed over MarianMT's, by ways of running both; the first is aimed at."""

    def ask(rows: Sequence[Row]) -> Found | None:
        wanted = {"benchmark": "translation", "task": task, "size": "nmt", "dtype": dtype}
        ratios, words, commit = [], [], None
        for how, (ours, theirs) in pairs.items():
            mine = newest(rows, "ms_median", name=ours, **wanted)
            together = [row for row in rows if mine and row.get("time") == mine.get("time")]
            other = newest(together, "ms_median", name=theirs, **wanted)
            if mine is None or other is None:
                return None
            ratios.append(other["ms_median"] / mine["ms_median"])
            words.append(f"{ratios[-1]:.2f} times {how}")
            commit = commit or mine.get("commit")
        return Found(ratios[0], ", ".join(words), commit)

    return ask


# Peers: FOOT says where their figures come from. Those of the paper are its own.
LINES = (
    Line(
        "three LSTMs with weight drop, forward and backward, batch 20",
        stack("persistent", "ptb", "autocast"),
        aim=1.65,
        stretch=1.4,
        unit=" ms",
        peer=cudnn("ptb"),
    ),
    Line(
        "the same, batch 80",
        stack("persistent", "wt2", "autocast"),
        aim=4.4,
        stretch=3.4,
        unit=" ms",
        peer=cudnn("wt2"),
    ),
    Line(
        "epoch of Penn Treebank with validation, `ptb-drill-4`",
        epoch("ptb-drill-4", "seconds_median", "steps replayed", precision="bfloat16"),
        aim=2.0,
        unit=" s",
        peer=f"{RELEASED} 12.6 s",
    ),
    Line(
        "epoch of WikiText-2 with validation, `wt2-drill-4`",
        epoch("wt2-drill-4", "seconds_median", "steps replayed", precision="bfloat16"),
        aim=3.5,
        unit=" s",
        peer=f"{RELEASED} 17.5 s",
    ),
    Line("training step of `ptb-tied`", tied_step("ptb"), peer=plain_step("ptb", 16.0)),
    Line("training step of `wt2-tied`", tied_step("wt2"), peer=plain_step("wt2", 35.6)),
    Line(
        "step of `ptb-drill-4` over that of `ptb-tied`",
        over_tied("deep-residual 4", "ptb"),
        aim=1.08,
        peer=f"{RELEASED} 1.04",
        paper="1.1",
    ),
    Line(
        "step of `wt2-drill-4` over that of `wt2-tied`",
        over_tied("deep-residual 4", "wt2"),
        aim=1.08,
        peer=f"{RELEASED} 1.15",
        paper="1.2",
    ),
    Line(
        "step with 15 softmaxes over that of `ptb-tied`",
        over_tied("mixture 15", "ptb"),
        aim=1.5,
        paper="3.0",
    ),
    Line(
        "step with 15 softmaxes over that of `wt2-tied`",
        over_tied("mixture 15", "wt2"),
        aim=2.5,
        paper="9.7",
    ),
    Line(
        "dynamic evaluation of the Penn Treebank test text, gradient statistics included",
        epoch("ptb-drill-4", "dynamic_seconds", "gradients replayed"),
        aim=60,
        unit=" s",
    ),
    Line(
        "training of the paper's Transformer base, 4,096 target tokens a step, by speed",
        beside_marian(
            "training",
            "autocast",
            {
                "with both in CUDA graphs": ("drill tied, CUDA graph", "MarianMT, CUDA graph"),
                "with both launched": ("drill tied", "MarianMT"),
            },
        ),
        aim=1.5,
        peer="MarianMT of `transformers`",
        at_least=True,
    ),
    Line(
        "its search, beam 4, 64 sentences at once, by speed",
        beside_marian(
            "search",
            "bfloat16",
            {
                "with ours in CUDA graphs": ("drill tied", "MarianMT"),
                "with both launched": ("drill tied, graph=False", "MarianMT"),
            },
        ),
        aim=2.0,
        peer="the same",
        at_least=True,
    ),
)

FOOT = (
    "*Replayed* is a CUDA graph, as `drill train` takes its steps; *launched* is kernel by kernel "
    f"from Python. The {RELEASED} is the paper's, made to run with torch 2.11 and timed on an "
    "H200, launched. cuDNN and plain PyTorch are timed by our scripts. Ours "
    "multiply in bfloat16, dynamic evaluation in tf32; plain PyTorch under bfloat16's autocast, "
    "which computes its LSTMs in float16, and never replayed: nobody has timed that. Each ratio is "
    "of one run of a script; rows of different scripts may be of different commits."
)


def table(rows: Sequence[Row]) -> Iterable[str]:
    yield "| on one H200 | peer | paper | aim | ours | | commit |"
    yield "|---|---|---:|---:|---|---|---|"
    for line in LINES:
        found = line.ours(rows)
        timed = {} if isinstance(line.peer, str) else line.peer(rows)
        words = "; ".join(f"{name} {words_of(peer)}" for name, peer in timed.items())
        cells = (
            line.what,
            line.peer if isinstance(line.peer, str) else words,
            line.paper,
            aim_of(line),
            words_of(found),
            verdict(line, found),
            commits_of(found, timed),
        )
        yield f"| {' | '.join(cells)} |"
    yield from ("", FOOT)


def commits_of(found: Found | None, peers: Mapping[str, Found | None]) -> str:
    """Ours, and those of peers that were timed at another."""
    own = None if found is None else found.commit
    others = (f"{name} {peer.commit}" for name, peer in peers.items()
              if peer and peer.commit and peer.commit != own)  # fmt: skip
    return "; ".join([*([own] if own else []), *others])


def words_of(found: Found | None) -> str:
    return NOT_MEASURED if found is None else found.words


def aim_of(line: Line) -> str:
    if line.aim is None:
        return ""
    stretch = f" (stretch {line.stretch:g})" if line.stretch else ""
    return f"{'at least ' if line.at_least else ''}{line.aim:g}{line.unit}{stretch}"


def verdict(line: Line, found: Found | None) -> str:
    """Met, or missed by what share of the aim; the stretch where the aim is met."""
    if line.aim is None or found is None:
        return ""
    if line.at_least:
        return "met" if found.value >= line.aim else f"missed by {1 - found.value / line.aim:.1%}"
    if found.value > line.aim:
        return f"missed by {found.value / line.aim - 1:.1%}"
    if line.stretch is None:
        return "met"
    if found.value > line.stretch:
        return f"met; stretch missed by {found.value / line.stretch - 1:.1%}"
    return "met, stretch too"


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main(__doc__, "aims", table, read, of="rows of the benchmarks")
