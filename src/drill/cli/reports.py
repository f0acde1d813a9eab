"""`drill report`, `drill record`, `drill data`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from drill.analysis.word_accuracy import AccuracyBand
from drill.build_translation import load_translation, refuse_unready
from drill.cli.compared import Compared
from drill.cli.corpora import DEFAULT, languages_in, listed
from drill.cli.display import Counter, console
from drill.cli.display import note as note_
from drill.cli.kept_translations import kept_bands, refuse_unlike_searches
from drill.config import TRANSLATION, recipe
from drill.data import (
    NAMES,
    PARALLEL_NAMES,
    DataError,
    ParallelSplits,
    data_folders,
    read_corpus,
    read_parallel_corpus,
)
from drill.opening import share_of_unknown
from drill.recipes import SettingsError
from drill.report import numbers
from drill.report.ledger import read as read_ledger
from drill.report.ledger import record as record_run
from drill.report.page import markdown, write_report
from drill.report.page_sources import refuse_to_lose
from drill.report.runs import distinct_names, is_run, read_run
from drill.run_loading import load_run, task_of

DEMO = "demo-drill"  # what own text is tried with first
PAGE = "report.html"  # of the folder one is in
LEDGER = "ledger.jsonl"  # beside the folders of runs, so that no file of a project's own is changed


def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Folders of runs.")
    ] = None,
    ledger: Annotated[
        list[Path] | None, typer.Option(help="A results file; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=f"The page to write; {PAGE} by default.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help=f"Replace a {PAGE} of other runs.")
    ] = False,
    title: Annotated[str, typer.Option(help="Its heading.")] = "Runs",
    bands: Annotated[
        bool,
        typer.Option("--bands", help="By word frequency: loss, or what a translator gets right."),
    ] = False,
    samples: Annotated[int, typer.Option(min=0, help="Texts of each model to show.")] = 0,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown tables, write no page.")
    ] = False,
    device: Annotated[str, typer.Option(help="Of --bands and --samples: auto, cpu, ...")] = "auto",
) -> None:
    """Write one self-contained page about runs and ledgers.

    Tables, curves, settings. With --bands also the loss on rare and frequent words, of each run
    and against the first of the same text: the test text is read again. Of translators which words
    are right in the translations that are kept in their folders.
    """
    folders = _without_others(runs or [])
    if not folders and not ledger:
        raise SettingsError("report: name folders of runs, or a --ledger")
    for path in ledger or []:
        read_ledger(path)
    if as_markdown:
        typer.echo(markdown(folders, ledger or []))
        return
    if out is None:
        out = Path(PAGE)
        if not force:
            refuse_to_lose(out, [*folders, *(ledger or [])])
    found = Compared()
    accuracy: dict[str, dict[str, list[AccuracyBand]]] = {}
    if bands or samples:
        names = distinct_names(folders)
        refuse_unlike_searches(each for each in folders if task_of(each) == TRANSLATION)
        for folder in folders:
            note_(f"reading {folder}")
            if task_of(folder) == TRANSLATION:
                if samples:
                    raise SettingsError(
                        f"--samples: {folder} holds a translator, which writes nothing of itself; "
                        "leave out that folder, or --samples"
                    )
                refuse_unready(folder, "--bands of", scores=False)
                run = load_translation(folder, device=device)
                for kind, each in kept_bands(run).items():
                    accuracy.setdefault(kind, {})[names[folder]] = each
            else:
                found.add(names[folder], load_run(folder, device=device), bands, samples)
    verb = "replaced" if out.is_file() else "wrote"
    page = write_report(
        folders,
        out,
        ledgers=ledger or [],
        texts=found.texts(),
        accuracy=accuracy,
        samples=found.samples,
        title=title,
    )
    typer.echo(f"{verb} {page}")


def record(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    ledger: Annotated[
        Path | None, typer.Option(help=f"The results file; {LEDGER} beside RUN by default.")
    ] = None,
    note: Annotated[str, typer.Option(help="A remark.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Record a result again.")] = False,
) -> None:
    """Append the result of a run to a ledger."""
    if ledger is None:
        ledger = Path(os.path.normpath(run / os.pardir / LEDGER))  # `.` has no parent
    for remark in read_run(run).remarks:
        note_(remark)
    row = record_run(run, ledger, note, force=force)
    figures = [("valid perplexity", row.valid), ("test perplexity", row.test)]
    if (bleu := row.extra.get("bleu")) is not None:  # of a translator
        figures.append(("test BLEU", bleu))
    said = ", ".join(f"{name} {numbers.perplexity(value)}" for name, value in figures)
    typer.echo(f"{ledger}: {row.name}, {said}")


def data(
    corpus: Annotated[
        str | None,
        typer.Argument(metavar="CORPUS", help="A name, a folder or a file; none lists the names."),
    ] = None,
    minimum_count: Annotated[int, typer.Option(min=1, help="Rarer words are <unk>.")] = 1,
    source: Annotated[
        str | None, typer.Option(help="Of a folder of pairs: its language; by file names.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The language translated into.")] = None,
) -> None:
    """Find or download a corpus and count it, or list what is here."""
    shown = console()
    if corpus is None:
        for line in listed():
            shown.print(line, soft_wrap=True)
        folders = " and ".join(map(str, data_folders()))
        shown.print(f"looked for in {folders}; DRILL_DATA names another folder", soft_wrap=True)
        return
    pairs = None
    if corpus not in (*NAMES, *PARALLEL_NAMES) and os.path.isdir(corpus):
        pairs = languages_in(Path(corpus), source, target)
    elif source is not None or target is not None:
        raise SettingsError(
            f"--source and --target: {corpus} is no folder of pairs; leave them out"
        )
    if corpus in PARALLEL_NAMES or pairs is not None:
        if minimum_count > 1:
            raise SettingsError(f"--minimum-count: {corpus} is cut into subwords; leave it out")
        first, second = pairs or DEFAULT
        text = read_parallel_corpus(corpus, source=first, target=second)
        of = f"{first} to {second}, " if pairs else ""
        shown.print(f"{corpus}: {of}{_counted(text)}", soft_wrap=True)
        return
    if corpus not in NAMES and not os.path.exists(corpus):  # Path.exists() fails on odd names
        raise DataError(
            f"{corpus}: is neither a corpus ({', '.join([*NAMES, *PARALLEL_NAMES])}) nor a folder "
            "or file; check the path, or take a name that `drill data` lists"
        )
    with Counter("download") as progress:
        found, vocabulary = read_corpus(corpus, minimum_count=minimum_count, progress=progress)
        ids = found.encode(vocabulary)
    counts = "  ".join(f"{name} {len(getattr(ids, name)):,}" for name in ("train", "valid", "test"))
    shown.print(f"{found.name}: {len(vocabulary):,} words; tokens {counts}", soft_wrap=True)
    if found.closed:
        return
    demo = recipe(DEMO).data["minimum_count"]
    shown.print(
        f"counted with --minimum-count {minimum_count}; `drill train` takes the recipe's "
        f"data.minimum_count, {demo} in {DEMO}",
        soft_wrap=True,
    )
    remark = share_of_unknown(found, vocabulary, ids, minimum_count)
    if remark is not None:
        shown.print(remark, soft_wrap=True)


def _counted(text: ParallelSplits) -> str:
    pairs = "  ".join(f"{split} {len(each):,}" for split, each in text._asdict().items())
    words = "  ".join(
        f"{side} {sum(len(line.split()) for line in getattr(text.train, side)):,}"
        for side in ("source", "target")
    )
    return f"pairs {pairs}; words to train on {words}"


def _without_others(given: list[Path]) -> list[Path]:
    """Of several paths those of runs: `runs/*` may hold pages and remains beside them."""
    found = [path for path in given if is_run(path)]
    ledgers = [path for path in given if path.suffix == Path(LEDGER).suffix and path.is_file()]
    if ledgers and not found:
        raise SettingsError(f"{ledgers[0]}: is no folder of a run; --ledger {ledgers[0]} reads it")
    if not found:
        for path in given:
            read_run(path)  # says what is wrong with it, before anybody looks at the page
        return given
    for path in given:
        if path not in found:
            mend = f"; --ledger {path} reads it" if path in ledgers else ""
            note_(f"{path}: holds no run, so it is left out{mend}")
    return found
