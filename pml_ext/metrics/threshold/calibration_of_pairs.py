"""What a score means: a line from cosine to log-likelihood ratio, and how good its ratios are on other classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_blocks import listed_cosines
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.likelihood_ratio import ClassPairs, cost_in_bits, mean_with_interval
from pml_ext.metrics.score_calibration import ScoreCalibration
from pml_ext.metrics.threshold.rate_fields import Calibration, MeanRate

_MOST = 40_000  # pairs of each kind


def calibrate_pairs(pairs: PairDistances, *, seed: int) -> Calibration | None:
    """Fitted on all classes; C_llr of halves of the classes, each with the line of the other. None: too few classes."""
    generator = torch.Generator().manual_seed(seed)
    classes = len(pairs.classes)
    found = _sample(pairs, generator)
    half = torch.randperm(classes, generator=generator) % 2
    halves = [found.of((half[found.one] == side) & (half[found.other] == side)) for side in (0, 1)]
    if any(bool(part.same.all()) or not bool(part.same.any()) for part in halves):
        return None
    lines = [ScoreCalibration(part.scores, part.same) for part in halves]
    both = ClassPairs(*(torch.cat(parts) for parts in zip(*halves, strict=True)))
    if len(torch.unique(both.one[both.same])) < 4:
        return None
    steps = [ScoreCalibration(part.scores, part.same, "isotonic") for part in halves]

    def cost(fits: Sequence[ScoreCalibration]) -> Tensor:
        """Of the first half's pairs by the first fit, and the second's by the second."""
        ratios = [fit.log_ratio(part.scores) for fit, part in zip(fits, halves, strict=True)]
        return cost_in_bits(torch.cat(ratios), both.same)

    measured = mean_with_interval(cost(lines[::-1]), both, classes)
    # Steps fit their own classes too well and others too badly by about as much: the lowest cost lies midway.
    least = min(measured, mean_with_interval((cost(steps) + cost(steps[::-1])) / 2, both, classes))
    line = ScoreCalibration(found.scores, found.same).log_ratio(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    return Calibration(
        line[1] - line[0], line[0], _bounded(measured), _bounded(least), int(both.same.sum()), int((~both.same).sum())
    )


def _bounded(of: tuple[float, float, float]) -> MeanRate:
    value, low, high = of
    return MeanRate(value, low, min(high, max(1.0, 10 * value)))


def _sample(pairs: PairDistances, generator: torch.Generator) -> ClassPairs:
    """Genuine pairs, and as many draws of pairs of two classes; at most _MOST of each."""
    label = pairs.index.cpu()
    scores, rows = [], []
    with full_precision(pairs.unit.device):
        for block in pairs.blocks(positives_only=True):
            flat, row, _ = pairs._positive_places(block)
            scores.append(block.cosines.view(-1)[flat].cpu())
            rows.append(label[(row + block.rows.start).cpu().long()])
    genuine, of = torch.cat(scores), torch.cat(rows)
    kept = torch.randperm(len(genuine), generator=generator)[:_MOST]
    one, other = torch.randint(len(label), (2, _MOST), generator=generator)
    apart = label[one] != label[other]
    one, other = one[apart], other[apart]
    device = pairs.unit.device
    impostors = listed_cosines(pairs.unit, pairs.other, one.to(device), other.to(device)).cpu()
    return ClassPairs(
        torch.cat([genuine[kept], impostors]).double(),
        torch.cat([of[kept], label[one]]),
        torch.cat([of[kept], label[other]]),
    )
