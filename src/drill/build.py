"""From settings to objects, and from a run folder back to its model: the door to what does it.

settings = recipe("demo-drill", ["training.epochs=2"])
outcome = train_run(settings, "runs/demo-drill")
run = load_run("runs/demo-drill")
run.model, run.vocabulary
"""

from drill.build_language_model import corpus, language_model, output_layer, rehearse, rule
from drill.finetuning import finetuning
from drill.run_loading import (
    Origin,
    Run,
    Weights,
    load_run,
    load_weights,
    settings_of,
    task_of,
    vocabulary_of,
)
from drill.run_training import train_run

__all__ = [
    "Origin",
    "Run",
    "Weights",
    "corpus",
    "finetuning",
    "language_model",
    "load_run",
    "load_weights",
    "output_layer",
    "rehearse",
    "rule",
    "settings_of",
    "task_of",
    "train_run",
    "vocabulary_of",
]
