"""Negative distances at the ends of OPIS's calibration range, from one pass over the pairs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._ops.distributed import gather_rows, sum_over_ranks
from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_blocks import true_places
from pml_ext.functional.pairwise.pair_distances import PairDistances, to_distances_

_FEW_SAMPLES = 4096  # two passes over their pairs take less than half a second
_FEWEST_SAMPLED, _MOST_SAMPLED = 1024, 4096
_STANDARD_ERRORS = 5
_MOST_LISTED = 2**24  # cosines: 64 MB


def distances_at_ranks(pairs: PairDistances, ranks: Sequence[int]) -> Tensor:
    """Returns the same distances as `pairs.negative_distances_at(ranks)`, in one pass instead of two if pairs are many.

    A sample of the pairs gives two cosines around each rank. The pass counts the negative pairs with higher cosines
    and lists those between them. If too many pairs are between, or the rank is not, the two passes follow.
    """
    if len(pairs.unit) > _FEW_SAMPLES:
        with full_precision(pairs.unit.device):
            brackets = _brackets(pairs, ranks)
            found = None if brackets is None else _cosines_at_ranks(pairs, ranks, brackets)
        if found is not None:
            return to_distances_(found)
    return pairs.negative_distances_at(ranks)


def _brackets(pairs: PairDistances, ranks: Sequence[int]) -> list[list[float]] | None:
    """Returns a lower and a higher cosine for each rank; None if more than `_MOST_LISTED` pairs are between them."""
    size = max(_FEWEST_SAMPLED, min(_MOST_SAMPLED, len(pairs.unit) // 16))
    chosen = torch.randperm(len(pairs.unit), generator=torch.Generator().manual_seed(0), device="cpu")[:size].to(
        pairs.unit.device
    )
    cosines = pairs.unit[chosen] @ pairs.other[chosen].T
    is_negative = pairs.index[chosen, None] != pairs.index[chosen]
    falling = cosines[is_negative.triu()].sort(descending=True).values
    if not len(falling):
        return None
    brackets, listed = [], 0.0
    for rank in ranks:
        share = rank / pairs.total_negative_pairs
        cosine = falling[min(int(share * len(falling)), len(falling) - 1)]
        # Pairs of one sample are alike, so the standard error comes from the shares of the samples.
        shares = ((cosines >= cosine) & is_negative).sum(dim=1) / is_negative.sum(dim=1).clamp_min(1)
        error = 2 * float(shares.std()) / len(chosen) ** 0.5 + (share / len(falling)) ** 0.5
        first = int((share - _STANDARD_ERRORS * error) * len(falling))
        last = int((share + _STANDARD_ERRORS * error) * len(falling)) + 1
        high = float(falling[first]) if first > 0 else torch.inf
        low = float(falling[last]) if last < len(falling) else -torch.inf
        brackets.append([low, high])
        listed += float(((falling >= low) & (falling <= high)).double().mean()) * pairs.total_negative_pairs
    if listed > _MOST_LISTED:
        return None
    # The ranks' machines may round differently: all take those of the first.
    limits = torch.tensor(brackets, dtype=torch.float64, device=pairs.unit.device)
    shared: list[list[float]] = gather_rows(limits, pairs.group)[: len(ranks)].tolist()
    return shared


def _cosines_at_ranks(pairs: PairDistances, ranks: Sequence[int], brackets: list[list[float]]) -> Tensor | None:
    """Returns the negative cosine of each rank, from 1, the highest first; None if one is not between its limits."""
    above = torch.zeros(len(ranks), dtype=torch.int64, device=pairs.unit.device)
    between: list[list[Tensor]] = [[pairs.unit.new_empty(0)] for _ in ranks]
    lowest = min(low for low, _ in brackets)
    for block in pairs.blocks():
        is_near = block.cosines >= lowest
        if block.mixed:
            is_near &= pairs.negative_mask(block)
        near = block.cosines.view(-1)[true_places(is_near)[0]]
        for i, (low, high) in enumerate(brackets):
            above[i] += torch.count_nonzero(near > high)
            between[i].append(near[(near >= low) & (near <= high)])
    found = []
    for rank, higher, lists in zip(ranks, sum_over_ranks(above, pairs.group).tolist(), between, strict=True):
        listed = gather_rows(torch.cat(lists), pairs.group)
        if not higher < rank <= higher + len(listed):
            return None
        found.append(listed.kthvalue(len(listed) - (rank - higher) + 1).values)
    return torch.stack(found)
