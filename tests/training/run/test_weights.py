"""Which weights of a run are read, and by which kernels."""

import pytest

from drill.errors import CheckpointError
from drill.training.run.folder import RunFolder
from drill.training.run.weights import by_any_kernels, read_weights
from drill.training.settings import recipe
from tests.helpers.language_models import small_run


def test_last_weights_in_place_of_the_best_are_announced(tmp_path, caplog):
    small_run(tmp_path, "tied", "adamw", epochs=1)
    run = RunFolder(tmp_path)
    assert read_weights(run, None)[1].weights == "best"
    assert caplog.messages == []
    with pytest.raises(CheckpointError, match="averaged") as caught:
        read_weights(run, "averaged")
    assert caught.value.key == str(tmp_path)
    assert caught.value.hint == "take --weights best or take --weights last"
    run.best.unlink()
    assert read_weights(run, None)[1].weights == "last"
    assert [str(tmp_path) in message for message in caplog.messages] == [True]


def test_kernels_that_not_every_machine_has_become_auto():
    mixture = recipe("ptb-mos-drill", ["encoder.impl=graph", "layer.inner.impl=triton"])
    used = by_any_kernels(mixture)
    assert (used.encoder["impl"], used.layer["inner"]["impl"]) == ("auto", "auto")
    slow = recipe("ptb-mos-drill", ["encoder.impl=cudnn", "layer.inner.impl=reference"])
    assert by_any_kernels(slow) == slow
