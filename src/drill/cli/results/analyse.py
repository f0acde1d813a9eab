"""`drill analyse`: loss by frequency, calibration, label vectors, rank."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, echo

from drill.cli import options
from drill.cli.display import counting

RANK_KEYS = ("tokens", "absolute", "relative", "bound")
STREAMS = (
    "The test text is cut into up to 20 streams, whose first tokens are not predicted; "
    "drill evaluate --bands reads it as the test of training does."
)


def analyse(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Run folders.")],
    word: Annotated[
        list[str] | None,
        Option(
            help="Show its nearest labels; repeatable. By default a word of each frequency band."
        ),
    ] = None,
    no_rank: Annotated[
        bool, Option("--no-rank", help="Leave out the rank, which is slow on a CPU.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    device: options.Device = "auto",
) -> None:
    """Analyse language models on their test text, as Markdown.

    Loss by how often a word or subword occurs in training, also relative to the first run, by
    types and by tokens; bits per byte of subwords; calibration; norms of labels by frequency and
    nearest labels, in the embedding E and in the output layer's g_out(E); and the rank of the
    log-probabilities. Losses and rank are appended to RUN/evaluations.jsonl, unless --no-rank;
    `drill report` shows a saved rank, and can show the rest.
    """
    from drill.files import WriteError
    from drill.language_modeling.run import load_language_model
    from drill.report.analysis.comparison import RunComparison
    from drill.report.analysis.log_prob_rank import LogProbRank, log_prob_rank
    from drill.report.page.figures import css_classes
    from drill.report.page.page import Section, as_markdown, text_sections
    from drill.report.results.evaluations import ANALYSIS
    from drill.report.results.runs import distinct_names
    from drill.report.tables.result_tables import ranks_table
    from drill.training.run.folder import json_row

    names = distinct_names([path.resolve() for path in runs])
    comparison = RunComparison(words=word or ())
    loaded = {name: load_language_model(path, device=device) for path, name in names.items()}
    losses: dict[str, dict[str, Any]] = {}
    for name, run in loaded.items():
        start = time.monotonic()
        losses[name] = comparison.add(name, run)
        losses[name]["seconds"] = time.monotonic() - start
    if not as_json:
        named = [(", ".join(text.models), text) for text in comparison.texts]
        echo(as_markdown(text_sections(named, css_classes(names.values()))))
        echo(f"{STREAMS}\n")
    ranks: dict[str, LogProbRank] = {}
    saved: dict[str, dict[str, Any]] = {}
    unsaved: list[WriteError] = []
    for name, run in loaded.items() if not no_rank else ():
        start, training = time.monotonic(), run.settings.training
        with counting(f"rank of {name}", quiet) as progress:
            rank = log_prob_rank(
                run.model,
                run.ids.test,
                batch_size=training["valid_batch_size"],
                bptt=training["bptt"],
                progress=progress,
            )
        saved[name] = {
            "run": str(run.folder.path),
            **run.origin.row(),
            "kind": ANALYSIS,
            "split": "test",
            **losses[name],
            **{f"rank_{key}": getattr(rank, key) for key in RANK_KEYS},
            "seconds": round(losses[name]["seconds"] + time.monotonic() - start, 3),
        }
        try:
            run.folder.keep_evaluation(saved[name])
        except WriteError as error:
            unsaved.append(error)
        ranks[name] = rank
    if as_json:
        texts = [
            {**asdict(text), "ece": {name: each.ece for name, each in text.calibration.items()}}
            for text in comparison.texts
        ]
        ranked = {name: rank._asdict() for name, rank in ranks.items()}
        echo(json_row({"texts": texts, "ranks": ranked}, nan=None))
    else:
        echo(as_markdown([Section.of("rank", "Rank", ranks_table(saved))]))
    if unsaved:
        raise unsaved[0]
