import pytest

from tests.tiny_place import make_place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, a recipe and a trained language model, one per file of tests."""
    return make_place(tmp_path_factory.mktemp("place"))


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
