"""The ``[training]`` table of a recipe as dataclasses that check their own values."""

import math
from dataclasses import dataclass

from drill.errors import check_value
from drill.training.precision import Precision

MAX_BEAM = 1000


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What both tasks share. The first limit that is reached ends a run, with a validation.

    Schedules end with the run, so under ``max_minutes`` each output layer trains for the same time.
    """

    epochs: int
    max_minutes: float | None = None  # of training and validation, summed over resumes
    seed: int
    precision: Precision = "tf32"  # float32, tf32, bfloat16 (autocast) or auto
    cuda_graphs: bool = True  # replay steps as CUDA graphs where the model allows it
    patience: int | None = None  # stop after a validation worse than the best before the last ones
    validate_first: bool = False  # validate first: only better weights replace the initial ones
    checkpoint_seconds: float = 120.0  # seconds between checkpoints
    validate_every: int | None = None  # steps; the end of an epoch is always validated
    log_every: int | None = None  # steps between rows of training loss; None: log_interval

    def __post_init__(self) -> None:
        self._check_counts("epochs", "validate_every", "log_every")
        self._check_seeds("seed")
        if self.max_minutes is not None:
            check_value(self.max_minutes > 0.0, "max_minutes", "above 0", self.max_minutes)
        self._check_counts("patience", least=0)
        seconds = self.checkpoint_seconds
        check_value(seconds >= 0.0, "checkpoint_seconds", "at least 0", seconds)

    def _check_counts(self, *names: str, least: int = 1) -> None:
        for name in names:
            value = getattr(self, name)
            check_value(value is None or value >= least, name, f"at least {least}", value)

    def _check_seeds(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            check_value(value is None or 0 <= value < 2**32, name, "in 0 to 2**32 - 1", value)

    def _check_shares(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            check_value(0.0 <= value < 1.0, name, "in [0, 1)", value)


@dataclass(frozen=True, kw_only=True)
class LanguageModelOptions(TrainingOptions):
    """``[training]`` of a language model."""

    epochs: int = 500
    seed: int = 1111
    batch_size: int = 20  # parallel streams of text ("columns"), over all processes
    bptt: int = 70  # about how many tokens a gradient reaches back
    length_seed: int | None = None  # of the random segment lengths; None takes seed
    length_cap: int | None = None  # the longest segment
    random_lengths: bool = True  # segments of random lengths around bptt; else all have bptt
    partial_shuffle: bool = False  # rotate each column by a random offset, new in every epoch
    ar_weight: float = 2.0  # weight of mean(output^2)
    tar_weight: float = 1.0  # weight of mean((raw[t+1] - raw[t])^2)
    adversarial: float = 0.0  # lower the logits of targets by epsilon * |w_y| * |h| in training
    past_decode: float = 0.0  # weight of the loss of decoding the last word from the prediction
    augmented: float = 0.0  # weight of the loss against words like the target
    augmented_temperature: float = 10.0  # of both distributions of that loss
    state_reset: float = 0.0  # probability that a column starts a segment from the initial state
    untie_at: float | None = None  # share of the run after which the layer is a free matrix
    compile: bool = False  # an encoder without kernels of its own by torch.compile
    fsdp: bool = False  # shard a Transformer over the processes (FSDP2); else each has it whole
    micro_batch: int | None = None  # columns at a time, gradients summed; None takes all at once
    valid_batch_size: int = 10
    test_batch_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("batch_size", "bptt", "length_cap", "micro_batch")
        self._check_counts("valid_batch_size", "test_batch_size")
        self._check_seeds("length_seed")
        self._check_shares("adversarial", "past_decode", "state_reset")
        check_value(self.augmented >= 0.0, "augmented", "at least 0", self.augmented)
        temperature = self.augmented_temperature
        check_value(temperature > 0.0, "augmented_temperature", "above 0", temperature)
        if self.untie_at is not None:
            check_value(0.0 < self.untie_at < 1.0, "untie_at", "in (0, 1)", self.untie_at)


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(TrainingOptions):
    """``[training]`` of a translator."""

    epochs: int = 30
    max_steps: int | None = None  # a third limit
    seed: int = 1
    max_tokens: int = 4096  # of a batch on either side, with padding; also for validation
    gradient_accumulation_steps: int = 1  # batches per update, over all processes
    label_smoothing: float = 0.1  # of the training loss only
    pad_to_multiple_of: int = 1  # pad lengths to multiples: fewer shapes, more padding
    compile: bool = False  # the Transformer by torch.compile
    bleu_every: int | None = None  # validations between two that also translate for BLEU
    average_checkpoints: int = 1  # at the end, try the mean of the weights of that many validations
    beam: int = 4  # of all translations that are scored
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("max_steps", "max_tokens", "gradient_accumulation_steps")
        self._check_counts("pad_to_multiple_of", "bleu_every", "average_checkpoints", "beam")
        self._check_shares("label_smoothing")
        check_value(self.beam <= MAX_BEAM, "beam", f"at most {MAX_BEAM}", self.beam)
        penalty = self.length_penalty
        check_value(math.isfinite(penalty), "length_penalty", "a finite number", penalty)


def log_interval(step: int, log_every: int | None) -> int:
    """Steps between two rows of training loss: ``log_every``, or 16 rows each time steps double.

    That is about 100 rows for 1,000 steps and 260 for a million. It depends on the step alone, so a
    run that is extended has the rows of a longer one.
    """
    return log_every or 1 << max(0, step.bit_length() - 5)
