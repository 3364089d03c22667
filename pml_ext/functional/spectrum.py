"""How evenly embeddings spread over their dimensions."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision, unit_rows
from pml_ext._shared.checks import check_finite_embeddings

_BLOCK = 4096  # rows converted to float64 at a time
# Measured on Glyphs, Digits and four sets of images: mean cosines of 0.06 to 0.56 of trained
# networks, up to 0.98 of random ones, 0.9995 and more after collapses; shares of up to 0.45 before collapses.
_NEARLY_EQUAL, _ONE_DIRECTION = 0.999, 0.99

ADVICE_ON_COLLAPSE = (
    "try a smaller learning rate, a warm-up, more samples per class in a batch, another miner, or semi-hard triplets"
)
"""Remedies for a collapse, to end a sentence with."""


class EmbeddingSpread(NamedTuple):
    """How much embeddings vary, after their rows are scaled to length 1.

    Attributes:
        mean_cosine: mean over all pairs of two rows, in [-1, 1].
        largest_share: share of the variance along the direction that has most of it, in [1 / D, 1].
        shape: (N, D).

    largest_share is nan if all rows are equal to the precision of their type.

    >>> spread = EmbeddingSpread(mean_cosine=0.9999, largest_share=0.4, shape=(100, 16))
    >>> spread.problem()
    'the embeddings are nearly equal (mean cosine 0.999900)'
    """

    mean_cosine: float
    largest_share: float
    shape: tuple[int, int]

    def problem(self, classes: int | None = None) -> str:
        """Returns a clause that describes the collapse of the embeddings; "" for healthy embeddings.

        - Nearly equal embeddings: the mean cosine is above 0.999, i.e. two rows differ by 4.5 % of their length.
        - Embeddings on a line: one direction has more than 99 % of the variance. This is expected, and not reported,
          for embeddings with fewer than 3 dimensions (whose sphere is a circle) and for two tight classes.

        Args:
            classes: number of classes; None: more than two.
        """
        if math.isnan(self.largest_share):
            return "all embeddings are equal"
        if self.mean_cosine > _NEARLY_EQUAL:
            return f"the embeddings are nearly equal (mean cosine {self.mean_cosine:.6f})"
        can_be_flat = self.shape[1] > 2 and (classes is None or classes > 2)
        if can_be_flat and self.largest_share > _ONE_DIRECTION:
            return f"one of {self.shape[1]} directions has {100 * self.largest_share:.2f} % of the embeddings' variance"
        return ""


def embedding_spread(embeddings: Tensor) -> EmbeddingSpread:
    """Measure whether embeddings have collapsed, onto a point or onto a line.

    Takes N·D·min(N, D) operations. For a large set, every tenth row is enough.

    Args:
        embeddings: (N, D), finite, of several classes, in training or in evaluation; normalised here.
    Returns:
        EmbeddingSpread, whose `problem()` is "" for healthy embeddings.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite, or there are fewer than 2.

    >>> embedding_spread(torch.eye(3)).problem()
    ''
    >>> embedding_spread(torch.ones(8, 3)).problem()
    'all embeddings are equal'
    """
    check_finite_embeddings(embeddings)
    rows, columns = embeddings.shape
    if rows < 2:
        raise ValueError(f"embeddings must have at least 2 rows, to differ from each other; got {rows}")
    with full_precision(embeddings.device):
        unit = unit_rows(embeddings)
        mean = unit.mean(dim=0, dtype=torch.float64)
        if rows < columns:
            centred = unit.double() - mean
            scatter = centred @ centred.mT  # same eigenvalues as the other product, apart from zeros
        else:
            scatter = torch.zeros(columns, columns, dtype=torch.float64, device=unit.device)
            for block in unit.split(_BLOCK):
                centred = block.double() - mean
                scatter.addmm_(centred.mT, centred)
        variances = torch.linalg.eigvalsh(scatter / rows).clamp_min(0)
    total = float(variances.sum())
    mean_square = float((unit != 0).any(dim=1).double().mean())  # lower limit of the lengths: zero rows stay zero
    mean_cosine = mean_square - total * rows / (rows - 1)
    if total <= torch.finfo(embeddings.dtype).eps ** 2:
        return EmbeddingSpread(mean_cosine, math.nan, (rows, columns))
    shares = variances / total
    return EmbeddingSpread(mean_cosine, float(shares[-1]), (rows, columns))


def spectral_variance(embeddings: Tensor) -> Tensor:
    r"""KL(uniform ‖ s) of the normalised singular values s; 0 if all directions are used evenly, higher if fewer are.

    $$-\log n - \frac{1}{n} \sum_i \log s_i, \quad \sum_i s_i = 1$$

    Args:
        embeddings: (N, D), finite; they are neither centred nor normalised.
    Returns:
        0-dim float64, in nats, >= 0; inf if a singular value is 0 to working precision (an unused direction), nan if
        all embeddings are zero.
    Raises:
        ValueError: embeddings are not (N, D), floating and finite.
    Source: Roth et al., "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning",
        ICML 2020, section 5 (ρ). Paper: D singular values; here: min(N, D).

    >>> round(float(spectral_variance(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))), 3)
    0.144
    """
    check_finite_embeddings(embeddings)
    with full_precision(embeddings.device):
        x = embeddings.detach().double()
        # R of QR is smaller and has the same singular values.
        if x.shape[0] > x.shape[1]:
            x = torch.linalg.qr(x, mode="r").R
        values = torch.linalg.svdvals(x)
    rounding = max(embeddings.shape) * torch.finfo(embeddings.dtype).eps * values[0]
    share = torch.where(values > rounding, values, 0.0) / values.sum()
    divergence: Tensor = -math.log(len(values)) - share.log().mean()
    return divergence
