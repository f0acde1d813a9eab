"""Train a language model in a run folder, and load it again."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from drill.data import (
    DataError,
    Ids,
    Vocabulary,
    cache_folder,
    load_vocabulary,
    read_corpus,
)
from drill.data.catalog import SPLITS
from drill.data.text.corpora import share_of_unknown
from drill.errors import RunFolderError, check_value
from drill.language_modeling.build import described, dry_run, language_model
from drill.language_modeling.evaluation.calibration import Calibration, calibration
from drill.language_modeling.evaluation.perplexity import Perplexity, Text, perplexity, token_losses
from drill.language_modeling.generation import generate
from drill.language_modeling.new_words import add_words_to_model
from drill.language_modeling.scoring import Scored, score
from drill.language_modeling.train import LanguageModelTask
from drill.language_modeling.untie import untied
from drill.models.language_model import LanguageModel
from drill.training.device import pick_device
from drill.training.distributed import World
from drill.training.optim import ScheduledOptimizer
from drill.training.options import LanguageModelOptions
from drill.training.precision import matmul_precision
from drill.training.run.checkpoint import copied, load_into
from drill.training.run.environment import Start
from drill.training.run.folder import RunFolder
from drill.training.run.resume_checks import check_resume, located, with_text
from drill.training.run.summary import few_steps, run_summary
from drill.training.run.weights import (
    Weights,
    WeightsInfo,
    by_any_kernels,
    fill,
    read_weights,
    settings_of,
)
from drill.training.settings import LANGUAGE_MODEL, Settings

Result = TypeVar("Result")


@dataclass(frozen=True)
class LanguageModelRun:
    """A trained model and what it was trained on."""

    folder: RunFolder
    settings: Settings
    vocabulary: Vocabulary
    model: LanguageModel
    origin: WeightsInfo

    @property
    def weights(self) -> Weights:
        return self.origin.weights

    @cached_property
    def ids(self) -> Ids:
        """The encoded corpus; DataError if its words have changed."""
        text, vocabulary = read_corpus(**with_text(self.settings, self.folder).data)
        if not self.vocabulary.extends(vocabulary):
            raise DataError(
                f"{self.folder.path}: was trained on another text than "
                f"{self.settings.data['corpus']} is now; restore the text"
            )
        return text.encode(self.vocabulary, cache_folder())

    def perplexity(self, split: str = "test") -> Perplexity:
        """Perplexity with the batch size and precision of training.

        Args:
            split: "train", "valid" or "test".

        Returns:
            Loss and perplexity, and how many tokens they are of.
        """
        check_value(split in SPLITS, "split", f"one of {', '.join(SPLITS)}", split)
        size = self.settings.training[f"{'test' if split == 'test' else 'valid'}_batch_size"]
        options = {"batch_size": size, "token_bytes": self.vocabulary.token_bytes}
        return self._evaluated(perplexity, getattr(self.ids, split), **options)

    def token_losses(
        self, ids: Text, *, batch_size: int = 1, progress: Callable[[int, int], None] | None = None
    ) -> Tensor:
        """-log p of every predicted token, with the window and precision of training.

        Args:
            ids: the text, (N,).
            batch_size: streams that the text is cut into; the first token of each is not predicted.
            progress: called with how much is done, and of how much.

        Returns:
            Losses (tokens,), stream after stream, on the CPU.
        """
        return self._evaluated(token_losses, ids, batch_size=batch_size, progress=progress)

    def calibration(self, ids: Text, *, batch_size: int = 10) -> Calibration:
        """How often the likeliest token is right, by the probability that it gets.

        Args:
            ids: the text, (N,).
            batch_size: streams that the text is cut into.

        Returns:
            Reliability bins, and the expected calibration error as ``ece``.
        """
        return self._evaluated(calibration, ids, batch_size=batch_size)

    def _evaluated(self, evaluate: Callable[..., Result], ids: Text, **options: Any) -> Result:
        training = self.settings.training
        device = next(self.model.parameters()).device
        with matmul_precision(training["precision"], device) as autocast:
            return evaluate(self.model, ids, bptt=training["bptt"], autocast=autocast, **options)

    def generate(self, prompt: str = "", *, max_new_tokens: int = 100, **options: Any) -> str:
        """Continue a text.

        Args:
            prompt: the text so far; a line break ends a line.
            max_new_tokens: how many are sampled, line ends included.
            options: temperature, top_k, top_p, seed and more, see ``generation.generate``.

        Returns:
            ``prompt`` and its continuation.
        """
        options |= {"prompt": prompt, "max_new_tokens": max_new_tokens}
        return prompt.rstrip(" ") + "".join(generate(self.model, self.vocabulary, **options))

    def score(self, lines: Iterable[str]) -> list[Scored]:
        """Score lines, each on its own.

        Args:
            lines: texts without line breaks.

        Returns:
            Each line with the log-probabilities of its words.
        """
        return list(score(self.model, self.vocabulary, lines))

    def add_words(self, descriptions: Mapping[str, str]) -> "LanguageModelRun":
        """Add words to the vocabulary, with vectors from their characters or descriptions.

        Args:
            descriptions: each word with a text about it, such as a dictionary entry. If glosses are
                read and the text is empty, WordNet's entry is taken.

        Returns:
            A run with the new words; this one does not change.
        """
        model, vocabulary = add_words_to_model(
            self.model, self.vocabulary, self.settings.labels, descriptions
        )
        return replace(self, model=model, vocabulary=vocabulary)

    def save(self, folder: Path | str) -> None:
        """Write the model and its vocabulary as a run folder, to load again.

        Args:
            folder: a new one, or an empty one.
        """
        target = RunFolder(folder)
        if target.path.exists() and any(target.path.iterdir()):
            raise RunFolderError("is not empty; name a new folder", key=str(target.path))
        layer = self.model.layer
        chosen = {  # by the layer from the number of words, which may be another one now
            key: getattr(layer, key)
            for key, value in self.settings.layer.items()
            if value is None and hasattr(layer, key)
        }
        settings = located(self.settings.changed(layer=chosen), self.folder)
        with target.locked():
            self.vocabulary.save(target.vocabulary)
            target.write_text(target.recipe, settings.to_toml())
            if self.folder.environment.exists():
                target.write_text(target.environment, self.folder.environment.read_text("utf-8"))
            target.save_best(copied(self.model), dict(self.origin.when))


def load_language_model(
    folder: Path | str, weights: Weights | None = None, device: torch.device | str = "auto"
) -> LanguageModelRun:
    """The language model of a run in eval mode; by default with its best or last weights."""
    run = RunFolder(folder)
    settings = settings_of(run, LANGUAGE_MODEL)
    vocabulary = load_vocabulary(run.vocabulary)
    model = language_model(by_any_kernels(settings), vocabulary, pick_device(device))
    tensors, origin = read_weights(run, weights)
    names = dict(model.named_parameters()).keys()
    if settings.training["untie_at"] is not None and tensors.keys() != names:
        model.layer = untied(model.layer)  # weights from after the switch
    fill(model, tensors, run)
    return LanguageModelRun(run, settings, vocabulary, model, origin)


def start_language_model(
    settings: Settings,
    run: RunFolder,
    optimizer: ScheduledOptimizer,
    device: torch.device,
    world: World,
    on_start: Callable[[str], None] | None,
) -> Start:
    """Check the settings of a language model, read its text and build it."""
    begun = check_resume(settings, run)
    dry_run(settings, begun)
    if on_start is not None:
        on_start(run_summary(settings, run, device, world))
    text, vocabulary = read_corpus(**settings.data)
    ids = text.encode(vocabulary, cache_folder())
    start = None if settings.init_from is None else RunFolder(settings.init_from)
    earlier = run if begun else start
    if earlier is None:
        vocabulary = described(settings, vocabulary)
    else:
        saved = load_vocabulary(earlier.vocabulary)  # with the descriptions it was trained with
        if saved != vocabulary:
            other = "set init_from to a run of this corpus, or leave it out"
            hint = "the text has changed: train under another name" if begun else other
            raise DataError(
                f"{earlier.path}: was trained with another vocabulary than that of "
                f"{settings.data['corpus']}; {hint}"
            )
        vocabulary = saved
    torch.manual_seed(settings.training["seed"])
    model = language_model(settings, vocabulary, device)
    if start is not None and not run.last.exists():
        load_into(model, start.best)
    task = LanguageModelTask(
        model,
        ids,
        run,
        optimizer,
        LanguageModelOptions(**settings.training),
        vocabulary=vocabulary,
        corpus=settings.data["corpus"],
        world=world,
    )
    size = f"{len(ids.train):,} tokens, {len(vocabulary):,} {vocabulary.unit}"
    remarks = (share_of_unknown(text, vocabulary, ids),)
    warning = few_steps(settings, len(ids.train))
    return Start(task, partial(vocabulary.save, run.vocabulary), size, remarks, warning=warning)
