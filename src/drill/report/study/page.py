"""A study as an HTML page: the tables of its report, and learning curves over seeds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from drill.report.page.figures import Curve, Figure, css_classes, epochs_figure, time_figure
from drill.report.page.page import Block, Section, check_replaceable, write_page
from drill.report.study.plan import TRAINING
from drill.report.study.states import States
from drill.report.study.tables import (
    PLAN_SETTINGS,
    frequency_table,
    not_counted,
    plan_settings,
    results_by_row,
    stage_table,
)


def write_study_page(states: States, out: Path, time_to: Sequence[float] = ()) -> Path:
    """Write an HTML page with tables and curves, from the ledger alone.

    Args:
        states: of the study.
        out: the file; one that drill did not write is an error.
        time_to: validation perplexities, as of ``report``.

    Returns:
        Its path.
    """
    check_replaceable(out)
    sections = [
        Section(stage, stage, [*_stage(states, stage, time_to)]) for stage in states.plan.stages
    ]
    if rest := [*not_counted(states)]:
        sections.append(Section("rest", "Not in the tables", [("list", rest)]))
    return write_page(out, states.plan.name, states.status_line(), sections)


def _stage(states: States, stage: str, time_to: Sequence[float]) -> Iterator[Block]:
    yield "table", (f"Results of {stage}", stage_table(states, stage, time_to))
    if settings := plan_settings(states.plan, stage):
        yield "text", PLAN_SETTINGS
        yield "list", settings
    if (bands := frequency_table(states, stage)) is not None:
        yield "table", ("Loss by training count", bands)
    yield from (("figure", figure) for figure in stage_figures(states, stage))


def stage_figures(states: States, stage: str) -> list[Figure]:
    """Curves of a training stage: for each row the mean and range over seeds."""
    if stage not in TRAINING:
        return []
    results = results_by_row(states, stage)
    curves = {name: [*map(Curve.of, group.values())] for name, group in results.items()}
    look = css_classes(results)
    found = [time_figure(curves, look)]
    if any(each.epochs > 1 for group in results.values() for each in group.values()):
        found.append(epochs_figure(curves, look))
    return [figure for figure in found if figure is not None]
