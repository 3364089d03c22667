"""Eigenvalues of the classes' covariances."""

import numpy as np
import pytest
import torch

from pml_ext.reports.class_covariances import class_eigenvalues, covariance_picture
from tests.reports.small_set import overhang


def test_they_are_those_of_numpy_on_each_class() -> None:
    identities = np.repeat([3, -1, 5, 9, 7], [6, 4, 5, 1, 8])
    x = torch.randn(24, 6, dtype=torch.float64) * torch.arange(1, 7)
    rows = (x / x.norm(dim=1, keepdim=True)).numpy()[identities >= 0]
    labels = identities[identities >= 0]
    axes = np.linalg.eigh(np.cov(rows.T))[1][:, ::-1][:, :3]
    expected = [np.sort(np.linalg.eigvalsh(np.cov((rows[labels == c] @ axes).T)))[::-1] for c in (3, 5, 7)]
    np.testing.assert_allclose(class_eigenvalues(x, identities), expected, rtol=1e-9, atol=1e-12)


def test_fewer_dimensions_and_equal_samples_are_finite() -> None:
    assert class_eigenvalues(torch.ones(6, 1), np.repeat([0, 1], 3)).tolist() == [[0.0], [0.0]]
    picture = covariance_picture({"trained": torch.randn(12, 2), "untrained": torch.randn(12, 2)}, np.arange(12) % 3)
    assert overhang(picture) < 1 and "trained: " in picture.caption and "nan" not in picture.caption


def test_classes_of_one_sample_have_none() -> None:
    with pytest.raises(ValueError, match="no class has two samples"):
        class_eigenvalues(torch.randn(4, 3), np.arange(4))
