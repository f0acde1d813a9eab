"""What `[training]` of a translator may say; it is checked before anything is read."""

import math

from drill.training_options import check_counts, check_minutes, check_patience


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
