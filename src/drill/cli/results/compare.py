"""`drill compare`: two runs on the same text, with an interval, and the words that differ most."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, echo

from drill.cli import options
from drill.cli.display import console, counting, plain_table, printable
from drill.errors import SettingsError
from drill.training.progress import perplexity_of


def compare(
    a: Annotated[
        Path,
        Argument(metavar="RUN_A", help="The run to compare with.", callback=options.run_folder),
    ],
    b: Annotated[
        Path, Argument(metavar="RUN_B", help="The other run.", callback=options.run_folder)
    ],
    text: Annotated[
        Path | None, Option(metavar="FILE", help="One sentence per line; the test text by default.")
    ] = None,
    reference: Annotated[
        Path | None, Option(metavar="FILE", help="Translations of the text, for translators.")
    ] = None,
    top: Annotated[int, Option(min=0, help="Words to list on each side.")] = 10,
    as_json: options.JsonLines = False,
    quiet: options.Quiet = False,
    device: options.Device = "auto",
) -> None:
    """Compare two runs on the same text: RUN_B minus RUN_A.

    Prints the difference in loss, or in BLEU for translators, with the 95% interval of a paired
    bootstrap over lines (2,000 samples, seed 0), and the words that gained and lost most. The
    interval covers this text; for other seeds of training use `drill study`.
    """
    from drill.language_modeling.run import LanguageModelRun
    from drill.report.analysis import paired_comparison
    from drill.report.results.runs import distinct_names
    from drill.tasks import load
    from drill.training.run.folder import json_row

    runs: list[Any] = [load(path, None, device) for path in (a, b)]
    watch = partial(counting, quiet=quiet)
    if isinstance(runs[0], LanguageModelRun) != isinstance(runs[1], LanguageModelRun):
        raise SettingsError("is of another task than the first run", key=str(b))
    if isinstance(runs[0], LanguageModelRun):
        if reference is not None:
            raise SettingsError("is for translators", key="--reference")
        comparison, rows = paired_comparison.compare_losses(runs, text, watch)
    else:
        if (text is None) != (reference is None):
            raise SettingsError("translators need both --text and --reference", key="--text")
        comparison, rows = paired_comparison.compare_translations(runs, text, reference, watch)
    better = -1 if comparison["kind"] == "loss" else 1
    for name, sign in (("gained", better), ("lost", -better)):
        changed = [row for row in rows if sign * row["change"] > 0]
        comparison[name] = sorted(changed, key=lambda row: -sign * row["change"])[:top]
    if as_json:
        echo(json_row({"runs": [str(a), str(b)], **comparison}))
        return
    names = distinct_names([a.resolve(), b.resolve()])
    _print([names[a.resolve()], names[b.resolve()]], comparison)


def _print(names: Sequence[str], comparison: dict[str, Any]) -> None:
    output, loss = console(), comparison["kind"] == "loss"
    digits = 4 if loss else 2
    ends = [comparison["difference"], comparison["low"], comparison["high"]]
    both = [f"{comparison[side]:.{digits}f}" for side in "ab"]
    change, low, high = (f"{value:+.{digits}f}" for value in ends)
    rows = [["loss, nats per token" if loss else "BLEU", *both, change, f"{low} to {high}"]]
    if loss:
        both = [f"{perplexity_of(comparison[side]):,.2f}" for side in "ab"]
        change, low, high = (f"{100 * (perplexity_of(value) - 1):+.2f}%" for value in ends)
        rows.append(["perplexity", *both, change, f"{low} to {high}"])
    size = f"{comparison['tokens']:,} tokens" if loss else f"{comparison['lines']:,} lines"
    output.print(plain_table([size, *names, "difference", "95% interval"], rows))
    share = comparison["lower" if loss else "higher"]
    clear = not comparison["low"] <= 0.0 <= comparison["high"]
    verdict = "the interval excludes 0" if clear else "the interval includes 0: no clear difference"
    output.print(f"difference = {names[1]} minus {names[0]}")
    output.print(f"{names[1]} is better in {share:.1%} of the samples; {verdict}.")
    output.print("The interval covers the lines of this text, not other seeds of training.\n")
    format_count = "{:.3f}".format if loss else "{:,}".format
    for title in ("gained", "lost"):
        rows = [
            [
                printable(row["word"]),
                *([f"{row['seen']:,}"] if loss else []),
                f"{row['tokens']:,}",
                *(format_count(row[side]) for side in "ab"),
                f"{row['change']:+.1f}" if loss else f"{row['change']:+,}",
            ]
            for row in comparison[title]
        ]
        if rows:
            counted = ["training count"] if loss else []
            heads = [f"words that {title} most", *counted, "in the text"]
            output.print(plain_table([*heads, *names, "nats" if loss else "words"], rows))
            output.print()
