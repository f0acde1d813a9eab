import pytest

from tests.tiny_place import make_place
from tests.tiny_translation_place import write_pairs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, pairs, a recipe and a language model, one per file of tests."""
    folder = make_place(tmp_path_factory.mktemp("place"))
    write_pairs(folder / "pairs")
    return folder


@pytest.fixture
def fails(drill):
    """The command ends with 1 and one line that names ``key``; returns that line."""

    def check(*words: str, key: str, **options: object) -> str:
        code, _, err = drill(*words, **options)
        assert code == 1
        assert "Traceback" not in err
        last = err.splitlines()[-1]
        assert last.startswith("drill: ")
        assert key in last
        return last

    return check
