"""The precision of a run; bfloat16 on a CPU that has no units for it: one sentence, no warning."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from drill.language_modeling.evaluation.perplexity import perplexity
from drill.training import precision
from drill.training.precision import (
    autocast_to,
    has_bfloat16_units,
    matmul_precision,
    resolve_precision,
)
from tests.helpers.language_models import small_model, small_run
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


@pytest.mark.skipif(has_bfloat16_units(CPU), reason="this CPU has bfloat16 units")
def test_without_units_training_and_evaluation_run_and_torch_warns_of_nothing(tmp_path, caplog):
    """By itself torch would try oneDNN, which has no LSTM in bfloat16 there."""
    model, ids = language_model("tied", torch.float32), text(200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        perplexity(model, ids, batch_size=4, autocast=torch.bfloat16)
        small_run(tmp_path, epochs=1, precision="bfloat16")
    assert warned(caplog)


# -- of a run ------------------------------------------------------------------------------------


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    ("precision", "inside", "before"),
    [("float32", False, True), ("tf32", True, False), ("bfloat16", True, False)],
)
def test_precision_is_set_for_the_run_only(tmp_path, precision, inside, before):
    found, outside = [], flags()
    for place in (torch.backends.cuda.matmul, torch.backends.cudnn):
        place.allow_tf32 = before
    try:
        small_run(tmp_path, epochs=1, precision=precision,
                  progress=lambda report: found.append(flags()))  # fmt: skip
        assert set(found) == {(inside, inside)}
        assert flags() == (before, before)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = outside


@pytest.mark.parametrize(
    ("precision", "device", "capability", "expected"),
    [
        ("auto", "cpu", (9, 0), "float32"), ("auto", "cuda", (7, 5), "tf32"),
        ("auto", "cuda", (8, 0), "bfloat16"), ("tf32", "cuda", (8, 0), "tf32"),
        ("tf32", "cpu", (8, 0), "float32"), ("tf32", "mps", (8, 0), "float32"),
        ("bfloat16", "cpu", (8, 0), "bfloat16"),
    ],
)  # fmt: skip
def test_precision_of_a_device(monkeypatch, precision, device, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_precision(precision, torch.device(device)) == expected


@pytest.mark.parametrize(("precision", "expected"), [("bfloat16", True), ("tf32", False)])
def test_steps_and_validation_run_under_the_autocast_of_the_precision(
    tmp_path, precision, expected
):
    model, seen = small_model(), []

    def note(module, given):
        seen.append((module.training, torch.is_autocast_enabled("cpu")))

    model.encoder.register_forward_pre_hook(note)
    small_run(tmp_path, model=model, epochs=1, precision=precision)
    assert set(seen) == {(True, expected), (False, expected)}
