"""What `[training]` of a language model may say; it is checked before anything is read."""

import math
from collections.abc import Mapping

from drill.layers import MatrixLayer, OutputLayer


def check_options(
    *,
    epochs: int,
    max_minutes: float | None,
    batch_size: int,
    bptt: int,
    seed: int,
    length_seed: int | None,
    length_cap: int | None,
    adversarial: float,
    state_reset: float,
    micro_batch: int | None,
    valid_batch_size: int,
    test_batch_size: int,
    patience: int | None,
    save_every: float,
    **_: object,
) -> None:
    """Refuse what ``train`` could not use; it says so before anything is read."""
    counted = {
        "epochs": epochs,
        "batch_size": batch_size,
        "bptt": bptt,
        "length_cap": length_cap,
        "micro_batch": micro_batch,
        "valid_batch_size": valid_batch_size,
        "test_batch_size": test_batch_size,
    }
    check_counts(counted)
    for name, drawn in {"seed": seed, "length_seed": length_seed}.items():
        if drawn is not None and not 0 <= drawn < 2**32:
            raise ValueError(f"{name} lies in 0 to 2**32 - 1, not {drawn}")
    check_minutes(max_minutes)
    check_patience(patience)
    if not 0.0 <= adversarial < 1.0:  # NaN fails too
        raise ValueError(f"adversarial lies in [0, 1), not {adversarial}")
    if not 0.0 <= state_reset < 1.0:
        raise ValueError(f"state_reset is a probability in [0, 1), not {state_reset}")
    if not save_every >= 0.0:
        raise ValueError(f"save_every is at least 0 seconds, not {save_every}")


def check_adversarial(adversarial: float, layer: OutputLayer) -> None:
    """Refuse adversarial softmax for layers that have none."""
    if adversarial != 0.0 and not isinstance(layer, MatrixLayer):
        raise ValueError(
            f"adversarial is for layers of one matrix, not for {type(layer).__name__}; leave it "
            "at 0, or take another layer"
        )


def check_counts(counted: Mapping[str, int | None]) -> None:
    for name, count in counted.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} is at least 1, not {count}")


def check_minutes(max_minutes: float | None) -> None:
    if max_minutes is not None and not max_minutes > 0.0:
        raise ValueError(f"max_minutes is a positive number, not {max_minutes}")


def check_patience(patience: int | None) -> None:
    if patience is not None and patience < 0:
        raise ValueError(f"patience is at least 0, not {patience}")


def check_translation_options(
    *,
    epochs: int,
    updates: int | None,
    max_minutes: float | None,
    max_tokens: int,
    accumulate: int,
    pad_to: int,
    label_smoothing: float,
    seed: int,
    validate_every: int | None,
    bleu_every: int | None,
    average: int,
    patience: int | None,
    beam: int,
    length_penalty: float,
    save_every: float,
    **_: object,
) -> None:
    """Refuse what ``train_translator`` could not use; it says so before anything is read."""
    counted = {
        "epochs": epochs,
        "updates": updates,
        "max_tokens": max_tokens,
        "accumulate": accumulate,
        "pad_to": pad_to,
        "validate_every": validate_every,
        "bleu_every": bleu_every,
        "average": average,
        "beam": beam,
    }
    check_counts(counted)
    check_minutes(max_minutes)
    check_patience(patience)
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty is a finite number, not {length_penalty}")
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing lies in [0, 1), not {label_smoothing}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed lies in 0 to 2**32 - 1, not {seed}")
    if not save_every >= 0.0:
        raise ValueError(f"save_every is at least 0 seconds, not {save_every}")
