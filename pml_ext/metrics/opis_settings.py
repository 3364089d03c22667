"""Settings of OPIS, without torchmetrics, which thresholds do not need."""

from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_in_range, check_seed
from pml_ext.functional.operating_points.calibration import check_far_range_and_grid, utility_curves
from pml_ext.functional.operating_points.utility import UtilityCurves
from pml_ext.functional.pairwise.pair_distances import (
    PairDistances,
    all_or_sampled_pairs,
    check_negatives_per_positive,
)


@dataclass(frozen=True)
class OPISSettings:
    """Settings of OPIS and ε-OPIS; two scores can be compared only if these are equal.

    Args:
        far_range, grid: false accept rates between which utilities are compared, and at how many thresholds.
        epsilon: of ε-OPIS, see `functional.epsilon_opis`.
        negatives_per_positive: negative pairs drawn per positive pair; None: all negative pairs.
        seed: of the draw.
    Raises:
        ValueError: a number out of range.

    >>> OPISSettings(far_range=(1e-3, 1e-2)).grid
    100
    """

    far_range: tuple[float, float] = (1e-2, 1e-1)
    grid: int = 100
    epsilon: float = 0.1
    negatives_per_positive: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_far_range_and_grid(self.far_range, self.grid)
        check_in_range(self.epsilon, 0, 1, "epsilon")
        check_negatives_per_positive(self.negatives_per_positive)
        check_seed(self.seed)

    def pairs(
        self,
        embeddings: Tensor,
        labels: Tensor,
        offsets: Tensor | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> PairDistances:
        """The pairs that are compared: all of them, or all positive ones and a draw of negative ones."""
        return all_or_sampled_pairs(embeddings, labels, self.negatives_per_positive, self.seed, group, offsets)

    def curves_at(self, thresholds: Tensor, embeddings: Tensor, labels: Tensor) -> UtilityCurves:
        """The curves of these pairs at given thresholds, beside the calibration range."""
        return utility_curves(
            embeddings,
            labels,
            far_range=self.far_range,
            thresholds=thresholds,
            negatives_per_positive=self.negatives_per_positive,
            seed=self.seed,
        )
