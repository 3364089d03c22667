"""LoOp's lifted structure loss: a hinge on each positive pair and the nearest negative of its two samples."""

import torch
from torch import Tensor

from pml_ext._checks import check_floating, check_in_range, check_mask, check_positions, check_switch


def lifted_hinges(
    distances: Tensor,
    anchors: Tensor,
    positives: Tensor,
    negative: Tensor,
    *,
    margin: float,
    among_themselves: bool = True,
) -> Tensor:
    """relu(d_ij + margin − the smallest distance of i or j to a negative) of each positive pair (i, j).

    Args:
        distances: (B, R), larger = further apart (pass negated similarities).
        anchors, positives: (P,) rows and columns of the positive pairs.
        negative: (B, R) bool, the negative pairs.
        margin: in the unit of the distances.
        among_themselves: rows and columns are the same samples, so the positive's negatives count too; if False, only
            the anchor's do.
    Returns:
        (P,); 0 where neither i nor j has a negative.
    Source: Vasudeva et al., "LoOp", ICCV 2021, eq. 16: a hinge and a hard minimum in place of the original's square
        and log-sum-exp.

    >>> distances = torch.tensor([[0.0, 0.5, 0.6], [0.5, 0, 0.4], [0.6, 0.4, 0]])
    >>> i, j, negative = torch.tensor([0]), torch.tensor([1]), torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 0]]).bool()
    >>> [round(x, 3) for x in lifted_hinges(distances, i, j, negative, margin=0.2).tolist()]
    [0.3]
    """
    check_floating(distances, "distances", "(B, R)")
    check_mask(negative, distances.shape, "negative")
    check_switch(among_themselves, "among_themselves")
    check_in_range(margin, 0, float("inf"), "margin")
    rows, columns = distances.shape
    check_positions(anchors, rows, "anchors")
    check_positions(positives, min(rows, columns) if among_themselves else columns, "positives", like=anchors)
    return hinges_of_pairs(distances, anchors, positives, negative, margin, among_themselves)


def hinges_of_pairs(
    distances: Tensor, anchors: Tensor, positives: Tensor, negative: Tensor, margin: float, among_themselves: bool
) -> Tensor:
    """`lifted_hinges` without the checks: they read the indices, which synchronises with the GPU."""
    nearest = distances.masked_fill(~negative, torch.inf).amin(dim=1)
    nearest_of_pair = nearest[anchors]
    if among_themselves:
        nearest_of_pair = torch.minimum(nearest_of_pair, nearest[positives])
    return torch.relu(distances[anchors, positives] + margin - nearest_of_pair)
