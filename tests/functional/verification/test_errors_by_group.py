import pytest
import torch

from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.errors_by_group import garbe, gini, group_errors


def test_gini_and_garbe_of_an_example() -> None:
    """Of the rates 1, 2 and 3 the differences, each pair twice, add up to 8: 8 / (2 · 3 · (3 − 1) · their mean)."""
    uneven, even = torch.tensor([1.0, 2, 3]), torch.tensor([0.2, 0.2, 0.2])
    assert gini(uneven).item() == pytest.approx(1 / 3)
    assert gini(torch.tensor([0.0, 0.4])).item() == pytest.approx(1), "one group has all errors"
    assert garbe(uneven, even, alpha=0.25).item() == pytest.approx(0.25 / 3)
    assert garbe(even, uneven, alpha=0.25).item() == pytest.approx(0.75 / 3)


def test_pairs_at_the_threshold_are_accepted() -> None:
    """Four samples at right angles, two classes, a class's samples in groups 0 and 1."""
    labels, groups = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    at, above = (group_errors(PairDistances(torch.eye(4), labels), groups, 2, cosine) for cosine in (0.0, 1e-6))
    assert at.false_accepts.sum(dim=0).tolist() == [[2, 4], [4, 2]]  # a pair counts for both its classes
    assert at.false_rejects.sum() == above.false_accepts.sum() == 0
    assert torch.equal(at.false_accepts, at.impostor_pairs) and torch.equal(above.false_rejects, at.genuine_pairs)
