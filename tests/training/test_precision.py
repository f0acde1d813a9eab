"""bfloat16 on a CPU that has no units for it: one sentence, and no warning of torch's own."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from drill.language_modeling.evaluation.perplexity import perplexity
from drill.training import precision
from drill.training.precision import autocast_to, has_bfloat16_units, matmul_precision
from tests.helpers.language_models import small_run
from tests.language_modeling.models import language_model, text

CPU = torch.device("cpu")


def warned(caplog) -> bool:
    """Whether there was exactly one warning; more are an error."""
    assert all("no bfloat16 units" in each for each in caplog.messages)
    assert len(caplog.messages) <= 1
    return bool(caplog.messages)


@pytest.fixture(autouse=True)
def forget_warnings():
    precision._warn_of_slow_bfloat16.cache_clear()
    yield
    precision._warn_of_slow_bfloat16.cache_clear()


@pytest.fixture(params=[True, False], ids=["units", "no units"])
def units(request, monkeypatch) -> bool:
    monkeypatch.setattr(precision, "has_bfloat16_units", lambda device: request.param)
    return request.param


@pytest.mark.parametrize("supported", [True, False])
def test_onednn_reports_what_the_cpu_has(monkeypatch, supported):
    ops = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: supported)
    monkeypatch.setattr(torch.ops, "mkldnn", ops)
    assert has_bfloat16_units(CPU) == supported
    assert has_bfloat16_units(torch.device("cuda"))
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())  # a torch without oneDNN
    assert has_bfloat16_units(CPU)


@pytest.mark.parametrize("enter", [lambda: matmul_precision("bfloat16", CPU),
                                   lambda: autocast_to(CPU, torch.bfloat16)])  # fmt: skip
def test_without_units_a_sentence_comes_once_and_onednn_is_off_inside(enter, units, caplog):
    before = torch.backends.mkldnn.enabled
    for _ in range(2):
        with enter():
            assert torch.backends.mkldnn.enabled == (before and units)
        assert torch.backends.mkldnn.enabled == before
    assert warned(caplog) == (not units)


@pytest.mark.parametrize("chosen", ["auto", "tf32", "float32"])
def test_other_precisions_need_no_units(chosen, monkeypatch, caplog):
    monkeypatch.setattr(precision, "has_bfloat16_units", lambda device: False)
    with matmul_precision(chosen, CPU) as dtype, autocast_to(CPU, dtype):
        assert dtype is None
    assert not warned(caplog)


@pytest.mark.skipif(has_bfloat16_units(CPU), reason="this CPU has bfloat16 units")
def test_without_units_training_and_evaluation_run_and_torch_warns_of_nothing(tmp_path, caplog):
    """By itself torch would try oneDNN, which has no LSTM in bfloat16 there."""
    model, ids = language_model("tied", torch.float32), text(200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        perplexity(model, ids, batch_size=4, autocast=torch.bfloat16)
        small_run(tmp_path, epochs=1, precision="bfloat16")
    assert warned(caplog)
