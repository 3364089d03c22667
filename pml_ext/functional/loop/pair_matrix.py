"""LoOp over a batch: the closest points of the arcs (or segments) of every two samples, from their pair matrix."""

import torch
from torch import Tensor

from pml_ext.functional.loop.all_partners import Rounds
from pml_ext.functional.loop.consecutive import OneRound
from pml_ext.functional.loop.geometry import GEOMETRIES
from pml_ext.functional.loop.partners import Round, class_pairings


def loop_pairs(
    pairs: Tensor,
    labels: Tensor,
    ref_labels: Tensor | None = None,
    *,
    points: Tensor | None = None,
    ref_points: Tensor | None = None,
    pairing: str = "consecutive",
    geometry: str = "arc",
) -> Tensor:
    """For each pair of samples the closest points of an arc through the one and an arc through the other.

    Args:
        pairs: (B, R), cosines for geometry "arc", squared distances for "segment".
        labels, ref_labels: (B,) and (R,) class ids; without ref_labels the columns are the rows' samples, and
            `pairs` is symmetric.
        points, ref_points: (B, D) and (R, D), needed beside ref_labels: there `pairs` does not hold the
            pairs inside a class. Unit vectors for "arc".
        pairing: "consecutive": the 1st and 2nd sample of a class, the 3rd and 4th …, in batch order, are an arc.
            "all": every pair of a class is one, and the closest of all arcs through the two samples counts.
            A sample left over is its own arc.
        geometry: "arc" or "segment".
    Returns:
        (B, R): the largest cosine or the smallest squared distance. Entries of one class mean nothing.
        Memory is O(BR) and, for "all", O(B) times the class size. No double backward.
    Source: Vasudeva et al., "LoOp", ICCV 2021. Paper: consecutive pairs, even counts; here: any count, and "all".
    """
    partners = class_pairings(labels, pairing)
    if ref_labels is None:
        ref_partners, within, ref_within = partners, None, None
    else:
        ref_partners = class_pairings(ref_labels, pairing)
        assert points is not None and ref_points is not None
        within, ref_within = _within(points, partners, geometry), _within(ref_points, ref_partners, geometry)
    if len(partners) == len(ref_partners) == 1:
        rows = Round(partners[0])
        columns = rows if ref_within is None else Round(ref_partners[0])
        inside = (None, None) if within is None or ref_within is None else (within[0], ref_within[0])
        return OneRound.apply(pairs, *inside, rows, columns, GEOMETRIES[geometry])
    return Rounds.apply(pairs, within, ref_within, partners, ref_partners, GEOMETRIES[geometry])


def _within(points: Tensor, partners: Tensor, geometry: str) -> Tensor:
    """(rounds, B): the entry of each sample with its partner, exact where it is its own partner."""
    if geometry == "arc":
        entries = torch.stack([(points * points[partner]).sum(1) for partner in partners])
    else:
        entries = torch.stack([(points - points[partner]).square().sum(1) for partner in partners])
    itself = torch.arange(partners.shape[1], device=partners.device)
    return torch.where(partners == itself, GEOMETRIES[geometry].of_itself, entries)
