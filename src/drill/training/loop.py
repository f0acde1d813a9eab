"""The training loop of both tasks, read top to bottom in ``fit``.

A task says what a step, a validation and the test are. The loop logs, validates, saves the best
weights and checkpoints everything, so that a killed run resumes bit for bit.
"""

import abc
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from drill.errors import Diverged
from drill.kernels.runtime.stalls import STALLED, Stalled, take_stall
from drill.models.language_model import LanguageModel
from drill.models.translator import Translator
from drill.training.distributed import World
from drill.training.optim import NonMonotonicTrigger, ScheduledOptimizer
from drill.training.options import TrainingOptions, log_interval
from drill.training.precision import matmul_precision, sum_dtype
from drill.training.progress import Progress
from drill.training.run.checkpoint import full_tensor
from drill.training.run.folder import RunFolder, readable
from drill.training.signals import GracefulShutdown
from drill.training.state import Score, TrainingState

TRAINING_LOG = "drill.training"
"""The logger that says how a run is trained and where it resumes; `drill train` shows it."""
training_log = logging.getLogger(TRAINING_LOG)

WARM_UP_STEPS = 2  # in which kernels are compiled: the time left is estimated from later ones
MEASURED_SECONDS = 4.0  # that these take at least
SHOW_EVERY = 0.5  # seconds between two reports of progress
AGREE_EVERY = 20  # steps between two agreements of several processes on saving and stopping

Watch = Callable[[str], Callable[[int, int], None]]
"""The name of some work -> what is called with how much of it is done, and with all there is."""


class Task(abc.ABC):
    """What differs between the tasks, and all that a run is trained with.

    ``sharded``: each process has a part of the weights, so all of them validate and test.
    """

    state: TrainingState
    sharded = False

    def __init__(
        self,
        model: LanguageModel | Translator,
        run: RunFolder,
        optimizer: ScheduledOptimizer,
        options: TrainingOptions,
        world: World,
    ) -> None:
        self.model, self.run, self.optimizer = model, run, optimizer
        self.options, self.world = options, world
        self.device = next(model.parameters()).device

    def initial_state(self) -> dict[str, Any]:
        """The part of a state that both tasks start with."""
        options, device = self.options, self.device
        return {
            "epochs": options.epochs,
            "max_steps": options.max_steps,
            "max_minutes": options.max_minutes,
            "nll": torch.zeros((), dtype=sum_dtype(device), device=device),
            "stopper": None if options.patience is None else NonMonotonicTrigger(options.patience),
        }

    def setup(self) -> None:
        """Called first, before the state is restored."""
        self.optimizer.setup(self.model.named_parameters())

    @abc.abstractmethod
    def kernels(self, autocast: torch.dtype | None) -> list[str]:
        """Which kernels train, and why; ValueError if one of them does not run here."""

    @abc.abstractmethod
    def prepare(self, autocast: torch.dtype | None) -> None:
        """Called once, when the state is restored and the precision is set."""

    @abc.abstractmethod
    def batches(self) -> Iterator[Any]:
        """The rest of the current epoch, from ``state.position`` on."""

    @abc.abstractmethod
    def step(self, batch: Any) -> None:
        """Train on a batch: add to ``state.nll``, ``position`` and ``tokens``."""

    @abc.abstractmethod
    def validate(self, watch: Watch) -> tuple[Score, dict[str, Any]]:
        """The score, and more for its row of metrics. By the main process, unless sharded."""

    @abc.abstractmethod
    def test(self, watch: Watch) -> tuple[Score, Any]:
        """Test the best weights and write the row of metrics; gives valid and test scores.

        By the main process, unless sharded.
        """

    @abc.abstractmethod
    def read_test(self, row: dict[str, Any]) -> tuple[Score, Any]:
        """What ``test`` gave, from the line that it wrote."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run. An unfinished one was interrupted and can resume."""

    finished: bool
    epoch: int
    best_epoch: int
    valid: Any  # Perplexity or Score; None before the first validation
    test: Any  # Perplexity or TranslationResult; None if unfinished
    elapsed: float  # seconds, summed over resumes
    interrupted: bool = False  # by Ctrl-C or SIGTERM, even if too late to leave anything undone
    ended_by: str | None = None  # epochs, max_steps, max_minutes or patience, once one is reached
    signal: int | None = None  # which one; None if another process was interrupted


