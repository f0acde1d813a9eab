import os
from pathlib import Path

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# After the variable: kernels read it when they are imported.
from drill import files as user_cache
from tests.tiny_place import typed

# On a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


def pytest_collection_modifyitems(items):
    """Leave out what this machine cannot run."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def onednn():
    """Torch disables oneDNN at the first product that it lacks: no later test is to notice."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = before


@pytest.fixture
def here(place, monkeypatch):
    """The folder that the test's own file makes, and in it."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    return place


@pytest.fixture
def drill(place, monkeypatch, capfd):
    """The command, typed in that folder."""
    return typed(place, monkeypatch, capfd)


@pytest.fixture
def nan_in_fresh_memory():
    """Memory nobody wrote reads as NaN, so that a gradient left unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def default_dtype():
    """Sets torch's default dtype, until the test ends."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.fixture
def unwarned():
    """A cache that cannot be written is warned about again."""
    user_cache._warn_once.cache_clear()


@pytest.fixture
def homeless(monkeypatch, unwarned):
    """As a user without a home, who has named no folders instead."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    for name in ("DRILL_DATA", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
