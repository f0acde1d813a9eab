"""The LSTM benchmark: batches of one's own, and errors that would show."""

import json
import sys

import lstm


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
