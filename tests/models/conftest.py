import pytest


@pytest.fixture(autouse=True)
def own_seed(seeded):
    """Every test."""