def fit(task: Task, progress: Callable[[Progress], None] | None = None) -> Outcome:
    """Train ``task.model`` in place until the first limit, then test the best weights.

    Resumes from the last checkpoint of the folder; the optimizer is a fresh one. A run that was
    tested and is at a limit returns its result again. After Ctrl-C or SIGTERM the step or the
    validation comes to its end, all is saved, and the outcome is unfinished. ``progress`` is
    called a few times a second, and after each validation.
    """
    model, state, run, world = task.model, task.state, task.run, task.world
    optimizer, options = task.optimizer, task.options
    save = partial(state.save, model, optimizer, run, world)

    # resume
    task.setup()
    resumed = state.restore(model, optimizer, run, world)
    state.agree_on_time(world)
    tested = run.test_row() if resumed and state.is_done() else None
    if tested is not None:  # nothing is measured again, and nothing written
        with readable(run.metrics, "restore it from a copy, or remove its last line to test again"):
            return replace(_outcome(state, *task.read_test(tested)), elapsed=tested["elapsed"])
    if world.is_main:
        if resumed:
            training_log.info("resumes in epoch %d, after step %s", state.epoch, f"{state.step:,}")
        elif run.metrics.exists():
            training_log.info("no checkpoint yet, training from the start")
        run.cut_metrics(state.metrics_size)
    if not resumed and world.rank > 0:
        torch.manual_seed(options.seed + world.rank)  # other dropout masks in every process
    agree_every = 1 if world.size == 1 else AGREE_EVERY
    saved_at = time.monotonic()

    with (
        matmul_precision(options.precision, task.device) as autocast,
        GracefulShutdown() as shutdown,
    ):
        task.prepare(autocast)
        reporter = Reporter(task, progress)

        # validate the initial weights
        if options.validate_first and state.step == 0 and state.best is None:
            state.epoch = 0
            validate(task, reporter, "epoch")
            state.next_epoch()

        model.train()
        batches = task.batches()
        while not state.is_done():
            # train
            task.step(next(batches))
            state.step += 1
            agree = state.step % agree_every == 0  # the processes, on time, saving and stopping

            # log
            if state.step % log_interval(state.step, options.log_every) == 0:
                row = state.training_row(optimizer.current_lr, world)
                finite(row["train_loss"], task)
                if world.is_main:
                    run.append_later(row)
            if agree:
                state.agree_on_time(world)
            reporter.report()

            # validate
            epoch_done, every = state.epoch_done(), options.validate_every
            due = every is not None and state.step % every == 0
            if epoch_done or due or state.ended_by():
                state.loss = finite(state.mean_loss(world), task)
                check_damaged(task)
                state.tick_training()
                valid_loss = validate(task, reporter, "epoch" if epoch_done else "validation")
                if state.stopper is not None and (epoch_done or due):  # not by where a limit fell
                    state.stopper.update(valid_loss)
                if epoch_done:
                    optimizer.epoch_ended(valid_loss)
                    state.next_epoch()
                    batches = task.batches()

            # save, and stop if asked to
            if agree and not state.is_done():
                stop = world.any(shutdown.requested)
                save_due = world.any(time.monotonic() - saved_at >= options.checkpoint_seconds)
                if stop or save_due:
                    check_damaged(task)
                    state.tick_training()
                    save()
                    saved_at = time.monotonic()
                if stop:
                    stopped = _outcome(state, state.best, None)
                    return replace(stopped, interrupted=True, signal=shutdown.number)

        # test
        save()
        result = None
        if not world.any(shutdown.requested) and (world.is_main or task.sharded):
            result = task.test(reporter.watch)
        valid, test = world.broadcast_object(result) or (state.best, None)
        late = world.any(shutdown.requested)
        return replace(_outcome(state, valid, test), interrupted=late, signal=shutdown.number)


