"""Dynamic evaluation against a slow loop written from the equation, in float64."""

import dataclasses
import functools
import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from drill.data import DataError, Segment
from drill.language_modeling.evaluation.dynamic_evaluation import dynamic_perplexity
from drill.language_modeling.evaluation.gradient_statistics import (
    GradientReader,
    StaleStatistics,
    Statistics,
    gradient_statistics,
    weights_fingerprint,
)
from drill.language_modeling.evaluation.perplexity import perplexity
from drill.models.language_model import LanguageModel
from drill.training.cuda_graphs import GraphCapture
from tests.language_modeling.models import every_layer, language_model, measured, text
from tests.layers.table import one_of_each_layer

STRONG = {"lr": 0.02, "decay": 0.3, "eps": 1e-3}  # so that a wrong term shows


def gradients(model: LanguageModel, ids: np.ndarray, batch: int, bptt: int):
    """Loss and gradients of each segment, by hand: eval mode, an own walk over an own layout."""
    rows = len(ids) // batch
    data = torch.tensor(ids[: rows * batch].astype(int)).view(batch, rows).t()
    state = model.initial_state(batch)
    for start in range(0, rows - 1, bptt):
        stop = min(start + bptt, rows - 1)
        model.eval()
        model.zero_grad()
        log_probs, state = model.log_probs(data[start:stop], state)
        state = tuple(tuple(s.detach() for s in layer) for layer in state)
        loss = -log_probs.gather(-1, data[start + 1 : stop + 1, :, None]).mean()
        loss.backward()
        model.train()
        yield stop - start, loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}


def slow_statistics(model: LanguageModel, ids: np.ndarray, batch: int, bptt: int):
    each = [grads for _, _, grads in gradients(model, ids, batch, bptt)]
    model.zero_grad()
    return {name: sum(g[name] ** 2 for g in each).div(len(each)).sqrt() for name in each[0]}


def slow_dynamic(
    model: LanguageModel,
    ids: np.ndarray,
    MS: dict[str, Tensor],
    bptt: int,
    lr: float,
    decay: float,
    eps: float,
) -> float:
    """theta <- theta + decay min(MS / gsum, 1 / decay) (theta0 - theta) - lr grad / (MS + eps)."""
    theta0 = {name: p.detach().clone() for name, p in model.named_parameters()}
    gsum = sum(float(ms.mean()) for ms in MS.values()) / len(MS)
    nll = 0.0
    for length, loss, grads in gradients(model, ids, 1, bptt):
        nll += length * loss
        for name, p in model.named_parameters():
            rate = (MS[name] / gsum).clamp(max=1 / decay if decay else math.inf)
            pull = decay * rate * (theta0[name] - p.data)
            p.data = p.data + pull - lr * grads[name] / (MS[name] + eps)
    for name, p in model.named_parameters():
        p.data = theta0[name]
    model.zero_grad()
    return nll


@every_layer
def test_statistics_and_losses_of_every_layer_are_those_of_the_equation(name):
    model, train, test = language_model(name), text(130), text(38, seed=1)
    truth = slow_statistics(model, train, batch=4, bptt=3)
    statistics = gradient_statistics(model, train, batch_size=4, segment_length=3)
    assert statistics.batches == 11  # 32 rows, 31 of them predicted
    torch.testing.assert_close(statistics.roots, truth, rtol=1e-7, atol=1e-12)
    nll = slow_dynamic(model, test, truth, 5, **STRONG)
    found = dynamic_perplexity(model, test, statistics, segment_length=5, **STRONG)
    assert found.nll == pytest.approx(nll, rel=1e-9)
    assert (found.tokens, found.batch_size) == (37, 1)
    assert found.nll != pytest.approx(perplexity(model, test, batch_size=1).nll, rel=1e-4)


def test_decay_never_goes_past_the_initial_weights():
    """The clip: decay times the rate is at most 1. Without it this text has another loss."""
    model, train, test = language_model(), text(130), text(60, seed=1)
    statistics = gradient_statistics(model, train, batch_size=4, segment_length=3)
    MS, strong = slow_statistics(model, train, 4, 3), {"lr": 0.02, "eps": 1e-3, "decay": 0.9}
    rates = statistics.rates(0.9)
    assert max(float(rate.max()) for rate in rates.values()) == pytest.approx(1 / 0.9)
    assert max(float(rate.max()) for rate in statistics.rates(0.0).values()) > 2
    found = dynamic_perplexity(model, test, statistics, **strong).nll
    assert found == pytest.approx(slow_dynamic(model, test, MS, 5, **strong), rel=1e-9)


def test_limit_reads_the_beginning_only():
    model, ids = language_model(), text(60)
    statistics = gradient_statistics(model, ids, batch_size=4)
    found = dynamic_perplexity(model, ids, statistics, limit=20, **STRONG)
    assert found == dynamic_perplexity(model, ids[:21], statistics, **STRONG)
    assert found.tokens == 20
    assert dynamic_perplexity(model, ids, statistics, limit=1000).tokens == 59


def test_frozen_parameters_stay_where_they_are():
    model = language_model("tied")
    model.encoder.embedding.weight.requires_grad_(False)
    statistics = gradient_statistics(model, text(100), batch_size=4)
    assert "encoder.embedding.weight" not in statistics.roots
    frozen, seen = model.encoder.embedding.weight.clone(), []

    def look(done, total):
        seen.append(torch.equal(model.encoder.embedding.weight, frozen))

    dynamic_perplexity(model, text(60), statistics, progress=look, **STRONG)
    assert seen
    assert all(seen)
    model.encoder.embedding.weight.requires_grad_(True)
    with pytest.raises(StaleStatistics, match=r"encoder\.embedding\.weight"):
        dynamic_perplexity(model, text(60), statistics)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter is trained"):
        gradient_statistics(model, text(100), batch_size=4)


