"""`drill evaluate --dynamic` and `--cache`, tuned on validation first where that is asked for."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from drill.cli.display import Counter, note
from drill.cli.evaluate_language_model import EvaluatedText
from drill.cli.evaluation_rows import evaluation_row, in_columns
from drill.language_modeling.cache_pointer import cache_perplexity, cache_search
from drill.language_modeling.dynamic_evaluation import dynamic_perplexity, dynamic_search
from drill.language_modeling.gradient_statistics import (
    COLUMNS,
    gradient_statistics,
    statistics_columns,
)
from drill.language_modeling.run import Run

DYNAMIC_NAMES = {"lr": "--lr:", "lamb": "--pull:", "epsilon": "--epsilon:"}
CACHE_NAMES = {"window": "--window:", "theta": "--theta:", "lamb": "--share:"}
"""What the functions' settings are called here."""


class Dynamic(NamedTuple):
    """The options of --dynamic; ``limit`` is that of its search."""

    lr: float
    pull: float
    epsilon: float
    every: int
    limit: int


def dynamic_rows(
    run: Run,
    texts: Sequence[EvaluatedText],
    search: bool,
    options: Dynamic,
    quiet: bool,
) -> Iterator[dict[str, Any]]:
    lr, pull, epsilon, every, limit = options
    folder = run.folder.path
    start = time.monotonic()
    tokens = len(run.ids.train)
    columns = statistics_columns(tokens, every)
    if columns < COLUMNS:
        note(
            f"the training text has {tokens:,} tokens, too few for {COLUMNS} columns of "
            f"{every + 1}: gradient statistics are gathered in {in_columns(columns)}"
        )
    with Counter("gradient statistics", quiet) as progress:
        statistics = gradient_statistics(
            run.model,
            run.ids.train,
            batch_size=columns,
            bptt=every,
            progress=progress,
            file=folder / "dynamic.safetensors",
        )
    settings = {"lr": lr, "lamb": pull}
    if search:
        try:
            with Counter("search on validation", quiet) as progress:
                best = dynamic_search(
                    run.model,
                    run.ids.valid,
                    statistics,
                    epsilon=epsilon,
                    bptt=every,
                    limit=limit,
                    file=folder / "dynamic-search.json",
                    progress=progress,
                ).best
        except KeyboardInterrupt:
            note("stopped; every setting that was tried is kept, the same command goes on")
            raise
        settings = dict(best.settings)
        note(f"tuned on validation: lr {settings['lr']:g}, pull {settings['lamb']:g}")
    for text in texts:
        with Counter(f"dynamic, {text.name}", quiet) as progress:
            found = dynamic_perplexity(
                run.model,
                text.ids,
                statistics,
                lr=settings["lr"],
                lamb=settings["lamb"],
                epsilon=epsilon,
                bptt=every,
                progress=progress,
            )
        chosen = {"lr": settings["lr"], "pull": settings["lamb"]}
        chosen |= {"epsilon": epsilon, "every": every, "statistics_columns": columns}
        yield evaluation_row("dynamic", text.told, found, start, chosen)
        start = time.monotonic()


class Cached(NamedTuple):
    """The options of --cache."""

    window: int
    theta: float
    share: float
    published: bool
    chunk: int


def cached_rows(
    run: Run,
    texts: Sequence[EvaluatedText],
    search: bool,
    options: Cached,
    autocast: torch.dtype | None,
    quiet: bool,
) -> Iterator[dict[str, Any]]:
    window, theta, share, published, chunk = options
    common: dict[str, Any] = {"window": window, "bptt": chunk, "published": published}
    common["autocast"] = autocast
    if search:
        with Counter("search on validation", quiet) as progress:
            best = cache_search(run.model, run.ids.valid, **common, progress=progress).best
        theta, share = best.settings["theta"], best.settings["lamb"]
        note(f"tuned on validation: theta {theta:g}, share {share:g}")
    for text in texts:
        start = time.monotonic()
        with Counter(f"cache, {text.name}", quiet) as progress:
            found = cache_perplexity(
                run.model,
                text.ids,
                theta=theta,
                lamb=share,
                **common,
                progress=progress,
            )
        chosen = {"window": window, "theta": theta, "share": share, "as_published": published}
        chosen |= {"chunk": chunk} if published else {}
        yield evaluation_row("cache", text.told, found, start, chosen)
