"""The curves behind a threshold: counts of accepted pairs and utilities of classes over all distances."""

import torch

from pml_ext.functional.operating_points.utility import utility_of_rates
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.threshold import grid_size
from pml_ext.metrics.threshold.fields import ThresholdCurves

_POINTS = 301


def threshold_curves(pairs: PairDistances) -> ThresholdCurves:
    """Curves of all pairs of a set, in two passes: the first finds the range of distances, the second counts in it."""
    low, high = _span(pairs)
    distances = torch.linspace(low, high, min(_POINTS, grid_size(pairs)), dtype=torch.float64)
    genuine, impostors = pairs.accepted(distances)
    kept = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    tpr = genuine[kept].double() / pairs.positive_pairs[kept, None]
    tnr = 1 - impostors[kept].double() / pairs.negative_pairs[kept, None]
    pooled = genuine.sum(dim=0).cpu(), impostors.sum(dim=0).cpu() // 2
    return ThresholdCurves(distances, *pooled, utility_of_rates(tpr, tnr).cpu())


def _span(pairs: PairDistances) -> tuple[float, float]:
    """Thresholds within 1/32 of the closest and the farthest pair."""
    coarse = torch.linspace(0, 2, 65, dtype=torch.float64)
    positives, negatives = pairs.accepted(coarse)
    accepted = (positives.sum(dim=0) + negatives.sum(dim=0) // 2).cpu()
    total = pairs.total_positive_pairs + pairs.total_negative_pairs
    first = int(torch.searchsorted(accepted, 1))
    last = int(torch.searchsorted(accepted, total))
    return float(coarse[max(0, first - 1)]), float(coarse[last])
