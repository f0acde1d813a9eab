"""Training of a language model: steps, epochs and the test, compared with ones by hand."""

import math
import time

import numpy as np
import pytest
import torch

from drill.data import (
    Ids,
    Segment,
    SequenceLengths,
    batchify,
    inputs_and_targets,
    training_segments,
)
from drill.data.text.batches import rotated, rotations
from drill.language_modeling.evaluation.perplexity import evaluate_tokens, perplexity
from drill.training.optim import Sgd
from drill.training.progress import Progress
from drill.training.run.checkpoint import fingerprint_in, load_into
from drill.training.run.folder import RunFolder
from tests.helpers.language_models import (
    BATCH,
    BPTT,
    all_rows,
    assert_close_rows,
    differences,
    rows,
    run_state,
    small_model,
    small_run,
    text,
    weights,
)


class Spy(Sgd):
    """SGD that notes the arguments of every step and what its optimizer did."""

    def __init__(self, lr: float = 5.0, **options) -> None:
        super().__init__(lr, **options)
        self.rates, self.norms, self.calls = [], [], []

    def build(self):
        optimizer = super().build()
        act = optimizer.step

        def step() -> None:
            self.rates.append(optimizer.param_groups[0]["lr"])
            grads = [p.grad for p in self.parameters.values()]
            self.norms.append(math.sqrt(sum(float(grad.square().sum()) for grad in grads)))
            act()

        optimizer.step = step
        return optimizer

    def step(self, sampled_length: int, bptt: int, progress: float) -> None:
        self.calls.append((sampled_length, bptt, progress))
        super().step(sampled_length, bptt, progress)


