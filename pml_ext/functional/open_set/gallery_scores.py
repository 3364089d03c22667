"""Probes against an enrolled gallery, as in IJB's 1:N protocol: scores from which its rates follow."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.precision import full_precision
from pml_ext.functional.verification.tar_at_far_rule import tar_at_far

_MISSED = -2.0  # below every cosine


class GalleryScores(NamedTuple):
    """Cosines of P probes; a probe is mated if its subject is enrolled."""

    mated: Tensor  # (P,) bool
    own: Tensor  # (P,) the best with its own subject; −inf if it is not mated
    before: Tensor  # (P,) the number of other subjects that are not below that
    best: Tensor  # (P,) the best with any subject


def scores_in_gallery(probes: Tensor, subjects: Tensor, enrolled: Tensor, enrolled_subjects: Tensor) -> GalleryScores:
    """Compare (P, D) probes with (G, D) enrolled templates, rows of length 1; subjects: (P,) and (G,) integers.

    The score of a subject is the best of its templates.
    """
    names, place = torch.unique(enrolled_subjects.to(enrolled.device), return_inverse=True)
    subjects = subjects.to(names)
    at = torch.searchsorted(names, subjects).clamp_max(len(names) - 1)
    mated = names[at] == subjects
    found = []
    for rows in row_blocks(len(probes), len(enrolled), probes.device):
        with full_precision(probes.device):
            cosines = probes[rows] @ enrolled.T
        best = cosines.new_full((len(cosines), len(names)), -torch.inf)
        best.scatter_reduce_(1, place.expand_as(cosines), cosines, "amax")
        own = best.gather(1, at[rows, None])[:, 0].masked_fill(~mated[rows], -torch.inf)
        before = (best >= own[:, None]).sum(dim=1) - mated[rows].long()
        found.append((own, before, best.amax(dim=1)))
    return GalleryScores(mated, *(torch.cat(part) for part in zip(*found, strict=True)))


def tpir_at_fpir(scores: GalleryScores, fpir: float) -> Tensor:
    """Share of mated probes whose own subject comes first, and is at or above the threshold.

    The threshold is the lowest at which at most `fpir` of the other probes have any subject; nan, as in `tar_at_far`,
    with too few of them for the rate.
    """
    found = torch.where(scores.before == 0, scores.own, _MISSED)
    return tar_at_far(torch.where(scores.mated, found, scores.best), scores.mated, fpir)


def share_within_rank(scores: GalleryScores, rank: int) -> Tensor:
    """Share of mated probes found among the first `rank`; ties count against them."""
    return (scores.before[scores.mated] < rank).double().mean()
