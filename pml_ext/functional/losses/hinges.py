"""Hinges of positive pairs with the nearest negatives of both samples."""

import torch
from torch import Tensor

from pml_ext._shared.checks import check_floating, check_in_range, check_mask, check_positions, check_switch


def lifted_hinges(
    distances: Tensor,
    anchors: Tensor,
    positives: Tensor,
    negative: Tensor,
    *,
    margin: float,
    among_themselves: bool = True,
) -> Tensor:
    r"""Returns the hinge of each positive pair (i, j) with the negative n nearest to either sample; m is the margin.

    $$\max(0, d_{ij} + m - \min_n \min(d_{in}, d_{jn}))$$

    Args:
        distances: (B, R), larger = further apart (pass negated similarities).
        anchors, positives: (P,) rows and columns of the positive pairs.
        negative: (B, R) bool, the negative pairs.
        margin: in the unit of the distances.
        among_themselves: True if rows and columns are the same samples; the positive's negatives then count too, not
            only the anchor's.
    Returns:
        (P,); 0 if neither i nor j has a negative.
    Source: Vasudeva et al., "LoOp", ICCV 2021, eq. 16: a hinge and a hard minimum in place of the original's square
        and log-sum-exp.

    >>> distances = torch.tensor([[0.0, 0.5, 0.6], [0.5, 0, 0.4], [0.6, 0.4, 0]])
    >>> negative = torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 0]]).bool()
    >>> hinges = lifted_hinges(distances, torch.tensor([0]), torch.tensor([1]), negative, margin=0.2)
    >>> [round(hinge, 3) for hinge in hinges.tolist()]
    [0.3]
    """
    check_floating(distances, "distances", "(B, R)")
    check_mask(negative, distances.shape, "negative")
    check_switch(among_themselves, "among_themselves")
    check_in_range(margin, 0, float("inf"), "margin")
    rows, columns = distances.shape
    check_positions(anchors, rows, "anchors")
    check_positions(positives, min(rows, columns) if among_themselves else columns, "positives", like=anchors)
    nearest = nearest_negatives(distances, negative)
    return hinges_of_pairs(distances, anchors, positives, nearest, nearest if among_themselves else None, margin)


def nearest_negatives(distances: Tensor, negative: Tensor) -> Tensor:
    """Returns the smallest distance of each row to a negative, inf without a negative."""
    return distances.masked_fill(~negative, torch.inf).amin(dim=1)


def hinges_of_pairs(
    distances: Tensor, anchors: Tensor, positives: Tensor, nearest: Tensor, ref_nearest: Tensor | None, margin: float
) -> Tensor:
    """Compute `lifted_hinges` without the checks, which read the indices and so synchronise with the GPU.

    nearest, ref_nearest: (B,) and (R,) distances of rows and columns to their nearest negative; None: unknown.
    """
    nearest_of_pair = nearest[anchors]
    if ref_nearest is not None:
        nearest_of_pair = torch.minimum(nearest_of_pair, ref_nearest[positives])
    return torch.relu(distances[anchors, positives] + margin - nearest_of_pair)
