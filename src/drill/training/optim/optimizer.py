"""ScheduledOptimizer: what the training loop asks of an optimizer.

The loop calls ``setup`` once, ``step`` after every backward, ``epoch_ended`` with the validation
loss of each epoch, and validates inside ``averaged_weights()``. A step has two halves, because a
CUDA graph can hold the second alone: ``prepare_step`` sets rates and counts on the host,
``apply_step`` clips and steps on the device.
"""

import abc
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from drill.errors import require
from drill.layers import LAYERS
from drill.training.optim.averaging import AveragedSgd, WeightAverage, replaced
from drill.training.optim.schedules import SHARE_OF_RUN, run_rate
from drill.training.run.checkpoint import sharded_as, split_tensors, strip_prefix

MEAN = "mean"  # a key of saved tensors that no torch optimizer has


def is_label_map(name: str) -> bool:
    """Whether a parameter of a model belongs to the label maps of its output layer."""
    owner, *path = name.split(".")
    map_names = (map_name for kind in LAYERS.values() for map_name in kind.map_parameters)
    return owner == "layer" and any(map_name in path for map_name in map_names)


@dataclass(eq=False, kw_only=True)
class ScheduledOptimizer(abc.ABC):
    """An optimizer with its schedule, clipping and average of weights; the base class of all.

    Args:
        lr: learning rate of a full-length step, scaled for others by their length over bptt.
        weight_decay: of parameters.
        max_grad_norm: gradients are clipped to this norm; None does not clip.
        map_lr_scale: factor of the learning rate of label maps (``is_label_map``). If it is not 1,
            they are clipped by themselves too: their gradients may be many times larger than all
            others, whose steps a common norm would shrink.
    """

    lr: float = field(kw_only=False)
    weight_decay: float
    max_grad_norm: float | None
    map_lr_scale: float = 1.0

    def __post_init__(self) -> None:
        finite = "a finite number"
        self.check("lr", 0.0 < self.lr < math.inf, f"{finite} above 0")
        for key in ("weight_decay", "map_lr_scale"):
            self.check(key, 0.0 <= getattr(self, key) < math.inf, f"{finite} of at least 0")
        clips = self.max_grad_norm is None or self.max_grad_norm > 0.0
        self.check("max_grad_norm", clips, "a positive number or none")
        self.current_lr = self.lr  # of the last full-length step, which a schedule may change
        self.maps_differ = self.map_lr_scale != 1.0
        self.parameters: dict[str, nn.Parameter] = {}
        self.late_average: WeightAverage | None = None  # of late iterates, where there is one

    def check(self, key: str, ok: bool, wanted: str) -> None:
        """Raise ValueError about a setting unless it is ``ok``."""
        require(ok, type(self).__name__, key, wanted, getattr(self, key))

    # -- defined by each optimizer ----------------------------------------------------------------

    @abc.abstractmethod
    def build(self) -> Optimizer:
        """The torch optimizer over ``self.parameters`` to start with."""

    def rate(self, progress: float) -> float:
        """The learning rate of a full-length step, ``progress`` of the run being done."""
        return self.lr

    @abc.abstractmethod
    def capture_blocker(self) -> str | None:
        """Why ``apply_step`` cannot be captured as a CUDA graph; None if it can."""

    # -- steps ------------------------------------------------------------------------------------

    def setup(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Take charge of the trained parameters of a model; each has one name."""
        self.parameters = {name: p for name, p in named if p.requires_grad}
        if not self.parameters:
            raise ValueError(f"{type(self).__name__}: the model has no parameter to train")
        self.clipped_together = [*self._by_rate(self.parameters).values()]
        self.optimizer: Optimizer = self.build()

    def _by_rate(self, named: Mapping[str, nn.Parameter]) -> dict[bool, list[nn.Parameter]]:
        """Whether they are label maps with a rate of their own -> parameters."""
        by_rate: dict[bool, list[nn.Parameter]] = {False: [], True: []}
        for name, p in named.items():
            by_rate[self.maps_differ and is_label_map(name)].append(p)
        return {maps: parameters for maps, parameters in by_rate.items() if parameters}

    def groups(
        self, named: Mapping[str, nn.Parameter], decays: bool = True
    ) -> list[dict[str, Any]]:
        """Parameter groups: label maps have one of their own if their rate differs."""
        decay = self.weight_decay if decays else 0.0
        return [
            {"params": parameters, "weight_decay": decay, **({"maps": True} if maps else {})}
            for maps, parameters in self._by_rate(named).items()
        ]

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        """Clip, step with lr * sampled_length / bptt, drop the gradients."""
        self.prepare_step(sampled_length, bptt, progress)
        self.apply_step()

    def prepare(self, progress: float) -> None:
        """Start averaging if it is due at this ``progress`` of the run; may change ``phase``.

        ``prepare_step`` does so too. A capture calls this first, to see the change in time.
        """
        late = self.late_average
        if late is not None and not late.begun and late.due(progress):
            late.begin(list(self.parameters.values()))

    def prepare_step(self, sampled_length: int, bptt: int, progress: float) -> None:
        """The host's half of a step: rates, and counts of averages."""
        self.prepare(progress)
        self.current_lr = self.rate(progress)
        rate = self.current_lr * sampled_length / bptt
        for group in self.optimizer.param_groups:
            lr = rate * self.map_lr_scale if "maps" in group else rate
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)  # where a captured step reads it
            else:
                group["lr"] = lr
        if self._late is not None:
            self._late.prepare_step()

    def apply_step(self) -> None:
        """The device's half: clip, step, drop the gradients, average."""
        if self.max_grad_norm is not None:
            for parameters in self.clipped_together:
                nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self._late is not None:
            self._late.add()

    # -- steps replayed as CUDA graphs ------------------------------------------------------------

    @property
    def phase(self) -> object:
        """Changes to another object when steps are taken in another way."""
        return self._late or self.optimizer

    def replay_blocker(self) -> str | None:
        """Why a step with these gradients cannot be a replay; None if it can."""
        return None

    def mark_replayed(self) -> None:
        """Count a replayed ``apply_step`` as a change of the tensors: torch did not see it."""
        state = self.optimizer.state
        values = [value for entries in state.values() for value in entries.values()]
        increment_version(
            [*self.parameters.values(), *(value for value in values if isinstance(value, Tensor))]
        )
        if self._late is not None:
            increment_version(self._late.values)

    # -- averages of weights ----------------------------------------------------------------------

    @property
    def _late(self) -> WeightAverage | None:
        """The average of late iterates, once it has begun."""
        late = self.late_average
        return late if late is not None and late.begun else None

    def epoch_ended(self, valid_loss: float) -> None:
        """Called with the validation loss of an epoch."""
        if self.late_average is not None:
            self.late_average.validated(valid_loss)

    def averages(self) -> dict[Tensor, Tensor]:
        """The average of each parameter that has one."""
        if self._late is not None:
            return dict(zip(self._late.params, self._late.values, strict=True))
        if isinstance(self.optimizer, AveragedSgd):
            return {p: state["average"] for p, state in self.optimizer.state.items()}
        return {}

    @property
    def averaging(self) -> bool:
        """Whether ``averaged_weights`` gives averaged weights."""
        return bool(self.averages()) and (self._late is None or self._late.count > 0)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Inside, the parameters are those to evaluate and to save."""
        averages = self.averages()
        return replaced([*averages], [*averages.values()]) if self.averaging else nullcontext()

    # -- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors of the torch optimizer and averages as ``<parameter>/<key>``, and numbers that
        JSON holds exactly; ``split_tensors`` separates them."""
        state = self.optimizer.state
        saved: dict[str, Any] = {"optimizer": {}}
        for name, p in self.parameters.items():
            tensors, saved["optimizer"][name] = split_tensors(state.get(p, {}))
            saved |= {f"{name}/{key}": value for key, value in tensors.items()}
        if self._late is not None:
            means = zip(self.parameters, self._late.values, strict=True)
            saved |= {f"{name}/{MEAN}": value for name, value in means}
        if self.late_average is not None:
            saved["averaged"] = self.late_average.count
            if self.late_average.patience is not None:
                saved["validations"] = [self.late_average.best, self.late_average.stale]
        return saved

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load a ``state_dict``."""
        for name, p in self.parameters.items():
            state = {**saved["optimizer"].get(name, {}), **strip_prefix(f"{name}/", saved)}
            state.pop(MEAN, None)
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensor = value.to(p.device)
                    state[key] = sharded_as(p, tensor) if tensor.dim() else tensor
            if state:
                self.optimizer.state[p] = state
        if self.late_average is not None and self.late_average.patience is not None:
            self.late_average.best, self.late_average.stale = saved["validations"]
        if self.late_average is not None and saved["averaged"] > 0:
            means = [saved[f"{name}/{MEAN}"] for name in self.parameters]
            self.late_average.load(list(self.parameters.values()), means, saved["averaged"])


@dataclass(eq=False, kw_only=True)
class RunScheduled(ScheduledOptimizer):
    """An optimizer with a schedule over the whole run and an average of late weights.

    Averages are validated and saved as best; training continues from the iterates. Once begun,
    averaging does not end, even if the run is given more time.

    Args:
        schedule: "constant", or "linear" or "cosine" down to final * lr at the end of the run.
        warmup: share of the run in which the rate rises linearly to lr.
        hold: share of the run at lr before it decays.
        final: share of lr at the end of the run.
        average_from: share of the run from which on the mean of all weights is taken, or None.
        average_patience: averaging also starts after this many epochs without a better validation.
    """

    schedule: str
    warmup: float = 0.0
    hold: float = 0.0
    final: float = 0.0
    average_from: float | None = None
    average_patience: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        schedules = get_args(get_type_hints(type(self))["schedule"])
        self.check("schedule", self.schedule in schedules, f"one of {', '.join(schedules)}")
        self.check("warmup", 0.0 <= self.warmup < 1.0, SHARE_OF_RUN)
        decays = f"{SHARE_OF_RUN} that leaves time to decay after warmup {self.warmup}"
        self.check("hold", 0.0 <= self.hold < 1.0 - self.warmup, decays)
        self.check("final", 0.0 <= self.final <= 1.0, "a share of lr in [0, 1]")
        for key in ("hold", "final"):
            ok = self.schedule in ("linear", "cosine") or getattr(self, key) == 0.0
            self.check(key, ok, "0 unless schedule is linear or cosine")
        if self.average_from is not None:
            self.late_average = WeightAverage(self.average_from, self.average_patience)
        else:
            needed = "left out without average_from"
            self.check("average_patience", self.average_patience is None, needed)

    def rate(self, progress: float) -> float:
        return self.scheduled(self.lr, progress)

    def scheduled(self, lr: float, progress: float) -> float:
        """The rate at this ``progress`` of the run if the highest rate is ``lr``."""
        keys = ("schedule", "warmup", "hold", "final")
        return run_rate(progress, lr=lr, **{key: getattr(self, key) for key in keys})
