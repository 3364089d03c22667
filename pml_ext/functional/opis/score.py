"""OPIS and ε-OPIS: how much the classes of a test set differ at one distance threshold."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch import distributed as dist

from pml_ext._shared.checks import check_in_range, check_items
from pml_ext.functional.opis.utility import (
    calibrated_curves,
    check_far_range_and_grid,
    epsilon_opis_of_curves,
    opis_of_curves,
    utility_curves,
)
from pml_ext.functional.pairwise.pair_distances import PairDistances


class OPISAtRange(NamedTuple):
    """OPIS and ε-OPIS over one calibration range, with the range's distances.

    >>> row = OPISAtRange(far_range=(0.01, 0.1), opis=0.002, epsilon_opis=0.01, d_min=0.8, d_max=1.1)
    >>> row.opis
    0.002
    """

    far_range: tuple[float, float]
    opis: float
    epsilon_opis: float
    d_min: float
    d_max: float


def opis_sensitivity(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_ranges: Sequence[tuple[float, float]],
    epsilon: float = 0.1,
    grid: int = 100,
    group: dist.ProcessGroup | None = None,
    offsets: Tensor | None = None,
) -> list[OPISAtRange]:
    """Compute OPIS and ε-OPIS over several calibration ranges, from two passes over the pairs.

    Args:
        far_ranges: pairs of false accept rates; they may overlap.
        epsilon, others: see `epsilon_opis` and `utility_curves`.
    Returns:
        One row per range, in their order.
    Raises:
        ValueError: no far_ranges; see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, Fig. 8.

    >>> import torch
    >>> embeddings = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    >>> rows = opis_sensitivity(embeddings, torch.arange(40) % 4, far_ranges=[(0.01, 0.1), (0.1, 0.5)])
    >>> [row.far_range for row in rows], rows[0].d_max == rows[1].d_min
    ([(0.01, 0.1), (0.1, 0.5)], True)
    """
    check_in_range(epsilon, 0, 1, "epsilon")
    check_items(far_ranges, "far_ranges", "pairs of false accept rates")
    if not far_ranges:
        raise ValueError("far_ranges must have at least one pair of false accept rates; got none")
    for far_range in far_ranges:
        check_far_range_and_grid(far_range, grid)
    pairs = PairDistances(embeddings, labels, group=group, offsets=offsets)
    rows = []
    for far_range, curves in zip(far_ranges, calibrated_curves(pairs, far_ranges=far_ranges, grid=grid), strict=True):
        score, gap = opis_of_curves(curves), epsilon_opis_of_curves(curves, epsilon)
        d_min, d_max = (float(end) for end in curves.calibration_range)
        rows.append(OPISAtRange((far_range[0], far_range[1]), float(score), float(gap), d_min, d_max))
    return rows


def opis(
    embeddings: Tensor,
    labels: Tensor,
    *,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    group: dist.ProcessGroup | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    r"""Operating-point inconsistency score: the variance of the utility between classes; lower is better.

    $$\text{OPIS} = \frac{1}{T} \sum_i \text{mean}_d (U_i(d) - \bar{U}(d))^2$$

    U_i is the utility of class i (see `UtilityCurves`), Ū its mean over the T classes; the mean is over the distances d
    of the calibration range.

    Args:
        embeddings, labels, far_range, grid, group, offsets: see `utility_curves`.
    Returns:
        0-dim float64, in [0, 0.25].
    Raises:
        ValueError: see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, eq. 2, averaged over the grid. Paper: A.1.2
        bounds it by $2 α (1 - α)$ if a share α of the classes is at one extreme; here: $α (1 - α)$, the variance of a
        variable with values 0 and 1, so at most 0.25.

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> spread = torch.tensor([0.1, 0.2, 0.4, 0.8])[labels]  # one class is tight, another loose
    >>> noise = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> embeddings = torch.eye(4, 8)[labels] + spread[:, None] * noise
    >>> round(float(opis(embeddings, labels)), 3)
    0.11
    """
    curves = utility_curves(
        embeddings,
        labels,
        far_range=far_range,
        grid=grid,
        group=group,
        offsets=offsets,
    )
    return opis_of_curves(curves)


def epsilon_opis(
    embeddings: Tensor,
    labels: Tensor,
    *,
    epsilon: float = 0.1,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    group: dist.ProcessGroup | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    r"""Squared utility gap between the worst and the best classes, over the calibration range; lower is better.

    $$\text{OPIS}_ε = \text{mean}_d (U_{worst}(d) - U_{best}(d))^2$$

    Args:
        embeddings, labels, far_range, grid, group, offsets: see `utility_curves`.
        epsilon: share of the classes in each of the two groups, in [0, 1]; at least one class. With 1 the result is 0.
    Returns:
        0-dim float64, in [0, 1].
    Raises:
        ValueError: epsilon outside [0, 1]; see `utility_curves`.
    Source: Zhang et al., arXiv 2307.04047, eq. 4: φ and ψ are averaged over each group, then combined. Paper: does not
        state how classes are ranked or rounded; here: by mean utility over the range, max(1, round(ε T)) classes per
        group. Paper: eq. 3 lacks the factor 2 that eq. 1 and algorithm 1 have; here: with it.

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> spread = torch.tensor([0.1, 0.2, 0.4, 0.8])[labels]
    >>> noise = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> embeddings = torch.eye(4, 8)[labels] + spread[:, None] * noise
    >>> round(float(epsilon_opis(embeddings, labels)), 3)
    0.675
    """
    check_in_range(epsilon, 0, 1, "epsilon")
    curves = utility_curves(
        embeddings,
        labels,
        far_range=far_range,
        grid=grid,
        group=group,
        offsets=offsets,
    )
    return epsilon_opis_of_curves(curves, epsilon)
