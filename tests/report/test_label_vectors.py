"""Nearest labels and norms by frequency, and calibration: by hand, and for every kind of layer."""

import numpy as np
import pytest
import torch

from drill.language_modeling.evaluation.calibration import calibration
from drill.report.analysis.label_vectors import (
    LabelVectors,
    label_norms,
    label_vectors,
    nearest_labels,
    typical_labels,
)
from tests.helpers.language_models import BPTT, SMALL_LAYERS, small_model, text

VECTORS = LabelVectors(
    torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [3.0, 3.9]]), torch.eye(4)[:, :3] * 2
)
COUNTS = np.array([0, 7, 60, 8])


def test_norms_are_means_of_each_band():
    first, second, third = label_norms(VECTORS, COUNTS, edges=(1, 50))
    assert (first.label, first.types, first.embedding, first.output) == ("never", 1, 5.0, 2.0)
    assert (second.types, second.output) == (2, 1.0)
    assert (third.label, third.embedding) == ("50 and more", 2.0)
    (only,) = label_norms(VECTORS, COUNTS, edges=(1, 50), exclude=[0, 2])
    assert only.types == 2


def test_nearest_labels_are_by_cosine_without_the_label_itself():
    found = nearest_labels(VECTORS, 0, "abcd".__getitem__, COUNTS, top=2)
    assert (found.label, found.count) == ("a", 0)
    assert [name for name, _ in found.embedding] == ["d", "c"]
    assert found.embedding[1][1] == 0.8
    assert len(nearest_labels(VECTORS, 0, str).output) == 3


def test_typical_labels_are_in_the_middle_of_their_bands():
    assert typical_labels(COUNTS, edges=(1, 50)) == [0, 3, 2]
    assert typical_labels(COUNTS, edges=(1, 50), exclude=[0, 3]) == [1, 2]


@pytest.mark.parametrize("layer", SMALL_LAYERS)
def test_every_layer_has_label_vectors_and_a_calibration(layer):
    model = small_model(layer).eval()
    vectors = label_vectors(model.encoder.embedding, model.layer)
    E, labels = model.encoder.embedding.weight.detach(), model.layer.labels().detach()
    torch.testing.assert_close(vectors, LabelVectors(E - E.mean(0), labels - labels.mean(0)))
    ids = text().test
    found = calibration(model, ids, batch_size=2, bptt=BPTT)
    columns = torch.from_numpy(ids[: len(ids) // 2 * 2].astype("int64")).view(2, -1).t()
    with torch.no_grad():
        p = model.log_probs(columns[:-1])[0].exp().flatten(0, 1)
    confidence, guess = p.max(-1)
    right = (guess == columns[1:].flatten()).double()
    assert found.tokens == len(right)
    assert found.accuracy == pytest.approx(right.mean().item())
    assert found.confidence == pytest.approx(confidence.mean().item(), rel=1e-5)
    place = (confidence * 15).long()
    expected = sum(
        (right[place == n].sum() - confidence[place == n].sum()).abs().item() for n in range(15)
    )
    assert found.ece == pytest.approx(expected / len(right), rel=1e-4)
