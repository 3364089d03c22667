import math

import pytest
import torch

from pml_ext.functional import contiguous_folds, errors_at, fold_accuracy
from tests.oracles import verification as oracle
from tests.oracles import verification as verification_oracle


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_errors_at_thresholds_equal_the_loops(dtype: torch.dtype) -> None:
    same = torch.arange(90) < 30
    scores = ((torch.randn(90) + same) * 4).round().div(8).to(dtype)
    for point in verification_oracle.operating_points(scores.tolist(), same.tolist()):
        found = errors_at(scores, same, point[0])
        assert (30 - int(found.false_rejects), int(found.false_accepts)) == point[1:]
        assert (found.far.item(), found.frr.item()) == pytest.approx((point[2] / 60, 1 - point[1] / 30))
    # float16 would round this threshold to a score.
    assert errors_at(scores, same, float(scores.max()) + 1e-6).false_accepts == 0
    assert errors_at(scores, same, torch.zeros(2, 3)).far.shape == (2, 3)
    with pytest.raises(ValueError, match="thresholds must be numbers; got nan"):
        errors_at(scores, same, torch.tensor([0.1, torch.nan]))


def test_rates_without_pairs_of_a_kind_are_nan() -> None:
    found = errors_at(torch.rand(5), torch.ones(5, dtype=torch.bool), 0.5)
    assert found.far.isnan() and not found.frr.isnan()


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_equals_the_loops(ties: bool, dtype: torch.dtype) -> None:
    same = torch.arange(200) % 5 < 2
    scores = (0.3 * torch.randn(200) + 0.4 * same).to(dtype)
    if ties:
        scores = (scores * 4).round() / 4
    folds = torch.randint(0, 4, (200,)) * 3 - 1
    found = fold_accuracy(scores, same, folds)
    expected = oracle.fold_accuracies(scores.tolist(), same.tolist(), folds.tolist())
    assert list(zip(found.accuracies.tolist(), found.thresholds.tolist(), strict=True)) == [
        pytest.approx(pair, rel=1e-12) for pair in expected
    ]
    accuracies = [accuracy for accuracy, _ in expected]
    mean = sum(accuracies) / 4
    assert found.mean.item() == pytest.approx(mean)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / 3)
    assert found.standard_error.item() == pytest.approx(deviation / 2)


def test_folds_do_not_choose_their_own_threshold() -> None:
    # Fold 1 alone would choose 10; folds 0 and 2 choose 0.5.
    scores = torch.tensor([1.0, 0.0, 20.0, 9.0, 1.0, 0.0])
    found = fold_accuracy(scores, torch.tensor([1, 0, 1, 0, 1, 0]).bool(), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert found.accuracies[1] == 0.5
    assert found.thresholds[1] == 0.5


def test_thresholds_beyond_all_scores() -> None:
    folds = torch.arange(8) // 4
    wrong = torch.tensor([0.0, 0, 0, 1, 0, 0, 0, 1])  # the genuine pair below: accepting nothing is best
    same = torch.tensor([1, 0, 0, 0]).bool().repeat(2)
    assert fold_accuracy(wrong, same, folds).thresholds.tolist() == [math.inf] * 2
    assert fold_accuracy(wrong, same, folds).mean == 0.75
    assert fold_accuracy(-wrong, ~same, folds).thresholds.tolist() == [-math.inf] * 2


def test_threshold_between_adjacent_16_bit_scores() -> None:
    scores = torch.tensor([1 + 2**-10, 1.0] * 2, dtype=torch.float16)
    found = fold_accuracy(scores, torch.tensor([True, False] * 2), torch.tensor([0, 0, 1, 1]))
    assert found.mean == 1
    assert found.thresholds.tolist() == [1 + 2**-11] * 2


def test_contiguous_folds() -> None:
    assert contiguous_folds(6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    sizes = contiguous_folds(6007).bincount()
    assert len(sizes) == 10 and int(sizes.max() - sizes.min()) == 1
    with pytest.raises(ValueError, match="10 folds need at least 10 pairs; got 9"):
        contiguous_folds(9)
    with pytest.raises(ValueError, match="folds must be at least 2"):
        contiguous_folds(9, 1)


def test_errors() -> None:
    scores, same, folds = torch.rand(8), torch.arange(8) % 2 == 0, torch.arange(8) // 4
    with pytest.raises(ValueError, match=r"fold 1 has only genuine pairs \(4\)"):
        fold_accuracy(scores, same | (folds == 1), folds)
    with pytest.raises(ValueError, match="fold 0 has only impostor pairs"):
        fold_accuracy(scores, same & (folds == 1), folds)
    with pytest.raises(ValueError, match="at least 2 folds"):
        fold_accuracy(scores, same, torch.zeros(8).long())
    with pytest.raises(ValueError, match="fold_ids must be integers of shape"):
        fold_accuracy(scores, same, folds[1:])
    with pytest.raises(ValueError, match="fold_ids must be integers of shape"):
        fold_accuracy(scores, same, folds.float())
    with pytest.raises(ValueError, match="scores must be finite"):
        fold_accuracy(scores.log() * torch.inf, same, folds)


def test_folds_must_be_whole_numbers() -> None:
    for folds in (float("nan"), 2.5):
        with pytest.raises(ValueError, match="folds must be a whole number; got"):
            contiguous_folds(10, folds)
