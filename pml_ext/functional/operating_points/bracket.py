"""Estimates from a sample of the set the range of cosines in which OPIS compares classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext.functional.pairwise.pair_distances import PairDistances

_FEWEST_SAMPLED, _MOST_SAMPLED = 512, 2048
_STANDARD_ERRORS = 5
# About one in a thousand of this many distances are equal by chance.
_COMPARED, _DISTINCT = 2**14, 0.9


def calibration_bracket(pairs: PairDistances, far_range: tuple[float, float]) -> tuple[float, float] | None:
    """Two cosines, the larger first, that bracket a range of pooled false accept rates.

    None if many distances tie, or the sample has one class only.

    Estimated from all pairs of a sample of rows and widened by five standard errors; the same on all ranks.
    """
    return calibration_brackets(pairs, [far_range])[0]


def calibration_brackets(
    pairs: PairDistances, far_ranges: Sequence[tuple[float, float]]
) -> list[tuple[float, float] | None]:
    """`calibration_bracket` of each range, from one sample."""
    count = len(pairs.unit)
    size = min(count, max(_FEWEST_SAMPLED, min(_MOST_SAMPLED, count // 32)))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:size].to(pairs.unit.device)
    index = pairs.index[chosen]
    cosines = pairs.unit[chosen] @ pairs.other[chosen].T
    negative = index[:, None] != index
    values = cosines[negative.triu(1)]
    if not len(values):
        return [None] * len(far_ranges)
    per_row = negative.sum(dim=1).clamp_min(1)
    cosines.masked_fill_(~negative, -torch.inf)
    ascending = values.sort().values
    found = [_around(far_range, cosines, per_row, values, ascending) for far_range in far_ranges]
    if pairs.group is not None:  # all ranks need the same bins, even if their machines round differently
        shared = torch.tensor(found, dtype=torch.float64, device=pairs.unit.device)
        dist.broadcast(shared, dist.get_global_rank(pairs.group, 0), group=pairs.group)
        found = shared.tolist()
    return [None if high == low else (high, low) for high, low in found]


def _around(
    far_range: tuple[float, float], cosines: Tensor, per_row: Tensor, values: Tensor, ascending: Tensor
) -> tuple[float, float]:
    """The bracket by a sample's cosines, −inf where they are not negative, and by its values; equal ends for none."""
    ends = []
    for far, sign in zip(far_range, (-1, 1), strict=True):
        rank = min(max(1, round(far * len(values))), len(values))
        # Pairs that share a row are not independent, so the error comes from the rates of the rows.
        rates = (cosines >= ascending[-rank]).sum(dim=1) / per_row
        error = _STANDARD_ERRORS * (2 * float(rates.std()) / len(cosines) ** 0.5 + (far / len(values)) ** 0.5)
        rank = round((far + sign * error) * len(values))
        if rank < 1:
            ends.append(1.001)
        elif rank > len(values):
            ends.append(-1.001)
        else:
            ends.append(float(ascending[-rank]))
    high, low = ends
    some = values[(values >= low) & (values <= high)][:_COMPARED]
    return (0.0, 0.0) if len(some.unique()) < _DISTINCT * len(some) else (high, low)
