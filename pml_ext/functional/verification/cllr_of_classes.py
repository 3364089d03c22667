"""C_llr of pairs of classes, fitted on some classes and measured on others, with intervals over classes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pml_ext.functional.verification.class_interval import half_width


class ClassPairs(NamedTuple):
    """Scores of pairs; the classes of both samples, equal for genuine pairs. All (P,)."""

    scores: Tensor
    one: Tensor
    other: Tensor

    @property
    def same(self) -> Tensor:
        return self.one == self.other

    def of(self, kept: Tensor) -> "ClassPairs":
        """Some of the pairs."""
        return ClassPairs(self.scores[kept], self.one[kept], self.other[kept])


def cost_in_bits(ratios: Tensor, same: Tensor) -> Tensor:
    """What (P,) natural log-likelihood ratios cost, in float64; C_llr is the mean of the means of both kinds."""
    return softplus(torch.where(same, -ratios, ratios)) / math.log(2)


def mean_with_interval(cost: Tensor, pairs: ClassPairs, classes: int) -> tuple[float, float, float]:
    """C_llr of pairs' costs, and a 95 % t interval of its logarithm from leaving classes out."""
    same = pairs.same
    value = torch.zeros((), dtype=torch.float64)
    without = torch.zeros(classes, dtype=torch.float64)
    for kind, sides in ((same, (pairs.one,)), (~same, (pairs.one, pairs.other))):
        sums, numbers = torch.zeros((2, classes), dtype=torch.float64)
        for side in sides:
            sums.index_add_(0, side[kind], cost[kind])
            numbers += torch.bincount(side[kind], minlength=classes)
        value += cost[kind].mean() / 2
        without += (cost[kind].sum() - sums) / (int(kind.sum()) - numbers) / 2
    seen = torch.unique(torch.cat([pairs.one, pairs.other]))
    logs = without[seen].clamp_min(1e-300).log()
    if not float(value) or not bool(logs.isfinite().all()):
        return float(value), 0.0, math.inf
    ratio = math.exp(min(half_width(logs), 700.0))  # 1e304, where one class has all the cost
    return float(value), float(value) / ratio, float(value) * ratio
