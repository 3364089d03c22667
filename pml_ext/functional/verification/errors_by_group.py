"""Errors at a threshold by group of samples and by pair of groups, and intervals for comparing the groups."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_blocks import PairBlocks, true_places
from pml_ext.functional.verification.intervals import jackknife_variance

_HALF = 0.5  # errors that count if there are none: keeps ratios above 0 and finite


class GroupErrors(NamedTuple):
    """Error counts per class, int64, for T classes; a class's pairs are those with a sample of it.

    false_accepts, impostor_pairs: (T, G, G) by the groups of a pair's samples, symmetric.
    false_rejects, genuine_pairs: (T, G); a genuine pair of two groups counts for both.
    """

    false_accepts: Tensor
    impostor_pairs: Tensor
    false_rejects: Tensor
    genuine_pairs: Tensor


def group_errors(pairs: PairBlocks, groups: Tensor, count: int, cosine: float) -> GroupErrors:
    """Count the errors at a cosine threshold; groups: (N,) ids from 0 to count − 1, in the order of the samples."""
    classes = len(pairs.classes)
    groups, label = groups.cpu(), pairs.index.cpu()
    samples = torch.zeros((classes, count), dtype=torch.int64, device="cpu")
    samples.index_put_((label, groups), torch.ones_like(label), accumulate=True)
    false_accepts = torch.zeros((classes, count, count), dtype=torch.int64, device="cpu")
    genuine, rejects = torch.zeros((2, classes, count), dtype=torch.int64, device="cpu")

    def add(to: Tensor, *places: Tensor) -> None:
        to.index_put_(places, torch.ones_like(places[0]), accumulate=True)

    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            if block.mixed:
                flat, row, column = pairs.positive_places(block)
                one, other = (at.cpu() for at in (row + block.rows.start, column + block.columns.start))
                refused = (block.cosines.view(-1)[flat] < cosine).cpu()
                apart = groups[one] != groups[other]
                for counts, kept in ((genuine, torch.ones_like(refused)), (rejects, refused)):
                    add(counts, label[one[kept]], groups[one[kept]])
                    both = kept & apart
                    add(counts, label[other[both]], groups[other[both]])
            accepted = block.cosines >= cosine
            if block.mixed:
                accepted &= pairs.negative_mask(block)
            _, row, column = true_places(accepted)
            one, other = (at.cpu().long() for at in (row + block.rows.start, column + block.columns.start))
            cell = groups[one], groups[other]
            apart = cell[0] != cell[1]
            for of_class in (label[one], label[other]):
                add(false_accepts, of_class, *cell)
                add(false_accepts, of_class[apart], cell[1][apart], cell[0][apart])
    everywhere = samples.sum(dim=0) - samples
    impostors = samples[:, :, None] * everywhere[:, None] + everywhere[:, :, None] * samples[:, None]
    diagonal = torch.arange(count, device="cpu")
    impostors[:, diagonal, diagonal] = samples * everywhere
    return GroupErrors(false_accepts, impostors, rejects, genuine)


def rates_without_each(errors: Tensor, pairs: Tensor, classes_per_pair: int) -> tuple[Tensor, Tensor]:
    """Returns (G,) group rates, and (T, G) rates with each class left out; zero errors count as half an error there.

    errors, pairs: (T, G) counts per class; classes_per_pair: see `rate_without_each`.
    """
    wrong, total = errors.sum(dim=0) // classes_per_pair, pairs.sum(dim=0) // classes_per_pair
    return wrong.double() / total, (wrong - errors).double().clamp_min(_HALF) / (total - pairs)


def interval_by_stratum(value: Tensor, without: Tensor, stratum: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the ends of 95 % t intervals of (G,) statistics, from their (T, G) values with each class left out.

    The (T,) strata are independent samples; each class is left out of its stratum. Source: Arvesen 1969, for several
    samples; see `jackknife_interval`.
    """
    from scipy.special import stdtrit  # a dependency of pytorch-metric-learning's scikit-learn

    strata, sizes = torch.unique(stratum, return_counts=True)
    variance = torch.stack([jackknife_variance(without[stratum == one]) for one in strata]).sum(dim=0)
    freedom = max(1, int(sizes.min()) - 1)
    half = variance.sqrt() * float(stdtrit(freedom, 0.975))
    return value - half, value + half
