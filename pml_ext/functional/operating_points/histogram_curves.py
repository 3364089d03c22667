"""Utility curves read off bins of pairs, with the error that this leaves in OPIS."""

import torch
from torch import Tensor

from pml_ext.functional.operating_points.negative_counts import NegativeHistogram
from pml_ext.functional.operating_points.utility import UtilityCurves, curves_of_counts, merged_grids, opis_of_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances

# The largest standard error of OPIS, as a share of it, that reading counts inside bins may leave.
_TOLERANCE = 5e-6


def curves_from_bins(
    pairs: PairDistances, histogram: NegativeHistogram, ranks: list[int], grid: int
) -> list[UtilityCurves] | None:
    """Curves over several calibration ranges, with the negative counts of a histogram.

    Args:
        ranks: of the pooled negative distances that bound the ranges, two for each.
    Returns:
        None where they would be off by too much.
    """
    found = [end for k in ranks if (end := histogram.distance_at(k)) is not None]
    if len(found) < len(ranks):
        return None
    ends, errors = torch.tensor(found, dtype=torch.float64, device=pairs.unit.device).view(-1, 2, 2).unbind(2)
    grids, merged, places = merged_grids(ends, grid)
    positives = pairs.accepted(merged, positives_only=True)[0][histogram.kept]
    negatives = histogram.accepted(merged)
    result = []
    for thresholds, place, end, error in zip(grids, places, ends, errors, strict=True):
        counts = negatives[:, place]
        curves = curves_of_counts(pairs, histogram.kept, thresholds, positives[:, place], counts, end)
        # Where in a bin a class's pairs lie is chance: off by the root of a sixth of them, times their clumping.
        bins = (float(end[1] ** 2 - end[0] ** 2) / 2) / histogram.width
        if bins < grid / 10:
            return None
        in_a_bin = (counts[:, -1] - counts[:, 0]) / bins
        variance = histogram.clumping() / 6 * in_a_bin / pairs.negative_pairs[histogram.kept].square()
        step, off = float(thresholds[1] - thresholds[0]), float(error.max())
        # Distances are rounded as much as this: where a curve jumps is not known better by counting.
        jumps_off = off if off > torch.finfo(pairs.unit.dtype).eps * float(end[1]) else 0.0
        if _standard_error(curves, variance, off / step, jumps_off / step) > _TOLERANCE * opis_of_curves(curves):
            return None
        result.append(curves)
    return result


def _standard_error(curves: UtilityCurves, variance: Tensor, steps_off: float, jumps_off: float) -> float:
    """Of OPIS, where the curves are read off bins.

    Args:
        variance: (T,) of a class's specificity at one threshold; independent between thresholds.
        steps_off: standard error of the grid, in its steps.
        jumps_off: the same, as it matters to where a curve jumps.
    """
    off_mean = 2 * (curves.utilities - curves.utilities.mean(dim=0))
    from_counts = float((off_mean.square().mean(dim=1) * variance).mean() / off_mean.numel()) + float(
        variance.mean().square()
    )
    # A shifted grid moves all curves along; and where one jumps, it may jump a threshold earlier or later.
    change = off_mean[:, 1:] * curves.utilities.diff(dim=1)
    from_shift = (steps_off * float(change.mean())) ** 2 + jumps_off * float(change.square().mean()) / change.numel()
    return float((from_counts + from_shift) ** 0.5)
