"""Rates of probes that search an enrolled gallery, as in IJB's 1:N protocol, from their scores."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext.functional.verification.tar_at_far_rule import tar_at_far

_MISSED = -2.0  # below every cosine


class GalleryScores(NamedTuple):
    """Cosines of P probes; a probe is mated if its subject is enrolled."""

    mated: Tensor  # (P,) bool
    own: Tensor  # (P,) the best with its own subject; −inf if it is not mated
    before: Tensor  # (P,) the number of other subjects that are not below that, as far as it was counted
    best: Tensor  # (P,) the best with any subject


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
