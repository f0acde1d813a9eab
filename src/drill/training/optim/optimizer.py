"""ScheduledOptimizer: what the training loop asks of an optimizer.

The loop calls ``setup`` once, ``step`` after every backward, ``epoch_ended`` after each validation,
and validates inside ``averaged_weights()``.
"""

import abc
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from drill.errors import check_value
from drill.training.optim.averaging import AveragedSgd, WeightAverage, averaged, replaced
from drill.training.optim.schedules import run_rate
from drill.training.run.checkpoint import sharded_as

MEAN = "mean"  # a key of saved tensors that no torch optimizer has
LABEL_MAPS = {"maps", "gates", "label_map"}  # what output layers call them


def clip_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """g <- g * min(1, max_norm / |g|), |g| the norm over all gradients together.

    In place and without waiting for the device. A parameter given twice, as by an encoder and a
    layer that share their embedding, counts once.

    Args:
        parameters: with gradients.
        max_norm: the largest norm.

    Returns:
        |g| before clipping.
    """
    check_value(max_norm > 0.0, "clip_: max_norm", "a positive number", max_norm)
    return nn.utils.clip_grad_norm_(list(dict.fromkeys(parameters)), max_norm)


def scaled_lr(lr: float, sampled_length: int, bptt: int) -> float:
    """lr * sampled_length / bptt: a step over a longer batch is longer.

    Args:
        lr: of a full-length step.
        sampled_length: what was drawn, even where the end of the corpus cuts the batch.
        bptt: the usual length.

    Returns:
        The learning rate of the step.
    """
    for name, length in (("sampled_length", sampled_length), ("bptt", bptt)):
        check_value(length >= 1, f"scaled_lr: {name}", "at least 1", length)
    return lr * sampled_length / bptt


def is_label_map(name: str) -> bool:
    """Whether a parameter of a model belongs to the label maps of its output layer."""
    owner, *path = name.split(".")
    return owner == "layer" and not LABEL_MAPS.isdisjoint(path)


