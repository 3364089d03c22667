"""The quality of scores as evidence: C_llr, its minimum over calibrations, and its interval over classes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pml_ext._checks import check_tensor
from pml_ext.functional.verification.intervals import half_width
from pml_ext.functional.verification.roc import check_scores


def cllr(log_ratios: Tensor, same: Tensor) -> Tensor:
    """Cost of log-likelihood ratios in bits: ½ (mean log₂(1 + e^−l) of genuine + mean log₂(1 + e^l) of impostor pairs).

    0 is perfect; 1 is the cost of no evidence (l = 0); calibrated ratios cost at most 1.

    Args:
        log_ratios: (P,) natural log-likelihood ratios, log p(score | same) − log p(score | different); may be infinite.
        same: (P,) bool, genuine pairs.
    Returns:
        0-dim float64; nan without genuine or impostor pairs, inf if an infinite ratio is wrong.
    Raises:
        TypeError, ValueError: see `tar_at_far`; nan among the ratios.
    Source: Brümmer and du Preez, Application-independent evaluation of speaker detection, 2006, eq. 37.

    >>> float(cllr(torch.zeros(4), torch.tensor([True, True, False, False])))
    1.0
    """
    check_tensor(log_ratios, "log_ratios", "(P,)")
    check_scores(log_ratios.masked_fill(log_ratios.isinf(), 0), same)
    ratios = log_ratios.double()
    return (softplus(-ratios[same]).mean() + softplus(ratios[~same]).mean()) / (2 * math.log(2))


def min_cllr(scores: Tensor, same: Tensor) -> Tensor:
    """The smallest `cllr` of any increasing function of scores, which depends only on their order.

    Args:
        scores, same: see `tar_at_far`.
    Returns:
        0-dim float64, in [0, 1]; nan without genuine or impostor pairs. cllr − min_cllr is the loss from calibration.
    Source: see `cllr`, section 6: ratios by pooling adjacent violators.

    >>> float(min_cllr(torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([False, False, True, True])))
    0.0
    """
    check_scores(scores, same)
    if not bool(same.any()) or bool(same.all()):
        return torch.tensor(math.nan, dtype=torch.float64)
    _, place, genuine, impostors = count_by_score(scores, same)
    return cllr(ratios_of_counts(genuine, impostors)[place], same.cpu())


def count_by_score(scores: Tensor, same: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The N distinct scores, ascending, each pair's place among them, and the pairs of either kind there (float64)."""
    values, place = torch.unique(scores.double().cpu(), return_inverse=True)
    kinds = (torch.bincount(place, weights=kind.cpu().double(), minlength=len(values)) for kind in (same, ~same))
    return values, place, *kinds


def ratios_of_counts(genuine: Tensor, impostors: Tensor) -> Tensor:
    """Of all increasing functions of N scores, the log-likelihood ratios with the lowest `cllr`.

    genuine, impostors: (N,) pairs of each score, ascending, in float64 on the CPU.
    """
    share = pool_adjacent_violators(genuine / (genuine + impostors), genuine + impostors)
    return torch.logit(share) - torch.log(genuine.sum() / impostors.sum())


def pool_adjacent_violators(values: Tensor, weights: Tensor) -> Tensor:
    """The increasing sequence closest in weighted least squares to (N,) float64 values on the CPU; weights > 0."""
    from sklearn.isotonic import isotonic_regression  # a dependency of pytorch-metric-learning

    return torch.from_numpy(isotonic_regression(values.numpy(), sample_weight=weights.numpy()))


class ClassPairs(NamedTuple):
    """Scores of pairs; the classes of both samples, equal for genuine pairs. All (P,)."""

    scores: Tensor
    one: Tensor
    other: Tensor

    @property
    def same(self) -> Tensor:
        return self.one == self.other

    def of(self, kept: Tensor) -> "ClassPairs":
        """Some of the pairs."""
        return ClassPairs(self.scores[kept], self.one[kept], self.other[kept])


def cost_in_bits(ratios: Tensor, same: Tensor) -> Tensor:
    """What (P,) natural log-likelihood ratios cost, in float64; C_llr is the mean of the means of both kinds."""
    return softplus(torch.where(same, -ratios, ratios)) / math.log(2)


def mean_with_interval(cost: Tensor, pairs: ClassPairs, classes: int) -> tuple[float, float, float]:
    """C_llr of pairs' costs, and a 95 % t interval of its logarithm from leaving classes out."""
    same = pairs.same
    value = torch.zeros((), dtype=torch.float64)
    without = torch.zeros(classes, dtype=torch.float64)
    for kind, sides in ((same, (pairs.one,)), (~same, (pairs.one, pairs.other))):
        sums, numbers = torch.zeros((2, classes), dtype=torch.float64)
        for side in sides:
            sums.index_add_(0, side[kind], cost[kind])
            numbers += torch.bincount(side[kind], minlength=classes)
        value += cost[kind].mean() / 2
        without += (cost[kind].sum() - sums) / (int(kind.sum()) - numbers) / 2
    seen = torch.unique(torch.cat([pairs.one, pairs.other]))
    logs = without[seen].clamp_min(1e-300).log()
    if not float(value) or not bool(logs.isfinite().all()):
        return float(value), 0.0, math.inf
    ratio = math.exp(min(half_width(logs), 700.0))  # 1e304, where one class has all the cost
    return float(value), float(value) / ratio, float(value) * ratio
