import pytest


@pytest.fixture
def cli_error(run_cli):
    """Runs `drill`, which must end with 1 and one line that names ``key``; returns that line."""

    def check(*words: str, key: str, **options: object) -> str:
        code, _, err = run_cli(*words, **options)
        assert code == 1
        assert "Traceback" not in err
        last = err.splitlines()[-1]
        assert last.startswith("drill: ")
        assert key in last
        return last

    return check
