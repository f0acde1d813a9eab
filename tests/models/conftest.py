import pytest


@pytest.fixture(autouse=True)
def own_seed(fixed_seed):
    """Every test."""
