"""`drill study`: run the jobs of a plan, and report them."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, echo

from drill.cli import options
from drill.cli.display import console, note
from drill.errors import SettingsError
from drill.recipes.reader import parsed


def study(
    plan: Annotated[Path, Argument(metavar="PLAN", help="A plan in TOML.")],
    minutes: Annotated[
        float | None, Option(min=0, help="Wall-clock budget; unlimited by default.")
    ] = None,
    status: Annotated[
        bool, Option("--status", help="Print the state of all jobs; run nothing.")
    ] = False,
    report: Annotated[
        bool, Option("--report", help="Print the results in Markdown; run nothing.")
    ] = False,
    html: Annotated[
        Path | None, Option(help="With --report: write an HTML page with learning curves instead.")
    ] = None,
    time_to: Annotated[
        list[float] | None,
        Option(help="With --report: time to this validation perplexity; repeatable."),
    ] = None,
    runs: options.Runs = Path("runs"),
    ledger: Annotated[
        Path | None,
        Option(
            help="The ledger; results/NAME.jsonl by default, here or next to the plan's folder."
        ),
    ] = None,
    device: options.Device = "auto",
    parallel: Annotated[int, Option(min=1, help="Number of jobs at a time.")] = 1,
    row: Annotated[list[str] | None, Option("--row", help="Only this row; repeatable.")] = None,
    retry: Annotated[bool, Option("--retry", help="Run failed jobs again.")] = False,
) -> None:
    """Run the missing jobs of a plan: rows x seeds x stages.

    Results go to the ledger when a job ends. The same command resumes, on another machine too if
    it has the ledger. Ctrl-C saves and stops.
    """
    if report and status:
        raise SettingsError("--report: prints something else than --status; leave one of them out")
    for option, value in (("--time-to", time_to), ("--html", html)):
        if value and not report:
            raise SettingsError(f"{option}: needs --report")
    parsed(plan)  # no such file, or no TOML: said before torch is imported, which takes seconds
    from drill.report.study.page import study_markdown, write_study_page
    from drill.report.study.plan import read_plan
    from drill.report.study.runner import StudyRunner
    from drill.report.study.states import FAILED, States
    from drill.report.study.tables import status_table

    study_plan = read_plan(plan)
    if row:
        study_plan = study_plan.only(row)
    results = ledger or default_ledger(plan, study_plan.ledger)
    if (report or status) and not results.exists():
        note(f"{results}: no results yet")
    if report:
        states = States(study_plan, results, None)
        if html is None:
            echo(study_markdown(states, time_to or ()))
        else:
            echo(f"wrote {write_study_page(states, html, time_to or ())}")
        return
    if status:
        console().print(status_table(States(study_plan, results, runs), parallel))
        return
    runner = StudyRunner(
        plan=study_plan,
        ledger=results,
        runs=runs,
        device=device,
        parallel=parallel,
        minutes=minutes,
        retry=retry,
        say=note,
    )
    states = runner.run()
    if any(states.state(job) == FAILED for job in study_plan.jobs()):
        raise Exit(1)
    if minutes is not None and states.to_run(retry):
        note(f"ended by --minutes {minutes:g}; the same command runs the other jobs")


def default_ledger(plan: Path, ledger: str) -> Path:
    """results/LEDGER.jsonl in this folder; else an existing one next to the plan or its folder."""
    here = Path("results", f"{ledger}.jsonl")
    near = [parent / here for parent in plan.resolve().parents[:2]]
    return next((path for path in (here, *near) if path.exists()), here)
