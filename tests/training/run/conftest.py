import pytest

from tests.tiny_place import make_place
from tests.tiny_translation_place import write_pairs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, pairs, a recipe and a trained language model."""
    folder = make_place(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    return folder
