"""The report of a study: tables, and on an HTML page learning curves over seeds."""

from collections.abc import Sequence
from pathlib import Path

from drill.report.page.figures import Curve, Figure, css_classes, epochs_figure, time_figure
from drill.report.page.page import Section, as_markdown, check_replaceable, write_page
from drill.report.study.plan import TRAINING
from drill.report.study.states import States
from drill.report.study.tables import (
    frequency_table,
    not_counted,
    plan_settings,
    results_by_row,
    stage_table,
)
from drill.report.tables.markup import Listing, markdown_text


def study_markdown(states: States, time_to: Sequence[float] = ()) -> str:
    """The report of a study, from the ledger alone.

    Args:
        states: of the study.
        time_to: validation perplexities; a column for each says how long runs took to reach it.

    Returns:
        Markdown: a table for each stage, and what is not in the tables.
    """
    sections = as_markdown(study_sections(states, time_to), level=3)
    return f"## {markdown_text(states.plan.name)}\n\n{sections}"


def write_study_page(states: States, out: Path, time_to: Sequence[float] = ()) -> Path:
    """Write the report of a study as an HTML page, with curves.

    Args:
        states: of the study.
        out: the file; one that drill did not write is an error.
        time_to: as of ``study_markdown``.

    Returns:
        Its path.
    """
    check_replaceable(out)
    sections = study_sections(states, time_to)
    return write_page(out, states.plan.name, states.status_line(), sections)


def study_sections(states: States, time_to: Sequence[float]) -> list[Section]:
    """A section for each stage, and one for what is not in the tables."""
    sections = [
        Section.of(
            stage,
            stage,
            stage_table(states, stage, time_to),
            plan_settings(states.plan, stage),
            frequency_table(states, stage),
            *stage_figures(states, stage),
        )
        for stage in states.plan.stages
    ]
    return [*sections, Section.of("rest", "Not in the tables", Listing([*not_counted(states)]))]


def stage_figures(states: States, stage: str) -> list[Figure]:
    """Curves of a training stage: for each row the mean and range over seeds."""
    if stage not in TRAINING:
        return []
    results = results_by_row(states, stage)
    curves = {name: [*map(Curve.of, by_seed.values())] for name, by_seed in results.items()}
    look = css_classes(results)
    figures = [time_figure(curves, look)]
    if any(row.epochs > 1 for by_seed in results.values() for row in by_seed.values()):
        figures.append(epochs_figure(curves, look))
    return [figure for figure in figures if figure is not None]
