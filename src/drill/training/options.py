"""The ``[training]`` table of a recipe as dataclasses that check their own values."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drill.errors import check_value
from drill.training.precision import Precision

DEFAULT_BEAM_SIZE = 4
DEFAULT_LENGTH_PENALTY = 0.6
MAX_BEAM_SIZE = 1000
A_SEED = "in 0 to 2**32 - 1"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What both tasks share. The first limit that is reached ends a run, with a validation.

    Schedules end with the run, so under ``max_minutes`` each output layer trains for the same time.
    """

    epochs: int
    max_steps: int | None = None
    max_minutes: float | None = None  # of training and validation, summed over resumes
    seed: int
    unigram_bias: bool = False  # start the output bias at the log frequencies of the labels
    precision: Precision = "tf32"  # float32, tf32, bfloat16 (autocast) or auto
    cuda_graphs: bool = True  # replay steps as CUDA graphs where the model allows it
    compile: bool = False  # the Transformer or highway network by torch.compile
    patience: int | None = None  # stop after a validation worse than the best before the last ones
    validate_first: bool = False  # validate first: only better weights replace the initial ones
    checkpoint_seconds: float = 120.0  # seconds between checkpoints
    validate_every: int | None = None  # steps; the end of an epoch is always validated
    log_every: int | None = None  # steps between rows of training loss; None: log_interval

    def __post_init__(self) -> None:
        self._check("epochs max_steps validate_every log_every", "at least 1", lambda n: n >= 1)
        self._check("seed", A_SEED, lambda n: 0 <= n < 2**32)
        self._check("max_minutes", "above 0", lambda x: x > 0.0)
        self._check("patience checkpoint_seconds", "at least 0", lambda x: x >= 0)

    def _check(self, names: str, wanted: str, fits: Callable[[Any], bool]) -> None:
        """Raise ValueError for one of these options that is neither None nor ``fits``."""
        for name in names.split():
            value = getattr(self, name)
            check_value(value is None or fits(value), name, wanted, value)


@dataclass(frozen=True, kw_only=True)
class LanguageModelOptions(TrainingOptions):
    """``[training]`` of a language model."""

    epochs: int = 500
    seed: int = 1111
    batch_size: int = 20  # parallel streams of text, over all processes
    bptt: int = 70  # about how many tokens a gradient reaches back
    length_seed: int | None = None  # of the random segment lengths; None takes seed
    length_cap: int | None = None  # the longest segment
    random_lengths: bool = True  # segments of random lengths around bptt; else all have bptt
    partial_shuffle: bool = False  # rotate each stream by a random offset, new in every epoch
    ar_weight: float = 2.0  # weight of mean(output^2)
    tar_weight: float = 1.0  # weight of mean((raw[t+1] - raw[t])^2)
    adversarial: float = 0.0  # lower the logits of targets by epsilon * |w_y| * |h| in training
    augmented: float = 0.0  # weight of the loss against words like the target
    augmented_temperature: float = 10.0  # of both distributions of that loss
    unigram_norms: float = 0.0  # start the norms of E at this times log(1 + count); 0: as they are
    norm_weight: float = 0.0  # weight of the distance of the norms of E from norm_target
    norm_target: float = 2.0
    state_reset: float = 0.0  # probability that a stream starts a segment from the initial state
    untie_at: float | None = None  # share of the run after which the layer is a free matrix
    fsdp: bool = False  # shard a Transformer over the processes (FSDP2); else each has it whole
    micro_batch: int | None = None  # streams at a time, gradients summed; None takes all at once
    valid_batch_size: int = 10
    test_batch_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = "batch_size bptt length_cap micro_batch valid_batch_size test_batch_size"
        self._check(counts, "at least 1", lambda n: n >= 1)
        self._check("length_seed", A_SEED, lambda n: 0 <= n < 2**32)
        self._check("adversarial state_reset", "in [0, 1)", lambda x: 0.0 <= x < 1.0)
        wanted = "augmented unigram_norms norm_weight norm_target"
        self._check(wanted, "at least 0", lambda x: x >= 0.0)
        self._check("augmented_temperature", "above 0", lambda x: x > 0.0)
        self._check("untie_at", "in (0, 1)", lambda x: 0.0 < x < 1.0)


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(TrainingOptions):
    """``[training]`` of a translator."""

    epochs: int = 30
    seed: int = 1
    max_tokens: int = 4096  # of a batch on either side, with padding; also for validation
    gradient_accumulation_steps: int = 1  # batches per step, over all processes
    label_smoothing: float = 0.1  # of the training loss only
    pad_to_multiple_of: int = 1  # pad lengths to multiples: fewer shapes, more padding
    bleu_every: int | None = None  # validations between two that also translate for BLEU
    average_checkpoints: int = 1  # at the end, try the mean of the weights of that many validations
    beam_size: int = DEFAULT_BEAM_SIZE  # of all translations that are scored
    length_penalty: float = DEFAULT_LENGTH_PENALTY

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = "max_tokens gradient_accumulation_steps pad_to_multiple_of bleu_every"
        self._check(f"{counts} average_checkpoints", "at least 1", lambda n: n >= 1)
        self._check("label_smoothing", "in [0, 1)", lambda x: 0.0 <= x < 1.0)
        self._check("beam_size", f"in 1 to {MAX_BEAM_SIZE}", lambda n: 1 <= n <= MAX_BEAM_SIZE)
        self._check("length_penalty", "a finite number", math.isfinite)


def used_limits(epoch: int, step: int, minutes: float) -> dict[str, float]:
    """How much of every limit of ``[training]`` a run in this ``epoch`` has used."""
    return {"epochs": epoch - 1, "max_steps": step, "max_minutes": minutes}


def ended_by(
    limits: Mapping[str, Any], used: Mapping[str, float], out_of_patience: bool
) -> str | None:
    """The setting that ends a run; None if it goes on."""
    if out_of_patience:
        return "patience"  # whatever the limits are
    reached = (name for name in used if limits[name] is not None and used[name] >= limits[name])
    return next(reached, None)


def log_interval(step: int, log_every: int | None) -> int:
    """Steps between two rows of training loss: ``log_every``, or 16 rows each time steps double.

    That is about 100 rows for 1,000 steps and 260 for a million. It depends on the step alone, so a
    run that is extended has the rows of a longer one.
    """
    return log_every or 1 << max(0, step.bit_length() - 5)
