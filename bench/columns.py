"""How rows of a benchmark become columns of a table.

"x A" is a time as a multiple of A's, "speed / A" the inverse of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Rows = Mapping[str, Row]
Cell = Callable[[Row, Rows], str]
"""(row, all rows of its section by name) -> text; empty where it is not known"""


def number(key: str, form: str = ",.3f", unit: float = 1.0) -> Cell:
    return lambda row, _: "" if row.get(key) is None else format(row[key] / unit, form)


def mib(key: str) -> Cell:
    return number(key, ",.0f", 2**20)


def ratio(base: str, key: str = "ms_median") -> Cell:
    """The row over the row called ``base``."""

    def cell(row: Row, rows: Rows) -> str:
        top, bottom = row.get(key), rows.get(base, {}).get(key)
        if not top or not bottom:
            return ""
        return f"{top / bottom:.2f}" if top > 0.01 * bottom else f"{top / bottom:.1g}"

    return cell


def speed(base: str) -> Cell:
    """How many times as fast as ``base``: its time over the row's."""
    return lambda row, rows: ratio(row["name"])(rows.get(base, {}), rows)


def difference(base: str, key: str) -> Cell:
    def cell(row: Row, rows: Rows) -> str:
        ours, theirs = row.get(key), rows.get(base, {}).get(key)
        return "" if ours is None or theirs is None else f"{ours - theirs:+.3f}"

    return cell


MS, GRAPH_MS = number("ms_median"), number("ms_graph_median")
WORKING = {"MiB beyond gradients": mib("working_bytes")}


def times(base: str, name: str) -> dict[str, Cell]:
    """Launched and as a CUDA graph, each over ``base``."""
    return {
        "ms": MS,
        f"x {name}": ratio(base),
        "graph ms": GRAPH_MS,
        f"x {name} (graph)": ratio(base, "ms_graph_median"),
    }


COLUMNS: dict[str, dict[str, Cell]] = {
    "layers": {
        **times("tied", "tied"),
        "graph ms - tied": difference("tied", "ms_graph_median"),
        **WORKING,
    },
    "loss": {
        "ms": MS,
        "x floor": ratio("GEMM floor"),
        "graph ms": GRAPH_MS,
        **WORKING,
        "d hidden error": number("hidden_error", ".1e"),
        "d weight error": number("weight_error", ".1e"),
    },
    "memory": {
        "ms": MS,
        **WORKING,
        "MiB budget": mib("budget_bytes"),
        "MiB logits": mib("logits_bytes"),
    },
    "inference": times("nn.Linear", "nn.Linear"),
    "lstm": {
        **times("cudnn", "cudnn"),
        **WORKING,
        "output error": number("output_error", ".1e"),
        "gradient error": number("gradient_error", ".1e"),
    },
    "step": {
        "ms": MS,
        "x plain tied": ratio("plain nn.LSTM + F.cross_entropy"),
        "x its own plain": lambda row, rows: ratio(row.get("own_plain", ""))(row, rows),
        "x tied, replayed": ratio("drill tied, replayed"),
        **WORKING,
    },
    "translation": {
        "ms": MS,
        "target tokens/s": number("target_tokens_per_second", ",.0f"),
        "sentences/s": number("sentences_per_second", ",.0f"),
        "speed / MarianMT": speed("MarianMT"),
        "peak MiB": mib("peak_extra_bytes"),
    },
    "gpt": {
        "ms": MS,
        "tokens/s": number("tokens_per_second", ",.0f"),
        "speed / compiled loop": speed("transformers, compiled loop"),
        "x tied": ratio("drill tied"),
        "peak MiB": mib("peak_extra_bytes"),
        "peak / compiled loop": ratio("transformers, compiled loop", "peak_extra_bytes"),
    },
    "epoch": {
        "epoch, s": number("seconds_median", ".2f"),
        "first epoch, s": number("first_seconds", ".2f"),
        "gradient statistics, s": number("statistics_seconds", ".1f"),
        "dynamic evaluation with them, s": number("dynamic_seconds", ".1f"),
    },
}


def section(row: Row) -> tuple[Any, ...]:
    """Equal for rows of one table."""
    sizes = (row[key] for key in ("size", "tokens", "labels", "width", "dtype"))
    return (*sizes, row.get("task"), row.get("commit"))


def title(row: Row) -> str:
    sizes = f"N={row['tokens']:,} V={row['labels']:,} d={row['width']:,}"
    return f"{row['size']}, {sizes}, {row['dtype']}" + (f", {row['task']}" if "task" in row else "")


def cells(benchmark: str, rows: Sequence[Row]) -> list[list[str]]:
    """Headings, then a line for each row: its name and cells, or its name and its error.

    Columns that are empty in every row are left out.
    """
    named = {row["name"]: row for row in rows}
    shown = {
        heading: [cell(row, named) for row in named.values()]
        for heading, cell in COLUMNS[benchmark].items()
    }
    shown = {heading: column for heading, column in shown.items() if any(column)}
    lines = [["", *shown]]
    for at, (name, row) in enumerate(named.items()):
        error = [row["error"]] if "error" in row else None
        lines.append([name, *(error or (column[at] for column in shown.values()))])
    return lines


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Columns aligned for a screen; short lines, those of errors, are left out."""
    whole = [line for line in lines if len(line) == len(lines[0])]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    return "\n".join(
        "  ".join(f"{x:{'>' if at else '<'}{widths[at]}}" for at, x in enumerate(line))
        for line in whole
    )
