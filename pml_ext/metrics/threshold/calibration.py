"""Calibration: a line from cosine to log-likelihood ratio, and how good its ratios are on other classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_blocks import listed_cosines
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.likelihood_ratio import ClassPairs, cost_in_bits, mean_with_interval
from pml_ext.metrics.score_calibration import ScoreCalibration
from pml_ext.metrics.threshold.structures import Calibration, MeanRate

_MAX_PAIRS = 40_000  # of each kind
_MIN_CLASSES = 4


def calibrate_pairs(pairs: PairDistances, *, seed: int) -> Calibration | None:
    """Fits a line on all classes, and measures C_llr of halves of the classes, each with the line of the other.

    None where too few classes have genuine pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    sampled = _sample_pairs(pairs, generator)
    side = torch.randperm(len(pairs.classes), generator=generator) % 2
    sides = side[sampled.one], side[sampled.other]
    first = sampled.of((sides[0] == 0) & (sides[1] == 0))
    second = sampled.of((sides[0] == 1) & (sides[1] == 1))
    if not (_has_both_kinds(first) and _has_both_kinds(second)):
        return None
    halves = first, second
    both = ClassPairs(*map(torch.cat, zip(first, second, strict=True)))
    genuine = both.same
    if len(torch.unique(both.one[genuine])) < _MIN_CLASSES:
        return None
    lines = [ScoreCalibration(half.scores, half.same) for half in halves]
    steps = [ScoreCalibration(half.scores, half.same, "isotonic") for half in halves]

    def cost(fits: Sequence[ScoreCalibration]) -> Tensor:
        """Of the first half's pairs by the first fit, and of the second's by the second."""
        ratios = fits[0].log_ratio(first.scores), fits[1].log_ratio(second.scores)
        return cost_in_bits(torch.cat(ratios), genuine)

    classes = len(pairs.classes)
    measured = mean_with_interval(cost(lines[::-1]), both, classes)
    # Steps fit their own classes too well and others too badly by about as much: the lowest cost lies midway.
    lowest = mean_with_interval((cost(steps) + cost(steps[::-1])) / 2, both, classes)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    intercept, at_one = ScoreCalibration(sampled.scores, sampled.same).log_ratio(ends).tolist()
    return Calibration(
        slope=at_one - intercept,
        intercept=intercept,
        cllr=_bounded(*measured),
        min_cllr=_bounded(*min(measured, lowest)),
        genuine_pairs=int(genuine.sum()),
        impostor_pairs=int((~genuine).sum()),
    )


def _has_both_kinds(pairs: ClassPairs) -> bool:
    return bool(pairs.same.any()) and not bool(pairs.same.all())


def _bounded(value: float, low: float, high: float) -> MeanRate:
    return MeanRate(value, low, min(high, max(1.0, 10 * value)))


def _sample_pairs(pairs: PairDistances, generator: torch.Generator) -> ClassPairs:
    """Genuine pairs, and as many draws of pairs of two classes; at most _MAX_PAIRS of each."""
    label = pairs.index.cpu()
    blocks_of_scores, blocks_of_labels = [], []
    with full_precision(pairs.unit.device):
        for block in pairs.blocks(positives_only=True):
            flat, row, _ = pairs._positive_places(block)
            blocks_of_scores.append(block.cosines.view(-1)[flat].cpu())
            blocks_of_labels.append(label[(row + block.rows.start).cpu().long()])
    genuine, genuine_label = torch.cat(blocks_of_scores), torch.cat(blocks_of_labels)
    kept = torch.randperm(len(genuine), generator=generator)[:_MAX_PAIRS]
    one, other = torch.randint(len(label), (2, _MAX_PAIRS), generator=generator)
    is_impostor = label[one] != label[other]
    one, other = one[is_impostor], other[is_impostor]
    device = pairs.unit.device
    impostors = listed_cosines(pairs.unit, pairs.other, one.to(device), other.to(device)).cpu()
    return ClassPairs(
        torch.cat([genuine[kept], impostors]).double(),
        torch.cat([genuine_label[kept], label[one]]),
        torch.cat([genuine_label[kept], label[other]]),
    )
