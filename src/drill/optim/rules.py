"""Rules: how a training loop changes parameters, one class per way, one table (``RULES``).

A loop calls ``begin`` once, ``step`` after every backward, ``epoch_ended`` after every validation,
and validates inside ``evaluated()``. What it need not know is which optimiser works, when another
takes over and which learning rate a step has.
"""

import abc
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from drill.kernels import sgd_step
from drill.optim.averaging import AveragedSgd, NonMonotone, averaged
from drill.optim.schedules import inverse_sqrt, one_cycle, warmup_cosine

Schedule = Literal["constant", "cosine", "one-cycle", "inverse-sqrt"]
RESOLUTION = 1_000_000  # into so many steps a schedule divides a run, whose own are not known


def clip_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """g <- g * min(1, max_norm / |g|), |g| the norm over all gradients together; gives |g|.

    In place and without waiting for the device. A parameter given twice, as by an encoder and a
    layer that share their embedding, counts once.
    """
    if not max_norm > 0.0:
        raise ValueError(f"clip_: max_norm is a positive number, not {max_norm}")
    once = list(dict.fromkeys(parameters))
    return nn.utils.clip_grad_norm_(once, max_norm)


def scaled_lr(lr: float, sampled_length: int, bptt: int) -> float:
    """lr * sampled_length / bptt: a step over a longer batch is longer.

    ``sampled_length`` is what was drawn, even where the end of the corpus cuts the batch.
    """
    if sampled_length < 1 or bptt < 1:
        raise ValueError(
            f"scaled_lr: lengths are at least 1, not sampled_length {sampled_length}, bptt {bptt}"
        )
    return lr * sampled_length / bptt


