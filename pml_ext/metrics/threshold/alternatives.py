"""What other thresholds would give: one for each false accept rate that is commonly asked for."""

import torch

from pml_ext.functional.operating_points.calibration import TooFewClassesError, calibrated_curves
from pml_ext.functional.operating_points.utility import opis_of_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.threshold import thresholds_at_far
from pml_ext.metrics.threshold.fields import Alternative
from pml_ext.metrics.threshold.rates import pooled_rates

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
# OPIS of an alternative is taken around its rate, over one decade.
_AROUND = (0.3, 3.0)


def other_thresholds(pairs: PairDistances, *, grid: int) -> tuple[Alternative, ...]:
    """The largest threshold within each rate of FARS that the set has pairs for; grid: see `functional.opis`."""
    chosen = zip(FARS, thresholds_at_far(pairs, FARS), strict=True)
    found = [(far, distance) for far, distance in chosen if distance is not None]
    if not found:
        return ()
    distances = torch.tensor([distance for _, distance in found], dtype=torch.float64)
    rates = pooled_rates(pairs, distances)
    scores = _opis(pairs, [far for far, _ in found], grid)
    return tuple(
        Alternative(far, 1 - distance**2 / 2, *rate, *score)
        for (far, distance), rate, score in zip(found, rates, scores, strict=True)
    )


def _opis(pairs: PairDistances, fars: list[float], grid: int) -> list[tuple[float | None, tuple[float, float]]]:
    """OPIS and its range around each rate; None where the set has too few classes or pairs for it."""
    ranges = [(float(f"{_AROUND[0] * far:.6g}"), float(f"{min(1.0, _AROUND[1] * far):.6g}")) for far in fars]
    measured = [r for r in ranges if r[0] * pairs.total_negative_pairs >= 1]
    try:
        curves = calibrated_curves(pairs, far_ranges=measured, grid=grid) if measured else []
    except TooFewClassesError:
        curves = []
    scores = {r: float(opis_of_curves(curve)) for r, curve in zip(measured, curves, strict=False)}
    return [(scores.get(r), r) for r in ranges]