def segments(epochs: int) -> list[list[Segment]]:
    """Those of each epoch of ``small_run``."""
    lengths = SequenceLengths(3, BPTT)
    return [list(training_segments(len(text().train) // BATCH, lengths)) for _ in range(epochs)]


# -- a step ---------------------------------------------------------------------------------------


def test_one_step_by_hand(tmp_path):
    """Loss with both regularisers, one norm over all gradients, decay of everything."""
    layer, lr, decay, clip = "deep-residual", 4.0, 0.01, 0.1
    tokens, batch = 45, 3  # 15 rows: one segment, cut from a sampled length of 25
    ids = Ids(text().train[:tokens], text().valid, text().test)
    optimizer = Spy(lr, weight_decay=decay, max_grad_norm=clip)
    options = {"ar_weight": 2.0, "tar_weight": 1.0}
    small_run(tmp_path, layer, optimizer, dropout=0.0, dtype=torch.float64, ids=ids, epochs=1,
              batch_size=batch, bptt=20, seed=6, **options)  # fmt: skip
    [(sampled, bptt, progress)] = optimizer.calls
    assert (sampled, bptt, progress) == (25, 20, 0.0)

    model = small_model(layer, dropout=0.0, dtype=torch.float64)
    data = batchify(ids.train, batch)
    loss = model.loss(data[:14], data[1:15], **options)
    loss.total.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert norm > clip
    assert optimizer.norms == pytest.approx([clip], rel=1e-5)
    last = weights(RunFolder(tmp_path).last)
    for name, p in model.named_parameters():
        step = p.grad * clip / (norm + 1e-6) + decay * p.detach()
        expected = p.detach() - lr * sampled / 20 * step
        torch.testing.assert_close(last[f"model/{name}"], expected, rtol=1e-9, atol=1e-12)
    [row, _] = rows(tmp_path)
    assert row["train_loss"] == pytest.approx(loss.nll.item(), rel=1e-12)
    assert row["train_loss"] < loss.total.item() - 1e-6  # the regularisers are not in it


def test_rate_follows_the_sampled_length_and_progress_the_rows(tmp_path):
    """Also of a segment that is cut at the end of an epoch."""
    optimizer = Spy(5.0)
    small_run(tmp_path, optimizer=optimizer, epochs=2)
    planned = [s for epoch in segments(2) for s in epoch]
    assert any(s.length < s.sampled_length for s in planned)
    assert optimizer.rates == [5.0 * s.sampled_length / BPTT for s in planned]
    lengths, _, progress = zip(*optimizer.calls, strict=True)
    assert list(lengths) == [s.sampled_length for s in planned]
    done = [(i + s.start / 100) / 2 for i, epoch in enumerate(segments(2)) for s in epoch]
    assert list(progress) == done
    assert 0.9 < done[-1] < 1.0
    assert {row["lr"] for row in rows(tmp_path) if row["kind"] == "epoch"} == {5.0}


def test_lengths_follow_their_own_seed_and_cap(tmp_path):
    """As finetuning has them; test_batches has the lengths of other seeds."""
    optimizer = Spy()
    ids = Ids(text(train=2 * 1000).train, *text()[1:])
    options = {"batch_size": 2, "bptt": 70, "seed": 28, "length_seed": 331, "length_cap": 80}
    small_run(tmp_path, optimizer=optimizer, ids=ids, epochs=1, **options)
    lengths = [length for length, _, _ in optimizer.calls]
    assert lengths[:12] == [71, 66, 73, 70, 65, 75, 72, 59, 26, 71, 41, 37]


# -- an epoch -------------------------------------------------------------------------------------


@pytest.fixture
def spied(calls_of):
    """A model, and the calls of its loss: ids, targets and state, and what came of them."""
    model = small_model()
    return model, calls_of(model, "loss")


def test_state_is_zero_at_the_start_of_an_epoch_and_carried_in_it(tmp_path, spied):
    model, calls = spied
    small_run(tmp_path, model=model, epochs=2)
    starts = [s.start for epoch in segments(2) for s in epoch]
    for i, start in enumerate(starts):
        _, _, given = calls[i].arguments
        if start == 0:
            assert given is None
            continue
        for mine, before in zip(given, calls[i - 1].result.state, strict=True):
            assert all(map(torch.equal, mine, before))
            assert not any(tensor.requires_grad for tensor in mine)
            assert all(tensor.abs().sum() > 0 for tensor in mine)
    assert starts.count(0) == 2


def test_partial_shuffle_rotates_the_streams_again_for_every_epoch(tmp_path):
    model, read = small_model(), []
    # Clones: the next epoch is rotated into the same memory.
    model.register_forward_pre_hook(lambda _, given: read.append([x.clone() for x in given[:2]]))
    small_run(tmp_path, model=model, epochs=3, partial_shuffle=True)
    data, left = batchify(text().train, BATCH), iter(read)
    for epoch, parts in enumerate(segments(3), 1):
        turned = rotated(data, rotations(3, epoch, len(data), BATCH))
        assert not torch.equal(turned, data)
        for segment in parts:
            assert all(map(torch.equal, next(left), inputs_and_targets(turned, segment)))
    assert next(left, None) is None


def test_reported_loss_is_the_mean_over_rows_without_regularisers(tmp_path, spied):
    model, calls = spied
    small_run(tmp_path, model=model, epochs=2, ar_weight=50.0, tar_weight=50.0, log_every=1)
    found = [call.result.nll.item() for call in calls]
    left = iter(found)
    epochs = [row for row in rows(tmp_path) if row["kind"] == "epoch"]
    for row, planned in zip(epochs, segments(2), strict=True):
        sizes = [s.length for s in planned]
        losses = [next(left) for _ in sizes]
        expected = np.average(losses, weights=sizes)
        assert row["train_loss"] == pytest.approx(expected, rel=1e-7)
        assert row["train_perplexity"] == pytest.approx(math.exp(expected), rel=1e-6)
        assert row["tokens"] == sum(sizes) * BATCH
        own = [each for each in all_rows(tmp_path) if each["epoch"] == row["epoch"]]
        steps = [each["train_loss"] for each in own if each["kind"] == "step"]
        assert steps == pytest.approx(losses, rel=1e-6)
    assert [row["step"] for row in epochs] == [len(segments(2)[0]), len(found)]


def test_averages_are_saved_as_the_best_and_iterates_in_the_checkpoint(tmp_path):
    small_run(tmp_path, "deep-residual", "asgd", epochs=1)
    best, last = (weights(path) for path in (RunFolder(tmp_path).best, RunFolder(tmp_path).last))
    for name, tensor in best.items():
        assert torch.equal(tensor, last[f"optimizer/{name}/average"])
        assert not torch.equal(tensor, last[f"model/{name}"])


@pytest.mark.parametrize("layer", ["tied", "mixture", "sampled"])
def test_outcome_is_that_of_the_saved_weights(tmp_path, layer):
    model = small_model(layer)
    outcome = small_run(tmp_path, optimizer="nt-asgd", model=model, epochs=4)
    fresh = small_model(layer, dropout=0.0)
    numbers = load_into(fresh, RunFolder(tmp_path).best)
    valid, test = (perplexity(fresh, ids, batch_size=size, bptt=BPTT)
                   for ids, size in ((text().valid, 10), (text().test, 1)))  # fmt: skip
    assert (outcome.valid, outcome.test) == (valid, test)
    assert (valid.batch_size, valid.tokens) == (10, 110)
    assert (test.batch_size, test.tokens) == (1, 89)
    assert numbers["epoch"] == outcome.best_epoch
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))  # it is the best one
    *epochs, last = rows(tmp_path)
    assert last == {
        "kind": "test", "epoch": outcome.best_epoch, "valid_loss": valid.nll / 110,
        "valid_perplexity": math.exp(valid.nll / 110),
        "valid_all_tokens": math.exp(valid.nll / 120),
        "test_loss": test.nll / 89, "test_perplexity": math.exp(test.nll / 89),
        "test_all_tokens": math.exp(test.nll / 90),
        "weights_fingerprint": fingerprint_in(RunFolder(tmp_path).best),
    }  # fmt: skip
    assert min(row["valid_loss"] for row in epochs) == last["valid_loss"]
    assert [row["epoch"] for row in epochs if row["best"]][-1] == outcome.best_epoch


@pytest.mark.parametrize(
    ("layer", "micro_batch"), [("deep-residual", 1), ("mixture", 3), ("adaptive", 3)]
)
def test_micro_batches_train_as_the_whole_batch_does(tmp_path, layer, micro_batch):
    options = {"dropout": 0.0, "dtype": torch.float64, "epochs": 1}
    small_run(tmp_path / "whole", layer, "asgd", **options)
    small_run(tmp_path / "pieces", layer, "asgd", micro_batch=micro_batch, **options)
    whole, pieces = (weights(RunFolder(tmp_path / name).last) for name in ("whole", "pieces"))
    assert whole.keys() == pieces.keys()
    for key, expected in whole.items():
        if not key.startswith("random/"):
            torch.testing.assert_close(pieces[key], expected, rtol=1e-10, atol=1e-12)
    assert_close_rows(tmp_path / "pieces", tmp_path / "whole", rel=1e-10)


# -- progress and options -------------------------------------------------------------------------


def test_progress_is_reported_and_a_row_ends_every_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("drill.training.loop.SHOW_EVERY", 0.0)
    reports: list[Progress] = []
    small_run(tmp_path, epochs=2, progress=reports.append)
    reports = [report for report in reports if report.work is None]
    ends = [report for report in reports if report.row is not None]
    assert [report.epoch for report in ends] == [1, 2]
    assert len(reports) == sum(map(len, segments(2))) + 2
    assert all(0.0 < report.share <= 1.0 for report in reports)
    assert [report.step for report in reports] == sorted(report.step for report in reports)
    assert all(math.isfinite(report.loss) and report.seconds_left >= 0.0 for report in reports)
    assert all(report.tokens_per_second > 0.0 for report in reports[2:])
    lines = [row for row in RunFolder(tmp_path).rows() if row["kind"] != "step"]
    assert 0.0 < lines[0]["elapsed"] < lines[1]["elapsed"] < lines[2]["elapsed"]
    assert [report.row for report in ends] == lines[:2]


def test_first_steps_do_not_count_for_the_time_left(tmp_path, monkeypatch):
    """In them kernels are compiled."""
    monkeypatch.setattr("drill.training.loop.SHOW_EVERY", 0.0)
    optimizer, reports = Spy(5.0), []

    def clock() -> float:
        """Each of the first two steps takes 10,000 seconds, others one."""
        steps = len(optimizer.calls)
        return 1e4 * min(steps, 2) + steps

    monkeypatch.setattr("time.monotonic", clock)
    small_run(tmp_path, optimizer=optimizer, epochs=2, progress=reports.append)
    left = [report.seconds_left for report in reports if report.work is None]
    planned = sum(map(len, segments(2)))
    assert left[:5] == [math.inf] * 5  # three more are too few to measure
    assert all(0.0 <= each < 3 * planned for each in left[5:])


def test_time_left_counts_the_last_validation_and_the_test(tmp_path, monkeypatch):
    monkeypatch.setattr("drill.training.loop.SHOW_EVERY", 0.0)
    seconds, reports = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])

    def show(report: Progress) -> None:
        reports.append(report)
        seconds[0] += 1.0 if report.work is None else 50.0

    small_run(tmp_path, epochs=2, progress=show)
    *_, last = (each for each in reports if each.work is None and each.row is None)
    validation = 50.0 * sum(each.work == "validation" for each in reports) / 2
    assert last.epoch == 2
    assert 2.0 * validation <= last.seconds_left < 2.5 * validation