class Rule(abc.ABC):
    """What a training loop asks of any way to change parameters."""

    def __init__(self, lr: float, weight_decay: float, clip: float | None) -> None:
        name = type(self).__name__
        if not (lr > 0.0 and math.isfinite(lr)):
            raise ValueError(f"{name}: lr is a finite positive number, not {lr}")
        if not (weight_decay >= 0.0 and math.isfinite(weight_decay)):
            raise ValueError(
                f"{name}: weight_decay is a finite number of at least 0, not {weight_decay}"
            )
        if clip is not None and not clip > 0.0:
            raise ValueError(f"{name}: clip is a positive number or none, not {clip}")
        self.lr = lr
        self.now = lr  # the rate of the last full-length step, which a schedule may change
        self.weight_decay = weight_decay
        self.clip = clip
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer: Optimizer | None = None

    @abc.abstractmethod
    def build(self) -> Optimizer:
        """The optimiser over ``self.parameters`` that the rule starts with."""

    def begin(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Take charge of the trained parameters of a model; each has one name."""
        self.parameters = {name: p for name, p in named if p.requires_grad}
        if not self.parameters:
            raise ValueError(f"{type(self).__name__}: the model has no parameter to train")
        self.optimizer = self.build()

    def rate(self, progress: float) -> float:
        """The learning rate of a full-length step, ``progress`` of the run being done."""
        return self.lr

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        """Clip, step with lr * sampled_length / bptt, drop the gradients."""
        self.announce(sampled_length, bptt, progress)
        self.apply()

    def announce(self, sampled_length: int, bptt: int, progress: float) -> None:
        """The host's part of a step: say how long the next one is."""
        optimizer = self._begun()
        self.now = self.rate(progress)
        self._set_rate(optimizer, scaled_lr(self.now, sampled_length, bptt))

    def apply(self) -> None:
        """The device's part of a step; recorded, it can be replayed after other announcements."""
        optimizer = self._begun()
        if self.clip is not None:
            clip_(self.parameters.values(), self.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _set_rate(self, optimizer: Optimizer, rate: float) -> None:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # where a recorded step reads it
            else:
                group["lr"] = rate

    @property
    def phase(self) -> object:
        """Another object from the moment on when steps are taken in another way."""
        return self.optimizer

    @abc.abstractmethod
    def why_not_recorded(self) -> str | None:
        """Why ``apply`` cannot be recorded as a CUDA graph; None where it can."""

    def epoch_ended(self, valid_loss: float) -> None:  # noqa: B027 - most rules do not care
        """Hear the validation loss of an epoch."""

    @property
    def averaging(self) -> bool:
        """Whether ``evaluated`` gives averaged weights."""
        return isinstance(self.optimizer, AveragedSgd) and bool(self.optimizer.state)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Inside, the parameters are those to evaluate and to keep."""
        if isinstance(self.optimizer, AveragedSgd) and self.averaging:
            with averaged(self.optimizer):
                yield
        else:
            yield

    # -- saving: tensors by name, and numbers that JSON holds exactly -----------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's tensors, ``<parameter>/<key>``."""
        held = self._begun().state
        return {
            f"{name}/{key}": value
            for name, p in self.parameters.items()
            for key, value in held.get(p, {}).items()
            if isinstance(value, Tensor)
        }

    def numbers(self) -> dict[str, Any]:
        """What else the rule must remember."""
        held = self._begun().state
        return {
            "optimizer": {
                name: {k: v for k, v in held.get(p, {}).items() if not isinstance(v, Tensor)}
                for name, p in self.parameters.items()
            }
        }

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on where the rule that gave ``tensors`` and ``numbers`` stood."""
        optimizer = self._begun()
        names = {id(p): name for name, p in self.parameters.items()}
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for i, name in enumerate(order):
            entries: dict[str, Any] = dict(numbers["optimizer"].get(name, {}))
            prefix = f"{name}/"
            entries |= {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
            if entries:
                state[i] = entries
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _begun(self) -> Optimizer:
        if self.optimizer is None:
            raise RuntimeError(f"{type(self).__name__}: call begin(model.named_parameters()) first")
        return self.optimizer


class SgdRule(Rule):
    """What plain and averaged SGD share: on a GPU all of a step is two launches."""

    _fused = False

    def begin(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        super().begin(named)
        self._fused = sgd_step.supported(list(self.parameters.values()))
        self._numbers = torch.zeros(2, device=next(iter(self.parameters.values())).device)

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        held, self._fused = self._fused, self._fused and self._whole()
        super().step(sampled_length, bptt, progress)
        self._fused = held

    def _whole(self) -> bool:
        """Whether all parameters take part, now and in every step before."""
        optimizer = self._begun()
        even = not isinstance(optimizer, AveragedSgd) or optimizer.even()
        return even and all(p.grad is not None for p in self.parameters.values())

    def announce(self, sampled_length: int, bptt: int, progress: float) -> None:
        super().announce(sampled_length, bptt, progress)
        if not self._fused:
            return
        optimizer = self._begun()
        rate, share = optimizer.param_groups[0]["lr"], 0.0
        if isinstance(optimizer, AveragedSgd):
            rate, share = optimizer.advance()
        for place, number in zip(self._numbers, (rate, share), strict=True):
            place.fill_(number)

    def apply(self) -> None:
        if not self._fused:
            super().apply()
            return
        optimizer = self._begun()
        trained = list(self.parameters.values())
        gradients = [p.grad for p in trained if p.grad is not None]
        averages = None
        if isinstance(optimizer, AveragedSgd):
            averages = [optimizer.state[p]["average"] for p in trained]
        sgd_step.sgd_step(
            [p.detach() for p in trained],
            gradients,
            averages,
            self._numbers,
            clip=self.clip,
            decay=self.weight_decay,
        )
        optimizer.zero_grad(set_to_none=True)

    def why_not_recorded(self) -> str | None:
        return None if self._fused else "parameters are not all float32 on the GPU"


class Sgd(SgdRule):
    """w <- w - lr (g + weight_decay w), g clipped; for a baseline."""

    def __init__(
        self, lr: float = 30.0, *, weight_decay: float = 1.2e-6, clip: float | None = 0.25
    ) -> None:
        super().__init__(lr, weight_decay, clip)

    def build(self) -> Optimizer:
        return torch.optim.SGD(self.parameters.values(), lr=self.lr, weight_decay=self.weight_decay)


class Asgd(SgdRule):
    """Averaged SGD from the first step on; for finetuning a trained model."""

    def __init__(
        self, lr: float = 30.0, *, weight_decay: float = 1.2e-6, clip: float | None = 0.25
    ) -> None:
        super().__init__(lr, weight_decay, clip)

    def build(self) -> Optimizer:
        return AveragedSgd(self.parameters.values(), self.lr, weight_decay=self.weight_decay)


class NtAsgd(SgdRule):
    """SGD until validation stops to improve, averaged SGD from then on.

    The switch comes after the epoch that is worse than the best one before the last ``patience``
    (``NonMonotone``). It is never taken back. For AWD-LSTM language models.
    """

    def __init__(
        self,
        lr: float = 30.0,
        *,
        weight_decay: float = 1.2e-6,
        clip: float | None = 0.25,
        patience: int = 5,
    ) -> None:
        super().__init__(lr, weight_decay, clip)
        self.trigger = NonMonotone(patience)

    def build(self) -> Optimizer:
        return torch.optim.SGD(self.parameters.values(), lr=self.lr, weight_decay=self.weight_decay)

    def epoch_ended(self, valid_loss: float) -> None:
        if self.trigger.update(valid_loss):
            self._average()

    def _average(self) -> None:
        self.optimizer = AveragedSgd(
            self.parameters.values(), self.lr, weight_decay=self.weight_decay
        )

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "trigger": self.trigger.state_dict()}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        self.trigger.load_state_dict(numbers["trigger"])
        if self.trigger.triggered:
            self._average()
        super().load(tensors, numbers)


class AdamW(Rule):
    """Adam with decoupled weight decay and a schedule; the modern alternative.

    Matrices decay, vectors (biases) do not. ``schedule`` runs over the whole run: ``constant``
    after a linear warm-up, ``cosine`` to zero after it, or ``one-cycle``; ``warmup`` is the share
    of the run that goes up. ``inverse-sqrt``, of the first Transformers, needs no length of the
    run: up to ``lr`` at step ``warmup_steps``, from there on lr * sqrt(warmup_steps / step).
    """

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.1,
        clip: float | None = 1.0,
        schedule: Schedule = "cosine",
        warmup: float = 0.05,
        warmup_steps: int = 4000,
        beta1: float = 0.9,
        beta2: float = 0.99,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(lr, weight_decay, clip)
        if schedule not in get_args(Schedule):
            raise ValueError(
                f"AdamW: schedule is constant, cosine, one-cycle or inverse-sqrt, not {schedule!r}"
            )
        if not 0.0 <= warmup < 1.0 or (schedule == "one-cycle" and warmup == 0.0):
            raise ValueError(
                f"AdamW: warmup is a share of the run in [0, 1), above 0 for one-cycle, "
                f"not {warmup}"
            )
        if warmup_steps < 1:
            raise ValueError(f"AdamW: warmup_steps is at least 1, not {warmup_steps}")
        self.schedule = schedule
        self.warmup = warmup
        self.warmup_steps = warmup_steps
        self.steps = 0
        self.betas = (beta1, beta2)
        self.epsilon = epsilon

    def build(self) -> Optimizer:
        matrices = [p for p in self.parameters.values() if p.dim() >= 2]
        vectors = [p for p in self.parameters.values() if p.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        place = next(iter(self.parameters.values())).device
        on_gpu = place.type == "cuda"
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=torch.tensor(self.lr, device=place) if on_gpu else self.lr,
            betas=self.betas,
            eps=self.epsilon,
            fused=on_gpu or None,
            capturable=on_gpu,
        )

    def announce(self, sampled_length: int, bptt: int, progress: float) -> None:
        self.steps += 1
        super().announce(sampled_length, bptt, progress)

    def why_not_recorded(self) -> str | None:
        return None

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), "steps": self.steps}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        super().load(tensors, numbers)
        self.steps = numbers.get("steps", 0)  # older checkpoints have no schedule that asks for it

    def rate(self, progress: float) -> float:
        if self.schedule == "inverse-sqrt":
            peak = inverse_sqrt(self.warmup_steps, width=1, warmup=self.warmup_steps)
            now = inverse_sqrt(max(1, self.steps), width=1, warmup=self.warmup_steps)
            return self.lr * now / peak
        at = 1 + int(min(max(progress, 0.0), 1.0) * (RESOLUTION - 1))
        rising = int(self.warmup * RESOLUTION)
        if self.schedule == "one-cycle":
            return one_cycle(at, peak=self.lr, total=RESOLUTION, rise=self.warmup)
        if self.schedule == "cosine":
            return warmup_cosine(at, peak=self.lr, warmup=rising, total=RESOLUTION)
        return self.lr * min(1.0, at / max(1, rising))


RULES: dict[str, type[Rule]] = {"nt-asgd": NtAsgd, "asgd": Asgd, "sgd": Sgd, "adamw": AdamW}
"""Every rule by name."""
