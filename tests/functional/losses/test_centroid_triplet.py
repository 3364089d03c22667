import pytest
import torch

from pml_ext.functional.losses.centroid_triplet import class_means, means_of_others
from tests.oracles.triplets import mean

CLASSES = [0, 1, 0, 2, 1, 0, 3, 0]


def test_means_with_and_without_the_sample() -> None:
    x = torch.randn(8, 3, dtype=torch.float64)
    classes = torch.tensor(CLASSES)
    rows = x.tolist()
    for c in range(4):
        expected = mean([rows[i] for i in range(8) if CLASSES[i] == c])
        assert class_means(x, classes, 4)[c].tolist() == pytest.approx(expected, abs=1e-14)
    left_out = means_of_others(x, classes, 4)
    assert left_out.isfinite().all()
    for i in (0, 1, 2, 4, 5, 7):
        expected = mean([rows[j] for j in range(8) if CLASSES[j] == CLASSES[i] and j != i])
        assert left_out[i].tolist() == pytest.approx(expected, abs=1e-14)


def test_gradients() -> None:
    x, classes = torch.randn(8, 3, dtype=torch.float64, requires_grad=True), torch.tensor(CLASSES)
    assert torch.autograd.gradcheck(lambda x: class_means(x, classes, 4), (x,))
    assert torch.autograd.gradcheck(lambda x: means_of_others(x, classes, 4), (x,))
