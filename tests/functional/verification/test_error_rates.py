import math

import pytest
import torch
from pytest import approx

from pml_ext.functional import PairDistances, contiguous_folds, errors_at, fold_accuracy
from pml_ext.functional.verification.errors_by_group import group_errors
from tests.oracles import verification as oracle
from tests.refusals import refusals

DTYPES = [torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_at_thresholds_equal_the_loops(dtype):
    same = torch.arange(90) < 30
    scores = ((torch.randn(90) + same) * 4).round().div(8).to(dtype)
    for threshold, accepts, false_accepts in oracle.operating_points(scores.tolist(), same.tolist()):
        found = errors_at(scores, same, threshold)
        assert (30 - int(found.false_rejects), int(found.false_accepts)) == (accepts, false_accepts)
        assert (found.far.item(), found.frr.item()) == approx((false_accepts / 60, 1 - accepts / 30))
    # float16 would round this threshold to a score.
    assert errors_at(scores, same, float(scores.max()) + 1e-6).false_accepts == 0
    with pytest.raises(ValueError, match="thresholds must be numbers; got nan"):
        errors_at(scores, same, torch.tensor([0.1, torch.nan]))
    of_one_kind = errors_at(scores, torch.ones_like(same), 0.5)
    assert of_one_kind.far.isnan() and not of_one_kind.frr.isnan()


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fold_accuracy_equals_the_loops(ties, dtype):
    same, folds = torch.arange(200) % 5 < 2, torch.randint(0, 4, (200,)) * 3 - 1
    scores = (0.3 * torch.randn(200) + 0.4 * same).to(dtype)
    if ties:
        scores = (scores * 4).round() / 4
    found = fold_accuracy(scores, same, folds)
    expected = oracle.fold_accuracies(scores.tolist(), same.tolist(), folds.tolist())
    for ours, theirs in zip((found.accuracies, found.thresholds), zip(*expected, strict=True), strict=True):
        assert ours.tolist() == approx(theirs, rel=1e-12)
    mean = sum(accuracy for accuracy, _ in expected) / 4
    deviation = math.sqrt(sum((accuracy - mean) ** 2 for accuracy, _ in expected) / 3)
    assert (found.mean.item(), found.standard_error.item()) == approx((mean, deviation / 2))


WRONG = torch.tensor([0.0, 0, 0, 1] * 2)  # the genuine pair below: accepting nothing is best, or everything
ADJACENT = torch.tensor([1 + 2**-10, 1.0, 1.0, 1.0] * 2, dtype=torch.float16)


@pytest.mark.parametrize(("scores", "threshold"), [(WRONG, math.inf), (-WRONG, -math.inf), (ADJACENT, 1 + 2**-11)])
def test_thresholds_beyond_all_scores_and_between_adjacent_16_bit_scores(scores, threshold):
    same = torch.tensor([1, 0, 0, 0]).bool().repeat(2)
    found = fold_accuracy(scores, ~same if threshold == -math.inf else same, torch.arange(8) // 4)
    assert found.thresholds.tolist() == [threshold] * 2 and found.mean == (1 if scores is ADJACENT else 0.75)


def test_contiguous_folds():
    assert contiguous_folds(6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    sizes = contiguous_folds(6007).bincount()
    assert len(sizes) == 10 and int(sizes.max() - sizes.min()) == 1


SCORES, SAME, FOLDS = torch.rand(8), torch.arange(8) % 2 == 0, torch.arange(8) // 4


REFUSED = [
    (lambda: contiguous_folds(9), "10 folds need at least 10 pairs; got 9"),
    (lambda: contiguous_folds(9, 1), "folds must be at least 2"),
    (lambda: fold_accuracy(SCORES, SAME | (FOLDS == 1), FOLDS), r"fold 1 has only genuine pairs \(4\)"),
    (lambda: fold_accuracy(SCORES, SAME, 0 * FOLDS), "at least 2 folds"),
    (lambda: fold_accuracy(SCORES, SAME, FOLDS + 0.5), "fold_ids must be of integer type"),
]
test_errors = refusals(REFUSED)


def test_group_errors_accept_pairs_at_the_threshold():
    """Four samples at right angles, two classes, a class's samples in groups 0 and 1."""
    labels, groups = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    at, above = (group_errors(PairDistances(torch.eye(4), labels), groups, 2, cosine) for cosine in (0.0, 1e-6))
    assert at.false_accepts.sum(dim=0).tolist() == [[2, 4], [4, 2]]  # a pair counts for both its classes
    assert at.false_rejects.sum() == above.false_accepts.sum() == 0
    assert torch.equal(at.false_accepts, at.impostor_pairs) and torch.equal(above.false_rejects, at.genuine_pairs)