# -- statistics on disk ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))  # sums in another order differ for some weights only
def test_statistics_from_a_file_give_the_same_bits(tmp_path, seed):
    model = language_model(dtype=torch.float32, seed=seed)
    made = gradient_statistics(model, text(400, seed), batch_size=4)
    turned = dict(reversed(made.roots.items()))  # a file has an order of its own
    made.save(tmp_path / "s")
    for other in (Statistics.load(tmp_path / "s"), dataclasses.replace(made, roots=turned)):
        assert list(other.roots) != list(made.roots)
        for name, rate in made.rates(0.1).items():
            assert torch.equal(other.rates(0.1)[name], rate), name


def test_file_is_read_again_only_for_the_same_weights_text_segments_and_precision(
    tmp_path, monkeypatch
):
    model, path, passes = language_model(), tmp_path / "statistics.safetensors", []

    def gather(ids, **options):
        before = len(passes)
        made = gradient_statistics(
            model, ids, file=path, progress=lambda *_: passes.append(1), **options
        )
        return made, len(passes) > before

    for ids, options in (
        (text(100), {"batch_size": 4}),
        (text(100, seed=1), {"batch_size": 4}),
        (text(100), {"batch_size": 5}),
        (text(100), {"batch_size": 5, "segment_length": 7}),
    ):
        assert gather(ids, **options)[1]
        assert not gather(ids, **options)[1]
    with torch.no_grad():
        model.layer.bias[0] += 1e-9
    made, gathered = gather(text(100), batch_size=5, segment_length=7)
    assert (gathered, made.precision) == (True, "float32")
    dynamic_perplexity(model, text(60), made)
    module = sys.modules["drill.language_modeling.evaluation.gradient_statistics"]
    monkeypatch.setattr(module, "current_precision", lambda _: "tf32 in products")
    made, gathered = gather(text(100), batch_size=5, segment_length=7)
    assert (gathered, made.precision) == (True, "tf32 in products")
    assert Statistics.load(path).precision == "tf32 in products"


@pytest.mark.parametrize("content", [b"", b"no safetensors", b"\x02\0\0\0\0\0\0\0{}"])
def test_damaged_file_is_an_error(tmp_path, content):
    path = tmp_path / "statistics.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"statistics\.safetensors"):
        gradient_statistics(language_model(), text(100), batch_size=4, file=path)
    with pytest.raises(DataError, match=r"missing\.safetensors"):
        Statistics.load(tmp_path / "missing.safetensors")


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", -1.0), ("lr", math.nan), ("decay", math.inf), ("eps", 0.0), ("eps", math.nan),
        ("limit", 0), ("segment_length", 0),
    ],
)  # fmt: skip
def test_invalid_settings_raise(option, value):
    model, statistics = measured()
    with pytest.raises(ValueError, match=f"{option}|bptt must be at least 1"):
        dynamic_perplexity(model, text(60), statistics, **{option: value})


def test_bfloat16_weights_raise():
    model = language_model(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="bfloat16"):
        gradient_statistics(model, text(100), batch_size=4)


def test_model_without_gradients_raises():
    model = language_model("tied")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.layer.bias[3] = 1e4  # p = 1, so nothing changes it
    with pytest.raises(FloatingPointError, match="every gradient is 0"):
        gradient_statistics(model, np.full(100, 3), batch_size=4)


def test_replays_increment_the_versions_of_parameters(monkeypatch):
    model, ids = language_model(), text(60)
    parameters = list(model.parameters())
    data = torch.tensor(ids.astype(int))[:, None]
    read = GradientReader(model, parameters, data, lambda nll, grads, length: None)
    read.graphs = GraphCapture(data.device, instead="")
    monkeypatch.setattr(read.graphs, "capture", lambda work: lambda: None)
    for count in (0, 1, 2):
        before = [p._version for p in parameters]
        read(Segment(0, 5, 5))
        grown = [p._version - old for p, old in zip(parameters, before, strict=True)]
        assert grown == [min(count, 1)] * len(parameters)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_on_a_gpu_it_is_the_same(cuda_graphs, monkeypatch):
    model, test = language_model(), text(200, seed=1)
    statistics = gradient_statistics(model, text(400), batch_size=4)
    truth = dynamic_perplexity(model, test, statistics, **STRONG)
    reader = functools.partial(GradientReader, cuda_graphs=cuda_graphs)
    for name in ("gradient_statistics", "dynamic_evaluation"):
        module = sys.modules[f"drill.language_modeling.evaluation.{name}"]
        monkeypatch.setattr(module, "GradientReader", reader)
    model = model.cuda()
    again = gradient_statistics(model, text(400), batch_size=4)
    torch.testing.assert_close(again.roots, statistics.roots)
    found = dynamic_perplexity(model, test, statistics, **STRONG)
    assert found.nll == pytest.approx(truth.nll, rel=1e-6)


# -- fingerprints ------------------------------------------------------------------------------


@one_of_each_layer
def test_fingerprint_is_of_every_bit_and_of_no_mode(name):
    model = language_model(name)
    before = weights_fingerprint(model)
    assert weights_fingerprint(language_model(name).eval()) == before
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        last = flat[-1].clone()
        flat[-1] = torch.nextafter(last, flat.new_tensor(torch.inf))
        assert weights_fingerprint(model) != before
        flat[-1] = last
    assert weights_fingerprint(model) == before


def test_fingerprint_is_of_the_settings_of_a_layer():
    names = ("deep residual 2", "deep residual relu", "deep residual without map bias")
    assert len({weights_fingerprint(language_model(name)) for name in names}) == 3
