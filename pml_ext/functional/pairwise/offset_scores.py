"""Scores from which an offset of both samples is subtracted, as inner products."""

import torch
from torch import Tensor

from pml_ext._checks import check_finite, check_floating


def both_sides(unit: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows whose inner products, one side with the other, are cosine − offset of one − offset of the other.

    unit: (N, D) of length 1; offsets: (N,), None: no offsets, and both sides are `unit` itself. Returns (N, D + 2).
    """
    if offsets is None:
        return unit, unit
    column = -offsets.to(unit)[:, None]
    one = torch.ones_like(column)
    return torch.cat([unit, column, one], dim=1), torch.cat([unit, one, column], dim=1)


def check_offsets(offsets: Tensor | None, count: int) -> None:
    """Raise unless offsets are None or (count,) finite numbers."""
    if offsets is not None:
        check_floating(offsets, "offsets", "(N,)")
        if len(offsets) != count:
            raise ValueError(f"offsets must have shape ({count},), one per embedding; got {tuple(offsets.shape)}")
        check_finite(offsets, "offsets")


def sides_of_distance(query: Tensor, gallery: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose Euclidean distances rank the gallery as cosine − offset of the gallery item does.

    query, gallery: (Q, D) and (G, D) of length 1; offsets: (G,). Returns (Q, D + 1) and (G, D + 1).
    """
    column = (2 * (offsets - offsets.min())).sqrt()[:, None].to(gallery)
    return torch.cat([query, query.new_zeros(len(query), 1)], dim=1), torch.cat([gallery, column], dim=1)
