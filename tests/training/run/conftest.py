import pytest

from tests.cli_translation_workspace import write_pairs
from tests.cli_workspace import make_workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, pairs, a recipe and a trained language model."""
    folder = make_workspace(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    return folder
