"""Where the training of a translator stands, and how that is saved and found again."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from drill.data import Pairs, TranslationData
from drill.errors import RunFolderError
from drill.training.distributed import World
from drill.training.optim import NonMonotone, Rule
from drill.training.run import checkpoint
from drill.training.run.checkpoint import copied, copy_into, under
from drill.training.run.folder import RunFolder, agree, fitting
from drill.training.state import Limits, Standing, keep_best, own_tensors, perplexity_of, take_own
from drill.translation.bleu import Scores
from drill.translation.evaluate import Translated
from drill.translation.loss import TranslationLoss
from drill.translation.translate import Search


@dataclass
class TranslationPosition(Standing):
    """The next update starts at batch ``batch`` of ``batches`` of epoch ``epoch``.

    ``nll`` sums the losses of target tokens, times the number of processes.
    """

    batches: int  # of an epoch, for each process
    batch: int = 0
    tokens: int = 0  # targets of this epoch, over all processes
    training_seconds: float = 0.0  # of this epoch, without validation
    validated: int = 0  # the step of the last validation
    validations: int = 0
    broken_off: bool = False  # the validation of this step, which is to be made again
    stopper: NonMonotone | None = field(default=None, kw_only=True)
    best: TranslationLoss | None = field(default=None, kw_only=True)
    recent: dict[int, dict[str, Tensor] | None] = field(default_factory=dict)
    """Weights of the last validations by step, None where they are on disk."""

    def share(self, limits: Limits) -> float:
        """How much of the run is done, by the limit that comes first."""
        return max(self._trained(limits), self.clock)

    def over(self, limits: Limits) -> bool:
        """Whether the run is complete, or the time is up."""
        return self.complete(limits) or self.clock >= 1.0

    def complete(self, limits: Limits) -> bool:
        """Whether all epochs are trained, or all updates, or as many as were worth it."""
        return self.stopped() or self._trained(limits) >= 1.0

    def stopped(self) -> bool:
        """Whether validations no longer improve."""
        return self.stopper is not None and self.stopper.triggered

    def _trained(self, limits: Limits) -> float:
        by_epochs = (self.epoch - 1 + self.batch / self.batches) / limits.epochs
        by_updates = 0.0 if limits.updates is None else self.step / limits.updates
        return max(by_epochs, by_updates)

    def tick_training(self) -> None:
        """``tick`` after training, which is what the rate of tokens is of."""
        before = self.seconds
        self.tick()
        self.training_seconds += self.seconds - before

    def mean_loss(self, world: World) -> float:
        """Mean of the epoch so far; waits for the device."""
        return world.mean(float(self.nll)) / max(1, self.tokens)

    def offer(self, scores: TranslationLoss, model: nn.Module, keep: int) -> bool:
        """Keep a copy of the weights if they are the best so far, and of the last ``keep``."""
        self.validated = self.step
        self.validations += 1
        self.broken_off = False
        if keep > 1:
            self.recent[self.step] = copied(model)
            for old in sorted(self.recent)[:-keep]:
                del self.recent[old]
        better = self.best is None or scores.loss < self.best.loss
        if better:
            self.best, self.best_epoch = scores, self.epoch
            self.best_weights = copied(model)
        return better

    def last_epoch(self) -> int:
        """The one that ended last, or that a limit has cut."""
        return self.epoch if self.batch else self.epoch - 1

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = self.tokens = 0
        self.seconds = self.training_seconds = 0.0
        self.loss = math.nan
        self.nll.zero_()

    def row(self, valid: TranslationLoss, *, lr: float, best: bool) -> dict[str, Any]:
        """A line of metrics.jsonl; the training loss is the smoothed one."""
        trained = self.tokens > 0
        return {
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": self.loss if trained else None,
            "train_perplexity": perplexity_of(self.loss) if trained else None,
            "valid_loss": valid.loss,
            "valid_perplexity": valid.perplexity,
            "lr": lr,
            "averaged": False,
            "best": best,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / max(1e-9, self.training_seconds),
            "seconds": self.seconds,
            "elapsed": self.elapsed,
        }


def test_row(
    at: TranslationPosition,
    weights: str,
    valid: TranslationLoss,
    test: Translated,
    search: Search,
) -> dict[str, Any]:
    """``epoch`` is that of the best single weights; of a mean ``averaged_steps`` says of which."""
    return {
        "kind": "test",
        "epoch": at.best_epoch,
        "weights": weights,
        **({"averaged_steps": sorted(at.recent)} if weights == "averaged" else {}),
        "valid_loss": valid.loss,
        "valid_perplexity": valid.perplexity,
        "test_loss": test.fit.loss,
        "test_perplexity": test.fit.perplexity,
        "test_bleu": test.scores.bleu,
        "test_tokenised_bleu": test.scores.tokenised_bleu,
        "test_chrf": test.scores.chrf,
        "test_exact": test.exact,
        "bleu_signature": test.scores.signature,
        "tokenised_signature": test.scores.tokenised_signature,
        "chrf_signature": test.scores.chrf_signature,
        "beam": search.beam,
        "length_penalty": search.length_penalty,
        "elapsed": at.elapsed,
    }


def tested_before(
    row: Mapping[str, Any], data: TranslationData
) -> tuple[TranslationLoss, Translated]:
    """What ``test_row`` was made of, but for the translations: the folder's may be newer ones."""

    def fit(name: str, pairs: Pairs) -> TranslationLoss:
        tokens = int(pairs.lengths[1].sum()) + len(pairs)
        return TranslationLoss(float(row[f"{name}_loss"]) * tokens, tokens)

    scores = Scores(
        len(data.text.test),
        row["test_bleu"],
        row["bleu_signature"],
        row["test_chrf"],
        row["chrf_signature"],
        row["test_tokenised_bleu"],
        row["tokenised_signature"],
    )
    tested = Translated(fit("test", data.test), scores, row["test_exact"], ())
    return fit("valid", data.valid), tested


