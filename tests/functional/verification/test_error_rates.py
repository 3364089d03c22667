import math

import pytest
import torch
from scipy.stats import t

from pml_ext.functional import PairDistances, contiguous_folds, errors_at, fold_accuracy
from pml_ext.functional.verification.errors_by_group import group_errors, interval_by_stratum, rates_without_each
from tests.oracles import verification as oracle

DTYPES = [torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_at_thresholds_equal_the_loops(dtype):
    same = torch.arange(90) < 30
    scores = ((torch.randn(90) + same) * 4).round().div(8).to(dtype)
    for threshold, accepts, false_accepts in oracle.operating_points(scores.tolist(), same.tolist()):
        found = errors_at(scores, same, threshold)
        assert (30 - int(found.false_rejects), int(found.false_accepts)) == (accepts, false_accepts)
        assert (found.far.item(), found.frr.item()) == pytest.approx((false_accepts / 60, 1 - accepts / 30))
    # float16 would round this threshold to a score.
    assert errors_at(scores, same, float(scores.max()) + 1e-6).false_accepts == 0
    assert errors_at(scores, same, torch.zeros(2, 3)).far.shape == (2, 3)
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
        assert ours.tolist() == pytest.approx(theirs, rel=1e-12)
    mean = sum(accuracy for accuracy, _ in expected) / 4
    deviation = math.sqrt(sum((accuracy - mean) ** 2 for accuracy, _ in expected) / 3)
    assert (found.mean.item(), found.standard_error.item()) == pytest.approx((mean, deviation / 2))


def test_folds_do_not_choose_their_own_threshold():
    # Fold 1 alone would choose 10; folds 0 and 2 choose 0.5.
    scores = torch.tensor([1.0, 0.0, 20.0, 9.0, 1.0, 0.0])
    found = fold_accuracy(scores, torch.tensor([1, 0, 1, 0, 1, 0]).bool(), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert found.accuracies[1] == found.thresholds[1] == 0.5


def test_thresholds_beyond_all_scores_and_between_adjacent_16_bit_scores():
    folds = torch.arange(8) // 4
    wrong = torch.tensor([0.0, 0, 0, 1, 0, 0, 0, 1])  # the genuine pair below: accepting nothing is best
    same = torch.tensor([1, 0, 0, 0]).bool().repeat(2)
    found = fold_accuracy(wrong, same, folds)
    assert found.thresholds.tolist() == [math.inf] * 2 and found.mean == 0.75
    assert fold_accuracy(-wrong, ~same, folds).thresholds.tolist() == [-math.inf] * 2
    scores = torch.tensor([1 + 2**-10, 1.0] * 2, dtype=torch.float16)
    found = fold_accuracy(scores, torch.tensor([True, False] * 2), torch.tensor([0, 0, 1, 1]))
    assert found.mean == 1 and found.thresholds.tolist() == [1 + 2**-11] * 2


def test_contiguous_folds():
    assert contiguous_folds(6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    sizes = contiguous_folds(6007).bincount()
    assert len(sizes) == 10 and int(sizes.max() - sizes.min()) == 1


SCORES, SAME, FOLDS = torch.rand(8), torch.arange(8) % 2 == 0, torch.arange(8) // 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: contiguous_folds(9), "10 folds need at least 10 pairs; got 9"),
        (lambda: contiguous_folds(9, 1), "folds must be at least 2"),
        (lambda: contiguous_folds(10, 2.5), "folds must be a whole number; got"),
        (lambda: fold_accuracy(SCORES, SAME | (FOLDS == 1), FOLDS), r"fold 1 has only genuine pairs \(4\)"),
        (lambda: fold_accuracy(SCORES, SAME & (FOLDS == 1), FOLDS), "fold 0 has only impostor pairs"),
        (lambda: fold_accuracy(SCORES, SAME, 0 * FOLDS), "at least 2 folds"),
        (lambda: fold_accuracy(SCORES, SAME, FOLDS[1:]), "fold_ids must have shape"),
        (lambda: fold_accuracy(SCORES, SAME, FOLDS + 0.5), "fold_ids must be of integer type"),
        (lambda: fold_accuracy(SCORES.log() * torch.inf, SAME, FOLDS), "scores must be finite"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_group_errors_accept_pairs_at_the_threshold():
    """Four samples at right angles, two classes, a class's samples in groups 0 and 1."""
    labels, groups = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    at, above = (group_errors(PairDistances(torch.eye(4), labels), groups, 2, cosine) for cosine in (0.0, 1e-6))
    assert at.false_accepts.sum(dim=0).tolist() == [[2, 4], [4, 2]]  # a pair counts for both its classes
    assert at.false_rejects.sum() == above.false_accepts.sum() == 0
    assert torch.equal(at.false_accepts, at.impostor_pairs) and torch.equal(above.false_rejects, at.genuine_pairs)


@pytest.mark.parametrize("block_rows", [3, 1000])
def test_group_errors_equal_the_loops(block_rows):
    labels, groups, x = torch.arange(24).sort().values // 4, torch.randint(0, 3, (24,)), torch.randn(24, 3).double()
    found = group_errors(PairDistances(x, labels, block_rows=block_rows), groups, 3, 0.4)
    accepts, impostors = torch.zeros(2, 6, 3, 3, dtype=torch.int64)
    rejects, genuine = torch.zeros(2, 6, 3, dtype=torch.int64)
    for i in range(24):
        for j in range(i):
            is_accepted = oracle.cosine(x[i].tolist(), x[j].tolist()) >= 0.4
            ends = groups[[i, j]].tolist()
            if labels[i] == labels[j]:
                for group in set(ends):
                    genuine[labels[i], group] += 1
                    rejects[labels[i], group] += not is_accepted
                continue
            for label in (labels[i], labels[j]):
                for one, other in {(ends[0], ends[1]), (ends[1], ends[0])}:
                    impostors[label, one, other] += 1
                    accepts[label, one, other] += is_accepted
    assert all(map(torch.equal, found, (accepts, impostors, rejects, genuine)))


def test_rates_without_each_class_and_intervals_by_stratum():
    errors, pairs = torch.tensor([[2, 0], [1, 2], [3, 0]]), torch.tensor([[10, 2], [20, 10], [30, 4]])
    rates, without = rates_without_each(errors, pairs, 2)
    assert rates.tolist() == [3 / 30, 1 / 8]
    # no error counts as half of one
    assert without.T.tolist() == [[1 / 20, 2 / 10, math.inf], [1 / 6, 0.5 / -2, 1 / 4]]
    values, strata = torch.randn(9, 2).double(), torch.tensor([0] * 4 + [2] * 5)  # stratum 1 is empty
    variance = sum(len(part) * part.var(dim=0) * (1 - 1 / len(part)) ** 2 for part in values.split([4, 5]))
    found = interval_by_stratum(torch.ones(2).double(), values, strata, 0.9)
    for end, sign in zip(found, (-1, 1), strict=True):
        torch.testing.assert_close(end, 1 + sign * variance.sqrt() * t.ppf(0.95, 3))
