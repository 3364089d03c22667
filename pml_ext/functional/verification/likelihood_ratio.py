"""Cost of log-likelihood ratios (C_llr), and its minimum over calibrations."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pml_ext._checks import check_tensor
from pml_ext.functional.verification.roc import check_scores


def cllr(log_ratios: Tensor, same: Tensor) -> Tensor:
    r"""Cost of log-likelihood ratios in bits, averaged over genuine and over impostor pairs.

    $$C = \frac{1}{2} \text{mean}_{genuine} \log_2(1 + e^{-l}) + \frac{1}{2} \text{mean}_{impostor} \log_2(1 + e^l)$$

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
    genuine, impostors = softplus(-ratios[same]).mean(), softplus(ratios[~same]).mean()
    return (genuine + impostors) / (2 * math.log(2))


def min_cllr(scores: Tensor, same: Tensor) -> Tensor:
    """Returns the smallest `cllr` of any increasing function of the scores; it depends only on their order.

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
    """Returns N distinct scores, ascending, each pair's index among them, and the pair counts per score (float64)."""
    values, place = torch.unique(scores.double().cpu(), return_inverse=True)
    is_genuine = same.cpu().double()
    genuine = torch.bincount(place, weights=is_genuine, minlength=len(values))
    impostors = torch.bincount(place, weights=1 - is_genuine, minlength=len(values))
    return values, place, genuine, impostors


def ratios_of_counts(genuine: Tensor, impostors: Tensor) -> Tensor:
    """Returns the log-likelihood ratios with the lowest `cllr` among all increasing functions of N scores.

    genuine, impostors: (N,) numbers of pairs per score, ascending, in float64 on the CPU.
    """
    share = pool_adjacent_violators(genuine / (genuine + impostors), genuine + impostors)
    return torch.logit(share) - torch.log(genuine.sum() / impostors.sum())


def pool_adjacent_violators(values: Tensor, weights: Tensor) -> Tensor:
    """Returns the increasing sequence closest in weighted least squares to (N,) float64 CPU values; weights > 0."""
    from sklearn.isotonic import isotonic_regression  # a dependency of pytorch-metric-learning

    return torch.from_numpy(isotonic_regression(values.numpy(), sample_weight=weights.numpy()))
