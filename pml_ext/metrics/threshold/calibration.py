"""Calibration of a report: a line from cosine to log-likelihood ratio."""

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_blocks import listed_cosines
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics.score_calibration import ScoreCalibration
from pml_ext.metrics.threshold.structures import Calibration

_MAX_PAIRS = 40_000  # most pairs of each kind
_MIN_CLASSES = 4


def calibrate_pairs(pairs: PairDistances, *, seed: int) -> Calibration | None:
    """Fits a line to genuine pairs and a sample of impostor pairs; None if too few classes have genuine pairs."""
    if int((pairs.positive_pairs > 0).sum()) < _MIN_CLASSES:
        return None
    genuine, impostors = _sample_pairs(pairs, seed)
    same = torch.arange(len(genuine) + len(impostors)) < len(genuine)
    line = ScoreCalibration(torch.cat([genuine, impostors]).double(), same)
    return Calibration(line.slope, line.intercept)


def _sample_pairs(pairs: PairDistances, seed: int) -> tuple[Tensor, Tensor]:
    """Returns cosines of genuine pairs and of as many random impostor pairs, at most _MAX_PAIRS of each."""
    generator = torch.Generator().manual_seed(seed)
    label, device = pairs.index.cpu(), pairs.unit.device
    blocks = []
    with full_precision(device):
        for block in pairs.blocks(positives_only=True):
            flat, _, _ = pairs._positive_places(block)
            blocks.append(block.cosines.view(-1)[flat].cpu())
    genuine = torch.cat(blocks)
    kept = torch.randperm(len(genuine), generator=generator)[:_MAX_PAIRS]
    one, other = torch.randint(len(label), (2, _MAX_PAIRS), generator=generator)
    is_impostor = label[one] != label[other]
    one, other = one[is_impostor].to(device), other[is_impostor].to(device)
    return genuine[kept], listed_cosines(pairs.unit, pairs.other, one, other).cpu()
