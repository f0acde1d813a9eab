import pytest

from tests.cli_translation_workspace import write_pairs
from tests.cli_workspace import make_workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, pairs, a recipe and a language model, one per file of tests."""
    folder = make_workspace(tmp_path_factory.mktemp("place"))
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
