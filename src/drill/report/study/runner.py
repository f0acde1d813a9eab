"""Runs the jobs of a study: subprocesses of the command line, results to the ledger at once."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from drill.errors import ReportError, RunFolderError, SettingsError
from drill.report.results.ledger import AlreadyRecorded, FailedJob, Row, record_failure, record_run
from drill.report.results.runs import is_run
from drill.report.study.plan import BLEU, FINETUNE, TRAIN, TRAINING, Job, Plan, identity
from drill.report.study.states import DONE, States, evaluation_kind, is_run_of, stage_results
from drill.report.tables.number_format import perplexity
from drill.tasks import check_recipe
from drill.training.run.folder import RunFolder
from drill.training.signals import GracefulShutdown

PROGRAM = (sys.executable, "-m", "drill")
POLL = 0.2  # seconds between checks of running jobs
PROGRESS_SECONDS = 60.0  # between lines on how far the study is
STOP_SECONDS = 300.0  # for a job to end a validation, save and stop
SILENT_SECONDS = 600.0  # without a line of a job, which prints one a minute


@dataclass
class _RunningJob:
    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    log_size: int  # bytes when it was last looked at; those of earlier tries at first
    started: float
    printed: float | None = None  # when the log last grew
    fault: str | None = None  # why it was killed

    def silent_seconds(self) -> float:
        """Seconds since its last line; 0 before the first: reading and compiling may take long."""
        size, now = self.log.stat().st_size if self.log.exists() else 0, time.monotonic()
        if size != self.log_size:
            self.log_size, self.printed = size, now
        return 0.0 if self.printed is None else now - self.printed

    def kill(self, fault: str) -> None:
        self.fault = fault
        self.process.send_signal(signal.SIGABRT)  # on which the log gets the stacks of all threads
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class StudyRunner:
    """Runs what the ledger does not have yet.

    Args:
        plan: rows, seeds and stages.
        ledger: the file that results are added to.
        runs: the folder with the run folders.
        device: of every job: auto, cpu, cuda, cuda:1, ...
        parallel: how many jobs run at once.
        minutes: wall-clock budget. A job that is not expected to fit is not started; at the end
            running jobs save and stop.
        retry: run failed jobs again.
        say: gets a line when a job starts or ends, and one a minute.
    """

    plan: Plan
    ledger: Path
    runs: Path
    device: str = "auto"
    parallel: int = 1
    minutes: float | None = None
    retry: bool = False
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        now = time.monotonic()
        self.deadline = math.inf if self.minutes is None else now + 60 * self.minutes
        self.next_progress = now + PROGRESS_SECONDS
        self.running: list[_RunningJob] = []
        self.tried: set[Job] = set()  # in this call
        self.stop_until: float | None = None  # when jobs that were asked to stop are killed
        self._read_ledger()

    def run(self) -> States:
        """Run the jobs; returns the state of every job.

        Ctrl-C and SIGTERM stop as the end of the budget does, and are a KeyboardInterrupt then.
        """
        self._check_settings()
        shutdown = GracefulShutdown()
        try:
            with shutdown:
                while True:
                    self._kill_hung()
                    self._collect()
                    if shutdown.requested or time.monotonic() >= self.deadline:
                        self._stop("stopped" if shutdown.requested else "out of time")
                    else:
                        self._start()
                    if not self.running:
                        break
                    self._log_progress()
                    time.sleep(POLL)
        finally:
            for running in self.running:  # after a second Ctrl-C or an exception
                running.process.kill()
        self.say(f"{self.ledger}: {self.states.status_line()}")
        if shutdown.requested:
            raise KeyboardInterrupt
        return self.states

    def _check_settings(self) -> None:
        """Raise settings errors of all jobs before the first one starts.

        A run that has begun with another training.max_minutes is an error too: resuming it would
        make a jump in a learning rate schedule that depends on the end.
        """
        for job in self.jobs_left:
            folder = RunFolder(self.runs / job.run)
            if job.trains and folder.has_trained() and not is_run_of(job, folder):
                raise SettingsError(
                    f"{folder.path}: has a run with other settings than row {job.row.name}; rename "
                    "the row, use another --runs, or remove the folder"
                )
            if job.stage == TRAIN:
                check_recipe(job.settings, folder.path)

    def _read_ledger(self) -> None:
        """Read the ledger again."""
        self.states = States(self.plan, self.ledger, self.runs)
        self.jobs_left = [job for job in self.states.to_run(self.retry) if job not in self.tried]

    # -- starting and stopping --------------------------------------------------------------------

    def _start(self) -> None:
        for job in list(self.jobs_left):
            if len(self.running) == self.parallel:
                return
            ends = time.monotonic() + 60 * (self.states.minutes(job) or 0.0)
            if self._is_ready(job) and ends <= self.deadline:
                self.tried.add(job)
                self.jobs_left.remove(job)
                self._launch(job)

    def _is_ready(self, job: Job) -> bool:
        """Whether the weights that it starts from are there."""
        source = job.source
        if source is None:
            return True
        busy = any(running.job.run == source.run and running.job.trains for running in self.running)
        return source not in self.jobs_left and not busy and self.states.has_weights(source)

    def _launch(self, job: Job) -> None:
        self.runs.mkdir(parents=True, exist_ok=True)
        log = self.runs / f"{job.row.name}-seed-{job.seed}.{job.stage}.log"
        words = [*PROGRAM, *command(job, self.plan, self.runs, self.device)]
        with log.open("ab") as stream:
            log_size = stream.tell()
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
                start_new_session=True,  # Ctrl-C reaches it through us only
            )
        self.running.append(_RunningJob(job, process, log, log_size, time.monotonic()))
        about = self.states.minutes_left([job])
        self.say(f"{job}: started{'' if about == '?' else f', about {about} min'}")

    def _stop(self, why: str) -> None:
        """Ask running jobs to save and stop."""
        if self.stop_until is not None:
            return
        self.stop_until = time.monotonic() + STOP_SECONDS
        if self.running:
            self.say(f"{why}; running jobs save and stop: {len(self.running)}")
        for running in self.running:
            running.process.send_signal(signal.SIGINT)

    def _kill_hung(self) -> None:
        """Kill jobs that have printed nothing for long, or do not stop."""
        for running in self.running:
            if self.stop_until is not None and time.monotonic() > self.stop_until:
                running.kill(f"did not stop in {STOP_SECONDS / 60:.0f} min")
            elif running.silent_seconds() > SILENT_SECONDS:
                running.kill(f"printed nothing for {SILENT_SECONDS / 60:.0f} min")

    # -- results ----------------------------------------------------------------------------------

    def _collect(self) -> None:
        for running in list(self.running):
            if running.process.poll() is not None:
                self.running.remove(running)
                self._end(running)
                self._read_ledger()

    def _end(self, ended: _RunningJob) -> None:
        """Record what a job has found, also an interrupted one, or that it failed."""
        job, code = ended.job, ended.process.returncode
        seconds = time.monotonic() - ended.started
        extra = {"study": {"name": self.plan.name, "row": job.row.name, "seconds": seconds}}
        row, fault = None, "nothing new"
        try:
            # not those of another plan that has evaluated the same run with other options
            kinds = () if job.trains else (evaluation_kind(job.stage),)
            row = record_run(self.runs / job.run, self.ledger, extra=extra, kinds=kinds)
        except AlreadyRecorded:
            row = self.states.result(job)
        except ReportError as error:
            fault = f"{error}"
        self._read_ledger()
        took = f"{seconds / 60:.1f} min"
        summary = fault if row is None else _summary(row, job.stage)
        if self.stop_until is not None and code != 0:
            hung = "" if ended.fault is None else f" ({ended.fault}, see {ended.log})"
            saved = summary if is_run(self.runs / job.run) else "nothing was saved yet"
            self.say(f"{job}: stopped after {took}{hung}, {saved}")
            return
        if code == 0 and self.states.state(job) == DONE:
            self.say(f"{job}: {summary} ({took})")
            return
        if code != 0 and self._is_used_elsewhere(job):
            self.say(f"{job}: another process trains in {self.runs / job.run}")
            return
        lines = ended.log.read_text("utf-8", "replace").strip().splitlines() or ["no output"]
        message = lines[-1] if code != 0 else "ended without a result" if row else fault
        if ended.fault is not None:
            message = ended.fault
        elif code < 0:
            message = f"killed by {signal.Signals(-code).name}; {message}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record_failure(
            FailedJob(job.run, job.stage, job.seed, identity(job.settings), message, seconds, now),
            self.ledger,
        )
        self.say(f"{job}: failed after {took}: {message} (see {ended.log})")

    def _is_used_elsewhere(self, job: Job) -> bool:
        if not (self.runs / job.run).exists():
            return False
        try:
            with RunFolder(self.runs / job.run).locked():
                return False
        except RunFolderError:
            return True

    def _log_progress(self) -> None:
        if time.monotonic() < self.next_progress:
            return
        self.next_progress = time.monotonic() + PROGRESS_SECONDS
        names = ", ".join(str(running.job) for running in self.running)
        about = self.states.minutes_left(self.jobs_left)
        left = f"; {len(self.jobs_left)} more to run, about {about} min" if self.jobs_left else ""
        self.say(f"running: {names}{left}")


def command(job: Job, plan: Plan, runs: Path, device: str) -> list[str]:
    common = ["--device", device]  # not -q: a job that prints nothing is taken to hang
    if job.stage == TRAIN:
        changes = [*job.row.set, f"training.seed={job.seed}"]
        words = ["train", job.row.recipe, "--name", job.run, "--runs", str(runs)]
        return [*words, *_set(changes), *common]
    if job.stage == FINETUNE:
        source = runs / job.row.run(job.seed, TRAIN)
        words = ["finetune", str(source), "--name", job.run]
        return [*words, *_set(job.row.finetune_set), *common]
    run = str(runs / job.run)
    words = ["evaluate", run, "--bands"] if job.stage == BLEU else [job.stage, run]
    return [*words, *plan.options.get(job.stage, ()), *common]


def _set(changes: Sequence[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def _summary(row: Row, stage: str) -> str:
    if stage not in (*TRAINING, BLEU):
        figures = [f"{e['split']} {perplexity(e['perplexity'])}" for e in stage_results(row, stage)]
        return ", ".join(figures) or "nothing yet"
    bleu = row.extra.get("bleu")
    test = f"test {perplexity(row.test) or 'not yet'}" if bleu is None else f"BLEU {bleu:.2f}"
    return f"valid {perplexity(row.valid)}, {test}"