def test_frozen_parameters_are_not_trained(tmp_path):
    model = small_model("deep-residual")
    model.encoder.embedding.weight.requires_grad_(False)
    before = model.encoder.embedding.weight.clone()
    small_run(tmp_path, optimizer="asgd", model=model, epochs=1)
    assert torch.equal(model.encoder.embedding.weight, before)
    assert "encoder.embedding.weight" in weights(RunFolder(tmp_path).best)


def test_tokens_per_second_excludes_validation(tmp_path, monkeypatch):
    def slow(*arguments, **options):
        time.sleep(0.3)
        return evaluate_tokens(*arguments, **options)

    monkeypatch.setattr("drill.language_modeling.train.evaluate_tokens", slow)
    small_run(tmp_path, epochs=2)
    for row in [row for row in RunFolder(tmp_path).rows() if row["kind"] == "epoch"][:2]:
        trained = row["tokens"] / row["tokens_per_second"]
        assert 0.0 < trained <= row["seconds"] - 0.3


@pytest.mark.parametrize("optimizer", ["nt-asgd", "late adamw"])
def test_validations_inside_an_epoch_do_not_change_training(tmp_path, optimizer):
    small_run(tmp_path / "plain", "deep-residual", optimizer, epochs=4)
    small_run(tmp_path / "often", "deep-residual", optimizer, epochs=4, validate_every=3)
    plain, often = run_state(tmp_path / "plain"), run_state(tmp_path / "often")
    changed = differences(plain, often)
    assert not [name for name in changed if name.startswith("last ") and name != "last numbers"]
    lines = rows(tmp_path / "often")
    steps = [row["step"] for row in lines if row["kind"] == "validation"]
    ends = [row["step"] for row in lines if row["kind"] == "epoch"]
    assert steps == [step for step in range(3, ends[-1], 3) if step not in ends]
    for kind in ("step", "epoch"):
        mine, theirs = (
            [row for row in each["all rows"] if row["kind"] == kind] for each in (plain, often)
        )
        assert [row | {"best": None} for row in mine] == [row | {"best": None} for row in theirs]
