"""`drill report`, `drill record`, `drill data`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from drill.cli.display import Counter, console
from drill.data import CORPORA, NAMES, data_folders, read_corpus
from drill.report.ledger import record as record_run
from drill.report.page import markdown, write_report


def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Folders of runs.")
    ] = None,
    ledger: Annotated[
        list[Path] | None, typer.Option(help="A results file; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="Its heading.")] = "Runs",
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown tables, write no page.")
    ] = False,
) -> None:
    """One self-contained page about runs and ledgers: tables, curves, settings."""
    if as_markdown:
        typer.echo(markdown(runs or [], ledger or []))
        return
    typer.echo(f"wrote {write_report(runs or [], out, ledgers=ledger or [], title=title)}")


def record(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    ledger: Annotated[Path, typer.Option(help="The results file.")] = Path("results/runs.jsonl"),
    note: Annotated[str, typer.Option(help="A remark.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Record a result again.")] = False,
) -> None:
    """Append the result of a run to a ledger."""
    evaluations = run / "evaluations.jsonl"
    extra: dict[str, Any] = {}
    if evaluations.exists():
        lines = evaluations.read_text(encoding="utf-8").splitlines()
        extra["evaluations"] = [json.loads(line) for line in lines]
    row = record_run(run, ledger, note, extra or None, force=force)
    typer.echo(f"{ledger}: {row.recipe}, valid {row.valid}, test {row.test}")


def data(
    corpus: Annotated[
        str | None, typer.Argument(help="A name, a folder or a file; none lists the names.")
    ] = None,
    minimum_count: Annotated[int, typer.Option(min=1, help="Rarer words are <unk>.")] = 1,
) -> None:
    """Find or download a corpus, check it and count it."""
    shown = console()
    if corpus is None:
        for name in NAMES:
            known = CORPORA.get(name)
            about = (
                f"{known.tokens[0]:,} tokens, {known.licence}"
                if known
                else ("the World English Bible, public domain; comes with drill[demo]")
            )
            shown.print(f"{name:11}  {about}", soft_wrap=True)
        shown.print(f"looked for in {' and '.join(map(str, data_folders()))}", soft_wrap=True)
        return
    with Counter("download") as progress:
        found, vocabulary = read_corpus(corpus, minimum_count=minimum_count, progress=progress)
        ids = found.encode(vocabulary)
    counts = "  ".join(f"{name} {len(getattr(ids, name)):,}" for name in ("train", "valid", "test"))
    shown.print(f"{found.name}: {len(vocabulary):,} words; tokens {counts}", soft_wrap=True)
