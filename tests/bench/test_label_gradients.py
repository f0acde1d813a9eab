"""The gradient of E by role adds up to that of training, and a table has a line per point."""

import sys

import label_gradients
import pytest
import torch

from drill.layers import DeepResidual
from drill.models import AwdLstm
from drill.models.language_model import LanguageModel
from tests.bench.test_epoch import SMALL, TEXT


@pytest.mark.parametrize("depth", [0, 2])
def test_roles_add_up(depth):
    torch.manual_seed(0)
    E = torch.nn.Embedding(7, 6)
    model = LanguageModel(AwdLstm(E, 8, 1), DeepResidual(E, depth=depth)).double().eval()
    text = torch.randint(7, (21, 3))
    by_input, by_label, of_labels = label_gradients.gradients(model, text, 5)
    assert (by_label.norm() == of_labels.norm()) == (depth == 0)
    state = None
    for i in range(0, 20, 5):
        given = text[i : i + 5], text[i + 1 : i + 6], state
        loss = model.loss(*given, ar_weight=0.0, tar_weight=0.0)
        (loss.total / 4).backward()
        state = loss.state
    torch.testing.assert_close(by_input + by_label, E.weight.grad)


def test_a_table(monkeypatch, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(8 * TEXT)
    options = ["--recipe", "demo-tied", "--steps", "7", "--set"]
    options += [f"data.corpus={tmp_path / 'text.txt'}", *SMALL]
    monkeypatch.setattr(sys, "argv", ["label_gradients.py", *options])
    label_gradients.main()
    names, *rows, last = capsys.readouterr().out.splitlines()
    assert names.split() == label_gradients.COLUMNS
    assert [row.split()[0] for row in rows] == list("01234567")
    assert all(row.split()[4:6] == ["1.000", "1.000"] for row in rows)  # tied
    assert last.startswith("validation perplexity ")
