"""What a threshold does to the pairs of a data set: error rates with intervals, by class, and how far it would move."""

from collections.abc import Callable

import torch
from torch import Tensor

from pml_ext.functional.operating_points.utility import utility_of_rates
from pml_ext.functional.pairwise.pair_distances import PairDistances, count_accepted
from pml_ext.functional.verification.intervals import class_rate_interval
from pml_ext.functional.verification.threshold import grid_size
from pml_ext.metrics.threshold.fields import ClassErrors, Stability, ThresholdCurves
from pml_ext.metrics.threshold.rate_fields import ErrorRate

_POINTS = 301


def error_rates(
    pairs: PairDistances, samples: Tensor, labels: tuple[int | str, ...], distance: float
) -> tuple[ErrorRate, ErrorRate, tuple[ClassErrors, ...]]:
    """FAR, FRR and errors by class at a distance; samples: (T,) of each class; labels: names of pairs.classes."""
    at = torch.tensor([distance], dtype=torch.float64)
    accepted, false_accepts = (counts[:, 0] for counts in pairs.accepted(at))
    false_rejects = pairs.positive_pairs - accepted
    far, frr = _far_and_frr(pairs, accepted, false_accepts)
    columns = (samples.to(accepted), pairs.negative_pairs, false_accepts, pairs.positive_pairs, false_rejects)
    rows = torch.stack(columns, dim=1).tolist()
    return far, frr, tuple(ClassErrors(label, *row) for label, row in zip(labels, rows, strict=True))


def pooled_rates(pairs: PairDistances, distances: Tensor) -> list[tuple[ErrorRate, ErrorRate]]:
    """FAR and FRR at each of some (M,) distance thresholds, in any order."""
    ascending, place = distances.sort()
    counts = [c.T for c in pairs.accepted(ascending)]
    found = [_far_and_frr(pairs, *at) for at in zip(*counts, strict=True)]
    return [found[at] for at in place.argsort().tolist()]


def false_reject_rate(pairs: PairDistances, distance: float) -> ErrorRate:
    """FRR alone; impostor pairs are not computed."""
    at = torch.tensor([distance], dtype=torch.float64)
    accepted = pairs.accepted(at, positives_only=True)[0][:, 0]
    return _pooled(pairs.positive_pairs - accepted, pairs.positive_pairs, False)


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


def threshold_stability(
    pairs_of: Callable[[Tensor], PairDistances],
    ids: Tensor,
    choose: Callable[[PairDistances], float],
    *,
    splits: int,
    seed: int,
    begin: Callable[[str, int], None],
) -> Stability | None:
    """Choose the threshold on two halves of the classes, `splits` times; None where a half has too few pairs for it.

    Classes with genuine pairs are dealt to both halves evenly, and so are the others. pairs_of: the pairs of a (N,)
    mask's samples; ids: (N,) ids 0, 1, …; choose: the distance threshold of pairs; ValueError where too few; begin: of
    `show_steps`.
    """
    has_genuine = torch.bincount(ids) > 1
    generator = torch.Generator().manual_seed(seed)
    shifts = []
    for split in range(splits):
        begin(f"measuring the stability of the threshold, split {split + 1} of {splits}", 0)
        order = torch.randperm(len(has_genuine), generator=generator)
        order = torch.cat([order[has_genuine[order]], order[~has_genuine[order]]])
        second = torch.zeros_like(has_genuine)
        second[order[1::2]] = True
        of_second = second[ids]
        try:
            halves = [pairs_of(half) for half in (~of_second, of_second)]
            if not all(half.total_positive_pairs and half.total_negative_pairs for half in halves):
                return None
            one, other = map(choose, halves)
        except ValueError:
            return None
        shifts.append(abs(one - other))
    return Stability(splits, sum(shifts) / splits, max(shifts)) if shifts else None


def _far_and_frr(pairs: PairDistances, accepted: Tensor, false_accepts: Tensor) -> tuple[ErrorRate, ErrorRate]:
    false_rejects = pairs.positive_pairs - accepted
    return _pooled(false_accepts, pairs.negative_pairs, True), _pooled(false_rejects, pairs.positive_pairs, False)


def _pooled(errors: Tensor, pairs: Tensor, pairs_span_classes: bool) -> ErrorRate:
    share = 2 if pairs_span_classes else 1
    low, high = class_rate_interval(errors, pairs, pairs_span_classes=pairs_span_classes)
    return ErrorRate(int(errors.sum()) // share, int(pairs.sum()) // share, low, high)


def _span(pairs: PairDistances) -> tuple[float, float]:
    """Thresholds within 1/32 of the closest and the farthest pair."""
    coarse = torch.linspace(0, 2, 65, dtype=torch.float64)
    genuine, impostors = count_accepted(pairs, coarse)
    accepted = (genuine + impostors).cpu()
    total = pairs.total_positive_pairs + pairs.total_negative_pairs
    first = int(torch.searchsorted(accepted, 1))
    last = int(torch.searchsorted(accepted, total))
    return float(coarse[max(0, first - 1)]), float(coarse[last])
