"""Estimates from a sample of the set the range of cosines in which OPIS compares classes."""

import torch
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
    count = len(pairs.unit)
    size = min(count, max(_FEWEST_SAMPLED, min(_MOST_SAMPLED, count // 32)))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:size].to(pairs.unit.device)
    index = pairs.index[chosen]
    cosines = pairs.unit[chosen] @ pairs.other[chosen].T
    negative = index[:, None] != index
    values = cosines[negative.triu(1)]
    if not len(values):
        return None
    per_row = negative.sum(dim=1).clamp_min(1)
    ends = []
    for far, sign in zip(far_range, (-1, 1), strict=True):
        rank = min(max(1, round(far * len(values))), len(values))
        found = values.kthvalue(len(values) - rank + 1).values
        # Pairs that share a row are not independent, so the error comes from the rates of the rows.
        rates = ((cosines >= found) & negative).sum(dim=1) / per_row
        error = _STANDARD_ERRORS * (2 * float(rates.std()) / size**0.5 + (far / len(values)) ** 0.5)
        rank = round((far + sign * error) * len(values))
        if rank < 1:
            ends.append(1.001)
        elif rank > len(values):
            ends.append(-1.001)
        else:
            ends.append(float(values.kthvalue(len(values) - rank + 1).values))
    some = values[(values >= ends[1]) & (values <= ends[0])][:_COMPARED]
    if len(some.unique()) < _DISTINCT * len(some):
        ends = [0.0, 0.0]
    if pairs.group is not None:  # all ranks need the same bins, even if their machines round differently
        shared = torch.tensor(ends, dtype=torch.float64, device=pairs.unit.device)
        dist.broadcast(shared, dist.get_global_rank(pairs.group, 0), group=pairs.group)
        ends = shared.tolist()
    return None if ends[0] == ends[1] else (ends[0], ends[1])
