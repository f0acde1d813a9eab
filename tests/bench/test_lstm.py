"""The LSTM benchmark: batches of one's own, and errors that would show."""

import json
import sys

import lstm
import pytest
import torch
from setting import Setting, Size

SETTING = Setting("ptb", Size(28, 100, 8), "float32", torch.device("cpu"))


def test_batches_that_are_asked_for_have_rows_of_their_own(monkeypatch, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    arguments = ["--quick", "--device", "cpu", "--batch", "3", "5", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["lstm.py", *arguments])
    lstm.main()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["size"], row["batch"], row["tokens"]) for row in rows] == [
        ("batch 3", 3, 3 * lstm.QUICK_STEPS),
        ("batch 5", 5, 5 * lstm.QUICK_STEPS),
    ]
    printed = capsys.readouterr().out
    for row in rows:
        assert f"{row['output_error']:.1e}" in printed
        assert f"{row['gradient_error']:.1e}" in printed


@pytest.mark.parametrize("spoilt", [0, 2, 3, 9])
def test_an_error_in_any_result_or_gradient_shows(monkeypatch, spoilt):
    truth = lstm.Truth(SETTING, 7)
    exact = truth.errors("cudnn")
    assert 0 < max(exact.values()) < 1e-5
    solve = lstm.solve

    def wrong(*given):
        found = solve(*given)
        found[spoilt] = 1.01 * found[spoilt]
        return found

    monkeypatch.setattr(lstm, "solve", wrong)
    seen = truth.errors("cudnn")
    key = "output_error" if spoilt < 3 else "gradient_error"
    other = next(each for each in seen if each != key)
    assert seen[key] == pytest.approx(0.01, rel=1e-2)
    assert seen[other] == exact[other]
