"""Triplets of the hardest positives and hardest negatives of a distance matrix."""

import torch
from torch import Tensor

from pml_ext._checks import check_floating, check_mask, check_switch


def hardest_triplets(
    distances: Tensor, positive: Tensor, negative: Tensor, *, among_themselves: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For each row, its farthest positive and the nearest negative of either sample. Not differentiable.

    Args:
        distances: (B, R), larger = further apart (pass negated similarities).
        positive, negative: (B, R) bool, the pairs to choose from.
        among_themselves: rows and columns are the same samples, so the positive has negatives too; if its nearest one
            is nearer than the row's, it becomes the anchor and the row the positive. If False, the row's nearest
            negative counts.
    Returns:
        (anchors, positives, negatives), one triplet per row with a positive and a negative (of either sample), in the
        order of the rows. Ties go to the first, and to the row before its positive. Two samples that are each other's
        farthest positive give the same triplet twice.

    >>> similarities = torch.tensor([[1, 0.6, 0.7], [0.6, 1, 0.2], [0.7, 0.2, 1]])
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> different = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> [indices.tolist() for indices in hardest_triplets(1 - similarities, same, different, among_themselves=True)]
    [[0, 0], [1, 1], [2, 2]]
    """
    check_floating(distances, "distances", "(B, R)")
    check_mask(positive, distances.shape, "positive")
    check_mask(negative, distances.shape, "negative")
    check_switch(among_themselves, "among_themselves")
    distances = distances.detach()
    farthest = distances.masked_fill(~positive, -torch.inf).argmax(dim=1)
    nearest, at = distances.masked_fill(~negative, torch.inf).min(dim=1)
    rows = torch.arange(len(distances), device=distances.device)
    anchors, positives = rows, farthest
    has_negative = negative.any(dim=1)
    if among_themselves:
        turned = nearest[farthest] < nearest
        anchors, positives = torch.where(turned, farthest, rows), torch.where(turned, rows, farthest)
    kept = (positive.any(dim=1) & has_negative[anchors]).nonzero().squeeze(1)
    anchors = anchors[kept]
    return anchors, positives[kept], at[anchors]


def hardest_of_pairs(
    distances: Tensor, positive: Tensor, negative: Tensor, anchors: Tensor, partners: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For (P,) pairs of samples, the farthest positive and the nearest negative of either. Not differentiable.

    Both samples have a positive. Returns four (P,): the sample with the farthest positive and that positive; the sample
    with the nearest negative and that negative (an arbitrary sample if neither has one).
    """
    distances = distances.detach()
    farthest, far_at = distances.masked_fill(~positive, -torch.inf).max(dim=1)
    nearest, near_at = distances.masked_fill(~negative, torch.inf).min(dim=1)
    far_end = torch.where(farthest[partners] > farthest[anchors], partners, anchors)
    near_end = torch.where(nearest[partners] < nearest[anchors], partners, anchors)
    return far_end, far_at[far_end], near_end, near_at[near_end]