def validate(task: Task, reporter: "Reporter", kind: str) -> float:
    """Copy the weights if they are the best so far, write the row of metrics; gives the loss."""
    state, optimizer, world = task.state, task.optimizer, task.world
    averaged = optimizer.averaging
    start = time.monotonic()
    with optimizer.averaged_weights():
        evaluation = None
        if world.is_main or task.sharded:
            evaluation = task.validate(reporter.watch)
        score, extra = world.broadcast_object(evaluation)
        better = state.update_best(score, task.model, world)
    state.tick()
    lr = optimizer.rate(state.progress())
    row = state.validation_row(score, lr=lr, averaged=averaged, best=better) | extra
    row["kind"] = kind
    if world.is_main:
        task.run.append(row)
    reporter.validation_seconds = time.monotonic() - start
    reporter.report(row)
    return score.loss


def _outcome(state: TrainingState, valid: Any, test: Any) -> Outcome:
    ended_by = state.ended_by()
    return Outcome(
        finished=test is not None,
        epoch=state.epoch if ended_by is None else state.last_epoch(),
        best_epoch=state.best_epoch,
        valid=valid,
        test=test,
        elapsed=state.elapsed,
        ended_by=ended_by,
    )


class Reporter:
    """Shows how far a run is, a few times a second and after each validation."""

    def __init__(self, task: Task, progress: Callable[[Progress], None] | None) -> None:
        self.state = task.state
        self.progress = progress if task.world.is_main else None
        self._shown = time.monotonic()
        self._start = self._shown, self.state.progress()
        self._warm_up_ends = self.state.step + WARM_UP_STEPS
        self.validation_seconds = 0.0  # of the last one

    def report(self, row: dict[str, Any] | None = None) -> None:
        """Called after every step, and with the row of each validation."""
        if self.state.step <= self._warm_up_ends:
            self._start = time.monotonic(), self.state.progress()
        if row is not None or self._due():
            self._show(row=row)

    def watch(self, work: str) -> Callable[[int, int], None]:
        """Shows other work."""

        def count(done: int, total: int) -> None:
            if self._due():
                self._show(work=work, share=done / total)

        return count

    def _due(self) -> bool:
        due = time.monotonic() - self._shown >= SHOW_EVERY
        if due:
            self._shown = time.monotonic()
        return due

    def _show(self, **fields: Any) -> None:
        state = self.state
        if self.progress is not None:
            report = Progress(
                epoch=state.epoch,
                epochs=state.epochs,
                share=state.position / state.epoch_size,
                step=state.step,
                loss=state.loss,
                tokens_per_second=state.tokens_per_second,
                seconds_left=self._seconds_left(),
            )
            self.progress(replace(report, **fields))

    def _seconds_left(self) -> float:
        """As long as this process has taken for the same share of the run, validations included.

        The last validation and the test are still to come: each as long as a validation before.
        """
        start, at_start = self._start
        done, seconds = self.state.progress(), time.monotonic() - start
        if done <= at_start or seconds < MEASURED_SECONDS:
            return math.inf
        return seconds * max(0.0, 1.0 - done) / (done - at_start) + 2.0 * self.validation_seconds


# -- divergence -----------------------------------------------------------------------------------


def finite(loss: float, task: Task) -> float:
    """``loss``; raises Diverged if it is not finite."""
    if math.isfinite(loss):
        return loss
    state, optimizer, run = task.state, task.optimizer, task.run
    where = f"before step {state.step} of epoch {state.epoch}"
    if take_stall():
        raise Diverged(
            f"{STALLED}, {where}; run the same command on a free GPU, or with --set "
            "encoder.impl=cudnn"
        )
    raise Diverged(
        f"the loss became {loss} {where}, at lr {optimizer.current_lr:g}; what was saved "
        f"before is in {run.path}; train under another name with a lower optimizer.lr, or with "
        "optimizer.max_grad_norm=1"
    )


def check_damaged(task: Task) -> None:
    """Raise Diverged before parameters that are not finite are saved."""
    norms = torch._foreach_norm([p.detach() for p in task.model.parameters()])
    total = torch.stack([full_tensor(norm).float() for norm in norms]).sum() + task.state.nll
    finite(float(total), task)


@contextmanager
def diverged_if_nan(evaluation: str) -> Iterator[None]:
    """Raise Diverged for NaN inside; ``evaluation`` says what was evaluated, for the message."""
    try:
        yield
    except (FloatingPointError, Stalled) as error:
        raise Diverged(f"{evaluation}: {error}") from None
