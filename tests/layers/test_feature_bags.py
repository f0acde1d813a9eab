import pytest
import torch

from drill.layers import FeatureBags, TiedSoftmax

LABELS = [[[0, 1], [4]], [[1, 2], []], [[], []], [[3], [0, 1, 2]]]
WEIGHTS = [
    [0.5, 0.5, 0, 0, 0.5**0.5],
    [0, 0.5**0.5, 0.5**0.5, 0, 0],
    [0, 0, 0, 0, 0],
    [6**-0.5, 6**-0.5, 6**-0.5, 0.5**0.5, 0],
]
ROWS = torch.tensor([3, 0, 2, 3, 1])


def source() -> FeatureBags:
    torch.manual_seed(0)
    return FeatureBags(LABELS, features=5, embedding_dim=3).double()


def test_labels_are_weighted_sums_of_features():
    bags = source()
    expected = torch.tensor(WEIGHTS).double() @ bags.embedding
    torch.testing.assert_close(bags(), expected, atol=1e-6, rtol=1e-6)  # weights are float32
    torch.testing.assert_close(bags(ROWS), bags()[ROWS])
    with torch.no_grad():
        torch.testing.assert_close(bags(ROWS), bags()[ROWS])


def test_labels_can_be_added():
    bags = source()
    layer, before = TiedSoftmax(bags), bags().detach()
    bags.extend([[[2], []], [[0, 1], [4]]])
    layer.resize(6)
    torch.testing.assert_close(bags(), torch.cat([before, bags.embedding[2:3], before[:1]]))
    assert layer.log_probs(torch.randn(2, 3).double()).shape == (2, 6)
    layer.nll(torch.randn(2, 3).double(), torch.tensor([4, 5])).backward()
    assert bags.embedding.grad is not None


@pytest.mark.parametrize("labels", [[], [[[5]]], [[[-1]]]])
def test_wrong_labels(labels):
    with pytest.raises(ValueError, match="labels"):
        FeatureBags(labels, features=5, embedding_dim=3)