def save(
    at: TranslationPosition, model: nn.Module, rule: Rule, folder: RunFolder, world: World
) -> None:
    """Write what is due of the best and the recent weights, then the checkpoint that knows them."""
    at.tick()
    tensors = own_tensors(at, world)
    if not world.first:
        at.best_weights = None
        at.recent = dict.fromkeys(at.recent)
        world.wait()
        return
    tensors |= {f"model/{name}": p for name, p in model.named_parameters()}
    tensors |= {f"rule/{name}": tensor for name, tensor in rule.tensors().items()}
    for step, weights in at.recent.items():
        if weights is not None:
            checkpoint.save(folder.recent(step), weights, {"step": step})
    at.recent = dict.fromkeys(at.recent)
    keep_best(at, folder)
    numbers = {
        "epoch": at.epoch,
        "batch": at.batch * world.size,
        "step": at.step,
        "tokens": at.tokens,
        "seconds": at.seconds,
        "training_seconds": at.training_seconds,
        "elapsed": at.elapsed,
        "test_seconds": at.test_seconds,
        "validated": at.validated,
        "validations": at.validations,
        "broken_off": at.broken_off,
        "best": None if at.best is None else asdict(at.best),
        "best_epoch": at.best_epoch,
        "stopper": None if at.stopper is None else at.stopper.state_dict(),
        "recent": list(at.recent),
        "rule": rule.numbers(),
        "world": world.size,
        "text": at.text,
    }
    folder.save_last(tensors, numbers)
    folder.forget_recent(at.recent)
    world.wait()  # nobody goes on before it is on disk
    at.tick()


def restore(
    at: TranslationPosition, model: nn.Module, rule: Rule, folder: RunFolder, world: World
) -> bool:
    """Put the run back to its last checkpoint; False where there is none. Metrics stay whole."""
    found = folder.load_last()
    agree(found, folder, world)
    if found is None:
        return False
    tensors, numbers = found
    if numbers.get("text") != at.text:
        raise RunFolderError(
            f"{folder.path}: the texts have changed since this run was saved; restore them, or "
            "train under another name"
        )
    with fitting(folder):
        copy_into(dict(model.named_parameters()), under("model/", tensors), str(folder.last))
        rule.load(under("rule/", tensors), numbers["rule"])
        for key in ("epoch", "step", "tokens", "seconds", "training_seconds", "elapsed"):
            setattr(at, key, numbers[key])
        at.test_seconds = numbers.get("test_seconds", 0.0)  # older runs have not written it down
        # An update is a multiple of all processes, so only an epoch's last turn is rounded.
        at.batch = min(at.batches, -(-numbers["batch"] // world.size))
        at.validated, at.validations = numbers["validated"], numbers["validations"]
        at.broken_off = numbers.get("broken_off", False)
        at.best = None if numbers["best"] is None else TranslationLoss(**numbers["best"])
        at.best_epoch = numbers["best_epoch"]
        if at.stopper is not None and numbers.get("stopper") is not None:
            at.stopper.load_state_dict(numbers["stopper"])
        at.recent = dict.fromkeys(numbers["recent"])
        take_own(at, tensors, numbers["world"], world)
        at.metrics_size = numbers["metrics_size"]
    return True


@torch.no_grad()
def averaged(at: TranslationPosition, folder: RunFolder) -> dict[str, Tensor]:
    """The mean of the recent weights, all of which are on disk."""
    total: dict[str, Tensor] = {}
    for weights in _read(at, folder):
        for name, tensor in weights.items():
            total[name] = total[name] + tensor if name in total else tensor.clone()
    return {name: tensor / len(at.recent) for name, tensor in total.items()}


def _read(at: TranslationPosition, folder: RunFolder) -> Iterator[dict[str, Tensor]]:
    for step in sorted(at.recent):
        mend = f"restore it from a copy, or remove {folder.last} to start over"
        yield checkpoint.load(folder.recent(step), mend)[0]
