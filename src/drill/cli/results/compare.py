"""`drill compare`: two runs on the same text, with an interval, and the words that differ most."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, echo

from drill.cli import options
from drill.cli.display import console, counting, plain_table, printable
from drill.errors import SettingsError

BATCH_SIZE, TOKENS_PER_STREAM = 20, 1000  # of a text: larger is faster and loses context


def compare(
    a: Annotated[Path, Argument(metavar="RUN_A", help="The run to compare with.")],
    b: Annotated[Path, Argument(metavar="RUN_B", help="The other run.")],
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
    from drill.report.results.runs import distinct_names
    from drill.tasks import load
    from drill.training.run.folder import json_row

    runs = [load(path, None, device) for path in (a, b)]
    if isinstance(runs[0], LanguageModelRun) != isinstance(runs[1], LanguageModelRun):
        raise SettingsError("is of another task than the first run", key=str(b))
    if isinstance(runs[0], LanguageModelRun):
        if reference is not None:
            raise SettingsError("is for translators", key="--reference")
        found, rows = _language_models(runs, text, quiet)
    else:
        if (text is None) != (reference is None):
            raise SettingsError("translators need both --text and --reference", key="--text")
        found, rows = _translators(runs, text, reference, quiet)
    better = -1 if found["kind"] == "loss" else 1
    for name, sign in (("gained", better), ("lost", -better)):
        changed = [row for row in rows if sign * row["change"] > 0]
        found[name] = sorted(changed, key=lambda row: -sign * row["change"])[:top]
    if as_json:
        echo(json_row({"runs": [str(a), str(b)], **found}))
        return
    named = distinct_names([a.resolve(), b.resolve()])
    _print([named[a.resolve()], named[b.resolve()]], found)


def _language_models(
    runs: Sequence[Any], text: Path | None, quiet: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The difference in loss, and that of every word."""
    import numpy as np

    from drill.data import EOS, batchify
    from drill.data.text.corpora import encode_text, read_own_text
    from drill.report.analysis import paired_bootstrap as bootstrap

    vocabulary = runs[0].vocabulary
    if vocabulary.words != runs[1].vocabulary.words:
        raise SettingsError(
            f"{runs[1].folder.path} has another vocabulary than {runs[0].folder.path}",
            hint="losses compare over the same words only",
        )
    ids = runs[0].ids.test if text is None else encode_text(read_own_text(text), vocabulary)
    batch = max(1, min(BATCH_SIZE, len(ids) // TOKENS_PER_STREAM))
    losses = []
    for run in runs:
        with counting(run.folder.path.name, quiet) as progress:
            found = run.token_losses(ids, batch_size=batch, progress=progress)
        losses.append(found.double().numpy())
    targets = batchify(ids, batch)[1:].t().flatten().numpy()
    difference = bootstrap.paired_bootstrap(
        bootstrap.line_losses(losses[0], losses[1], targets, vocabulary.ids[EOS]),
        bootstrap.loss_difference,
    )
    tokens = np.bincount(targets, minlength=len(vocabulary))
    sums = [np.bincount(targets, weights=each, minlength=len(vocabulary)) for each in losses]
    change = sums[1] - sums[0]
    rows = [
        {
            "word": vocabulary.words[i],
            "seen": int(vocabulary.counts[i]),
            "tokens": int(tokens[i]),
            "a": float(sums[0][i] / tokens[i]),
            "b": float(sums[1][i] / tokens[i]),
            "change": float(change[i]),
        }
        for i in np.flatnonzero(change)
    ]
    a, b = (float(each.mean()) for each in losses)
    return {"kind": "loss", "tokens": len(targets), "a": a, "b": b, **vars(difference)}, rows


def _translators(
    runs: Sequence[Any], text: Path | None, reference: Path | None, quiet: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The difference in BLEU, and in how often each word is right."""
    import numpy as np

    from drill.data import ParallelText
    from drill.data.parallel.moses_words import LANGUAGES
    from drill.data.parallel.moses_words import words as cut
    from drill.report.analysis import paired_bootstrap as bootstrap

    data = [run.settings.data for run in runs]
    if any(data[0][side] != data[1][side] for side in ("source", "target")):
        raise SettingsError("the runs translate between different languages")
    language = data[0]["target"]
    if text is None or reference is None:
        pairs = runs[0].split("test")[0]
    else:
        pairs = ParallelText.from_files(text, reference)
    reference_lines = list(pairs.target)
    hypotheses = []
    for run in runs:
        with counting(run.folder.path.name, quiet) as progress:
            hypotheses.append(run.translate(pairs.source, progress=progress))
    lines = [bootstrap.bleu_statistics(each, reference_lines, language) for each in hypotheses]
    difference = bootstrap.paired_bootstrap(
        np.concatenate(lines, axis=1), bootstrap.bleu_difference
    )

    def split(side: Sequence[str]) -> list[list[str]]:
        known = language in LANGUAGES
        return [list(cut(line, language)) if known else line.split() for line in side]

    references = split(reference_lines)
    matched = [bootstrap.matched_words(split(each), references) for each in hypotheses]
    total = bootstrap.matched_words(references, references)
    rows = [
        {
            "word": word,
            "tokens": total[word],
            "a": matched[0][word],
            "b": matched[1][word],
            "change": matched[1][word] - matched[0][word],
        }
        for word in total
    ]
    a, b = (bootstrap.corpus_bleu(each.sum(0)) for each in lines)
    return {"kind": "bleu", "lines": len(reference_lines), "a": a, "b": b, **vars(difference)}, rows


def _print(names: Sequence[str], found: dict[str, Any]) -> None:
    shown, loss = console(), found["kind"] == "loss"
    digits = 4 if loss else 2
    ends = [found["difference"], found["low"], found["high"]]
    both = [f"{found[side]:.{digits}f}" for side in "ab"]
    change, low, high = (f"{value:+.{digits}f}" for value in ends)
    rows = [["loss, nats per token" if loss else "BLEU", *both, change, f"{low} to {high}"]]
    if loss:
        both = [f"{math.exp(found[side]):,.2f}" for side in "ab"]
        change, low, high = (f"{100 * math.expm1(value):+.2f}%" for value in ends)
        rows.append(["perplexity", *both, change, f"{low} to {high}"])
    size = f"{found['tokens']:,} tokens" if loss else f"{found['lines']:,} lines"
    shown.print(plain_table([size, *names, "difference", "95% interval"], rows))
    share = found["lower" if loss else "higher"]
    clear = not found["low"] <= 0.0 <= found["high"]
    verdict = "the interval excludes 0" if clear else "the interval includes 0: no clear difference"
    shown.print(f"difference = {names[1]} minus {names[0]}")
    shown.print(f"{names[1]} is better in {share:.1%} of the samples; {verdict}.")
    shown.print("The interval covers the lines of this text, not other seeds of training.\n")
    number = "{:.3f}".format if loss else "{:,}".format
    for title in ("gained", "lost"):
        rows = [
            [
                printable(row["word"]),
                *([f"{row['seen']:,}"] if loss else []),
                f"{row['tokens']:,}",
                *(number(row[side]) for side in "ab"),
                f"{row['change']:+.1f}" if loss else f"{row['change']:+,}",
            ]
            for row in found[title]
        ]
        if rows:
            counted = ["training count"] if loss else []
            heads = [f"words that {title} most", *counted, "in the text"]
            shown.print(plain_table([*heads, *names, "nats" if loss else "words"], rows))
            shown.print()
