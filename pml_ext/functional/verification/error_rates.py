"""False accepts and false rejects at thresholds, and accuracy in folds."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._shared.checks import check_labels, check_number, check_whole
from pml_ext.functional.verification.roc import ROC, check_scores, roc_curve


class VerificationErrors(NamedTuple):
    """Errors at thresholds, as counts and as fractions (nan without such pairs).

    Attributes:
        false_accepts, false_rejects: int64 counts of impostor pairs accepted and of genuine pairs rejected.
        impostors, genuine: number of pairs of each kind.

    >>> errors = VerificationErrors(torch.tensor(1), torch.tensor(3), impostors=10, genuine=4)
    >>> float(errors.far), float(errors.frr)
    (0.1, 0.75)
    """

    false_accepts: Tensor
    false_rejects: Tensor
    impostors: int
    genuine: int

    @property
    def far(self) -> Tensor:
        return self.false_accepts.double() / self.impostors

    @property
    def frr(self) -> Tensor:
        return self.false_rejects.double() / self.genuine


def errors_at(scores: Tensor, same: Tensor, thresholds: Tensor | float) -> VerificationErrors:
    """Count false accepts and false rejects at thresholds; a pair is accepted if its score >= threshold.

    Args:
        scores, same: see `tar_at_far`.
        thresholds: one threshold, or a tensor of any shape, in the unit of the scores; not nan.
    Returns:
        VerificationErrors of the thresholds' shape. `rate_interval(errors.false_accepts, errors.impostors)` is the
        confidence interval of the rate.
    Raises:
        ValueError: see `tar_at_far`; a threshold is nan.

    >>> scores, same = torch.tensor([0.9, 0.7, 0.4, 0.1]), torch.tensor([True, False, True, False])
    >>> errors = errors_at(scores, same, 0.5)
    >>> int(errors.false_accepts), int(errors.false_rejects), float(errors.far)
    (1, 1, 0.5)
    """
    check_scores(scores, same)
    if not isinstance(thresholds, Tensor):
        check_number(thresholds, "thresholds")
    # float64, because the scores' precision (e.g. float16) would round the threshold.
    thresholds = torch.as_tensor(thresholds, dtype=torch.float64, device=scores.device)
    if bool(thresholds.isnan().any()):
        raise ValueError("thresholds must be numbers; got nan")
    genuine, impostors = (scores[kind].double().sort().values for kind in (same, ~same))
    false_accepts = len(impostors) - torch.searchsorted(impostors, thresholds)
    return VerificationErrors(false_accepts, torch.searchsorted(genuine, thresholds), len(impostors), len(genuine))


class FoldAccuracy(NamedTuple):
    """The accuracy of each of F folds, and the threshold chosen on the other folds.

    Attributes:
        accuracies, thresholds: (F,) float64, by ascending fold id; a pair is accepted if its score >= threshold.

    >>> accuracy = FoldAccuracy(torch.tensor([0.9, 1.0]), torch.tensor([0.4, 0.5]))
    >>> round(float(accuracy.mean), 3), round(float(accuracy.standard_error), 3)
    (0.95, 0.05)
    """

    accuracies: Tensor
    thresholds: Tensor

    @property
    def mean(self) -> Tensor:
        return self.accuracies.mean()

    @property
    def standard_error(self) -> Tensor:
        """Standard error of the mean as LFW reports it: sample standard deviation over folds / sqrt(F)."""
        error: Tensor = self.accuracies.std() / len(self.accuracies) ** 0.5
        return error


def contiguous_folds(pairs: int, folds: int = 10, *, device: torch.device | None = None) -> Tensor:
    """Returns (P,) int64 fold ids 0 … folds − 1 in consecutive blocks whose sizes differ by at most 1.

    Raises:
        ValueError: fewer than 2 folds, fewer pairs than folds.

    >>> contiguous_folds(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    check_whole(pairs, "pairs", 0, 2**28)
    check_whole(folds, "folds", 2)
    if pairs < folds:
        raise ValueError(f"{folds} folds need at least {folds} pairs; got {pairs}")
    return torch.arange(pairs, device=device or "cpu") * folds // pairs


def fold_accuracy(scores: Tensor, same: Tensor, fold_ids: Tensor) -> FoldAccuracy:
    """Returns the accuracy of each fold at the threshold that is most accurate on all other folds.

    If several thresholds are equally accurate, the one that accepts the fewest pairs is chosen, midway between the
    lowest score it accepts and the highest it rejects (inf if it accepts nothing, −inf if everything).

    Args:
        scores: (P,) similarities, higher is more alike, finite (negate distances).
        same: (P,) bool, True for genuine pairs.
        fold_ids: (P,) integers; `contiguous_folds` for pairs listed fold by fold.
    Raises:
        ValueError: see `functional.tar_at_far`; fewer than 2 folds; a fold without genuine or without impostor pairs
            (its accuracy would be one error rate, at a threshold chosen for another mixture).
    Source: LFW's protocol (Huang et al. 2007), 10 folds. Protocol: does not mention ties; here: as above.

    >>> scores, same = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.4]), torch.tensor([True, False] * 3)
    >>> fold_accuracy(scores, same, contiguous_folds(6, 3)).accuracies.tolist()
    [1.0, 1.0, 0.5]
    """
    check_scores(scores, same)
    fold_ids = check_labels(fold_ids, len(scores), "fold_ids")
    ids, index = torch.unique(fold_ids.to(scores.device), return_inverse=True)
    if len(ids) < 2:
        raise ValueError(f"fold_ids must have at least 2 folds (a fold's threshold comes from others); got {len(ids)}")
    scores = scores.double()  # float16 would round the midpoint of two scores to one of them
    accuracies, thresholds = [], []
    for fold, name in enumerate(ids.tolist()):
        judged = index == fold
        genuine, pairs = int(same[judged].sum()), int(judged.sum())
        if genuine in (0, pairs):
            kind = "genuine" if genuine else "impostor"
            raise ValueError(
                f"every fold must have genuine and impostor pairs; fold {name} has only {kind} pairs ({pairs}). "
                "Change fold_ids to mix them"
            )
        threshold = _most_accurate_threshold(roc_curve(scores[~judged], same[~judged]))
        accuracies.append(((scores[judged] >= threshold) == same[judged]).double().mean())
        thresholds.append(threshold)
    return FoldAccuracy(torch.stack(accuracies), torch.stack(thresholds))


def _most_accurate_threshold(roc: ROC) -> Tensor:
    """Returns the strictest of the most accurate thresholds, halfway to the next score (0-dim float64)."""
    right = roc.true_accepts - roc.false_accepts
    best = int((right == right.max()).nonzero()[0])
    edges = torch.cat([roc.thresholds, roc.thresholds.new_full((1,), -torch.inf)])
    if best == 0:
        return edges[0]
    return (edges[best] + edges[best + 1]) / 2
