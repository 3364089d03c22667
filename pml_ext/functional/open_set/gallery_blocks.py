"""Rates of probes that search an enrolled gallery, as in IJB's 1:N protocol; the gallery may come in blocks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import TIED, product_blocks, rows_of_a_block, unit_rows
from pml_ext._shared.checks import check_finite_embeddings, check_labels
from pml_ext._shared.identities import is_ranked
from pml_ext.functional.verification.roc import tar_at_far

_MISSED = -2.0  # below every cosine


class GalleryScores(NamedTuple):
    """Cosines of P probes; a probe is mated if its subject is enrolled."""

    mated: Tensor  # (P,) bool
    genuine: Tensor  # (P,) best cosine with the probe's subject; −inf if not mated
    before: Tensor  # (P,) number of other subjects within `TIED` of it or higher, up to a limit
    best: Tensor  # (P,) best cosine with any subject


def tpir_at_fpir(scores: GalleryScores, fpir: float) -> Tensor:
    """Returns the share of mated probes whose subject ranks first, at or above the threshold.

    The threshold is the lowest at which at most `fpir` of the non-mated probes match a subject; a score tied with the
    refused one is refused. Like `tar_at_far`, returns nan for too few non-mated probes.
    """
    identified = torch.where(scores.before == 0, scores.genuine - TIED, _MISSED)
    return tar_at_far(torch.where(scores.mated, identified, scores.best), scores.mated, fpir)


def scores_in_blocks(
    probes: Tensor,
    subjects: Tensor,
    gallery: Iterable[tuple[Tensor, ...]],
    *,
    most_before: int,
    cameras: Tensor | None = None,
    count: Callable[[Tensor, Tensor], None] | None = None,
) -> GalleryScores:
    """Compare (P, D) unit-length probes with a gallery, in the memory of one block.

    The score of a subject is the best of its rows.

    subjects: (P,) integers; gallery: blocks of (n, D) embeddings, normalised here, (n,) integer subjects (a subject may
    be in several blocks) and (n,) cameras; most_before: limit up to which `before` counts; cameras: (P,) integers, junk
    and rows of the probe's subject and camera are left out; count: called with the flat cosines of each part and their
    same-subject mask.
    """
    subjects = subjects.to(probes.device)
    cameras = None if cameras is None else cameras.to(probes.device)
    genuine = probes.new_full((len(probes),), -torch.inf)
    top = probes.new_full((len(probes), most_before), -torch.inf)  # best cosines with other subjects, descending
    names_of_top = subjects.new_full(top.shape, 0)
    for embeddings, labels, *seen_by in gallery:
        check_finite_embeddings(embeddings, "gallery")
        if embeddings.shape[1] != probes.shape[1]:
            raise ValueError(
                f"gallery must have {probes.shape[1]} dimensions, as the probes; got {embeddings.shape[1]}"
            )
        labels, order = check_labels(labels, len(embeddings), "the subjects of gallery").to(subjects).sort()
        enrolled = unit_rows(embeddings.to(probes)[order])
        by = None
        if cameras is not None and seen_by:
            by = check_labels(seen_by[0], len(labels), "the cameras of gallery").to(order.device)[order]
        names, place = labels.unique_consecutive(return_inverse=True)
        at = torch.searchsorted(names, subjects).clamp_max(len(names) - 1)
        here = names[at] == subjects
        if cameras is not None and by is None and here.any():
            raise ValueError("a gallery block with a probe's subject must have cameras if the probes have cameras")
        size = rows_of_a_block(len(enrolled), probes.device)
        for rows, best in product_blocks(probes, enrolled, size):
            if cameras is not None and by is not None:
                ranked = is_ranked((subjects[rows, None], cameras[rows, None]), (labels, by))
                best.masked_fill_(~ranked, -torch.inf)
            if count is not None:
                cosines, same = best.view(-1), (subjects[rows, None] == labels).view(-1)
                compared = slice(None) if by is None else cosines > -torch.inf
                count(cosines[compared], same[compared])
            if len(names) < len(labels):
                of_subjects = best.new_full((len(best), len(names)), -torch.inf)
                best = of_subjects.scatter_reduce_(1, place.expand_as(best), best, "amax")
            subject_column, is_here = at[rows, None], here[rows, None]
            mine = best.gather(1, subject_column).masked_fill(~is_here, -torch.inf)
            genuine[rows] = torch.maximum(genuine[rows], mine[:, 0])
            of_others = best.gather(1, subject_column).masked_fill(is_here, -torch.inf)
            best.scatter_(1, subject_column, of_others)
            scores, columns = best.topk(min(most_before, len(names)))
            top[rows], names_of_top[rows] = _highest_of_each(
                torch.cat([top[rows], scores], dim=1),
                torch.cat([names_of_top[rows], names[columns]], dim=1),
                most_before,
            )
    before = (top >= genuine[:, None] - TIED).sum(dim=1)
    return GalleryScores(genuine > -torch.inf, genuine, before, torch.maximum(genuine, top[:, 0]))


def _highest_of_each(scores: Tensor, names: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Returns each row's `most` highest scores of different names, and the names."""
    scores, order = scores.sort(dim=1, descending=True)
    names = names.gather(1, order)
    alike = names[:, :, None] == names[:, None, :]
    came_before = alike.tril_(-1).any(dim=2)
    again = came_before & (scores > -torch.inf)
    scores, order = scores.masked_fill(again, -torch.inf).sort(dim=1, descending=True, stable=True)
    return scores[:, :most], names.gather(1, order)[:, :most]