class ScheduledOptimizer(abc.ABC):
    """An optimizer with its schedule, clipping and average of weights; the base class of all.

    Args:
        lr: learning rate.
        weight_decay: of parameters.
        max_grad_norm: gradients are clipped to this norm; None does not clip.
        map_lr_scale: the learning rate of label maps (``is_label_map``) is ``lr`` times this.
        map_weight_decay: weight decay of label maps; None is that of the other parameters.
        map_warmup: fraction of the run in which the rate of label maps rises linearly.
    """

    average: WeightAverage | None = None
    """Of late iterates, for optimizers that have one."""

    def __init__(
        self,
        lr: float,
        weight_decay: float,
        max_grad_norm: float | None,
        map_lr_scale: float,
        map_weight_decay: float | None,
        map_warmup: float,
    ) -> None:
        name = type(self).__name__
        finite, norm = "a finite number", max_grad_norm
        check_value(0.0 < lr < math.inf, f"{name}: lr", f"{finite} above 0", lr)
        own_decay = weight_decay if map_weight_decay is None else map_weight_decay
        least_zero = {
            "weight_decay": weight_decay,
            "map_weight_decay": own_decay,
            "map_lr_scale": map_lr_scale,
        }
        for key, value in least_zero.items():
            check_value(0.0 <= value < math.inf, f"{name}: {key}", f"{finite} of at least 0", value)
        share = "a share of the run in [0, 1)"
        check_value(0.0 <= map_warmup < 1.0, f"{name}: map_warmup", share, map_warmup)
        clips = norm is None or norm > 0.0
        check_value(clips, f"{name}: max_grad_norm", "a positive number or none", norm)
        self.lr = lr
        self.now = lr  # the rate of the last full-length step, which a schedule may change
        self.weight_decay = weight_decay
        self.map_lr_scale, self.map_weight_decay = map_lr_scale, own_decay
        self.map_warmup = map_warmup
        self.maps_differ = (map_lr_scale, map_weight_decay, map_warmup) != (1.0, None, 0.0)
        self.max_grad_norm = max_grad_norm
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer: Optimizer | None = None

    @abc.abstractmethod
    def build(self) -> Optimizer:
        """The torch optimizer over ``self.parameters`` to start with."""

    def setup(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Take charge of the trained parameters of a model; each has one name."""
        self.parameters = {name: p for name, p in named if p.requires_grad}
        if not self.parameters:
            raise ValueError(f"{type(self).__name__}: the model has no parameter to train")
        self.optimizer = self.build()

    def groups(
        self, named: Mapping[str, nn.Parameter], decays: bool = True
    ) -> list[dict[str, Any]]:
        """Parameter groups: label maps have one of their own if their options differ."""
        maps: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, p in named.items():
            (maps if self.maps_differ and is_label_map(name) else rest).append(p)
        groups: list[dict[str, Any]] = [
            {"params": rest, "weight_decay": self.weight_decay if decays else 0.0},
            {
                "params": maps,
                "weight_decay": self.map_weight_decay if decays else 0.0,
                "maps": True,
            },
        ]
        return [group for group in groups if group["params"]]

    def rate(self, progress: float) -> float:
        """The learning rate of a full-length step, ``progress`` of the run being done."""
        return self.lr

    def prepare(self, progress: float) -> None:
        """Start averaging if it is due at this ``progress`` of the run; may change ``phase``.

        ``prepare_step`` does so too. A recorder calls this first, to see the change in time.
        """
        average = self.average
        if average is not None and not average.begun and average.due(progress):
            average.begin(list(self.parameters.values()))

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        """Clip, step with lr * sampled_length / bptt, drop the gradients."""
        self.prepare_step(sampled_length, bptt, progress)
        self.apply_step()

    def prepare_step(self, sampled_length: int, bptt: int, progress: float) -> None:
        """The host's part of a step: say how long the next one is."""
        optimizer = self._begun()
        self.prepare(progress)
        self.now = self.rate(progress)
        rate = scaled_lr(self.now, sampled_length, bptt)
        of_maps = rate * run_rate(
            progress, lr=self.map_lr_scale, schedule="constant", warmup=self.map_warmup
        )
        for group in optimizer.param_groups:
            own = of_maps if "maps" in group else rate
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)  # where a recorded step reads it
            else:
                group["lr"] = own
        if self.average is not None and self.average.begun:
            self.average.prepare_step()

    def apply_step(self) -> None:
        """The device's part of a step; it can be recorded and replayed after ``prepare_step``."""
        optimizer = self._begun()
        if self.max_grad_norm is not None:
            clip_(self.parameters.values(), self.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if self.average is not None and self.average.begun:
            self.average.add()

    @property
    def phase(self) -> object:
        """Changes to another object when steps are taken in another way."""
        if self.average is not None and self.average.begun:
            return self.average
        return self.optimizer

    @abc.abstractmethod
    def capture_blocker(self) -> str | None:
        """Why ``apply_step`` cannot be recorded as a CUDA graph; None if it can."""

    def replay_blocker(self) -> str | None:
        """Why a step with these gradients cannot be a replay; None if it can."""
        return None

    def replayed(self) -> None:
        """Count a replayed ``apply_step`` as a change of the tensors: torch did not see it."""
        state = self._begun().state
        values = [each for entries in state.values() for each in entries.values()]
        increment_version(
            [*self.parameters.values(), *(each for each in values if isinstance(each, Tensor))]
        )
        if self.average is not None:
            self.average.replayed()

    def epoch_ended(self, valid_loss: float) -> None:
        """Called with the validation loss of an epoch."""
        if self.average is not None:
            self.average.validated(valid_loss)

    @property
    def averaging(self) -> bool:
        """Whether ``averaged_weights`` gives averaged weights."""
        if self.average is not None:
            return self.average.count > 0
        return isinstance(self.optimizer, AveragedSgd) and bool(self.optimizer.state)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside, the parameters are those to evaluate and to save."""
        if self.average is not None and self.averaging:
            with replaced(self.average.params, self.average.values):
                yield
        elif isinstance(self.optimizer, AveragedSgd) and self.averaging:
            with averaged(self.optimizer):
                yield
        else:
            yield

    # -- saving: tensors by name, and numbers that JSON holds exactly -----------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The torch optimizer's tensors and the averages, ``<parameter>/<key>``."""
        state = self._begun().state
        found = {
            f"{name}/{key}": value
            for name, p in self.parameters.items()
            for key, value in state.get(p, {}).items()
            if isinstance(value, Tensor)
        }
        if self.average is not None and self.average.begun:
            means = zip(self.parameters, self.average.values, strict=True)
            found |= {f"{name}/{MEAN}": value for name, value in means}
        return found

    def numbers(self) -> dict[str, Any]:
        """What else the optimizer must remember."""
        state = self._begun().state
        found: dict[str, Any] = {
            "optimizer": {
                name: {k: v for k, v in state.get(p, {}).items() if not isinstance(v, Tensor)}
                for name, p in self.parameters.items()
            }
        }
        if self.average is not None:
            found["averaged"] = self.average.count
            if self.average.patience is not None:
                found["validations"] = [self.average.best, self.average.stale]
        return found

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Load ``tensors()`` and ``numbers()`` of an earlier run."""
        optimizer = self._begun()
        names = {id(p): name for name, p in self.parameters.items()}
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for i, name in enumerate(order):
            entries: dict[str, Any] = dict(numbers["optimizer"].get(name, {}))
            prefix = f"{name}/"
            entries |= {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
            parameter = self.parameters[name]
            _check_entries(name, parameter, entries)
            entries.pop(MEAN, None)
            if entries:
                state[i] = {
                    key: sharded_as(parameter, value)
                    if isinstance(value, Tensor) and value.dim()
                    else value
                    for key, value in entries.items()
                }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self.average is not None and self.average.patience is not None:
            self.average.best, self.average.stale = numbers["validations"]
        if self.average is not None and numbers["averaged"] > 0:
            means = [tensors[f"{name}/{MEAN}"] for name in self.parameters]
            self.average.load(list(self.parameters.values()), means, numbers["averaged"])

    def _begun(self) -> Optimizer:
        if self.optimizer is None:
            raise RuntimeError(f"{type(self).__name__}: call setup(model.named_parameters()) first")
        return self.optimizer


def _check_entries(name: str, parameter: Tensor, entries: Mapping[str, Any]) -> None:
    """Raise ValueError for tensors that are neither like the parameter nor a single number."""
    wanted = (parameter.shape, parameter.dtype)
    for key, value in entries.items():
        if isinstance(value, Tensor) and value.dim() and (value.shape, value.dtype) != wanted:
            raise ValueError(
                f"{key} of {name} is {value.dtype} {tuple(value.shape)}, not {parameter.dtype} "
                f"{tuple(parameter.shape)}"
            )
