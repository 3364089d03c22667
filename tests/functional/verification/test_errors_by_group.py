import torch

from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.errors_by_group import group_errors


def test_pairs_at_the_threshold_are_accepted() -> None:
    """Four samples at right angles, two classes, a class's samples in groups 0 and 1."""
    labels, groups = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    at, above = (group_errors(PairDistances(torch.eye(4), labels), groups, 2, cosine) for cosine in (0.0, 1e-6))
    assert at.false_accepts.sum(dim=0).tolist() == [[2, 4], [4, 2]]  # a pair counts for both its classes
    assert at.false_rejects.sum() == above.false_accepts.sum() == 0
    assert torch.equal(at.false_accepts, at.impostor_pairs) and torch.equal(above.false_rejects, at.genuine_pairs)
