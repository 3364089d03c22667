"""Settings of OPIS; does not import torchmetrics."""

from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_in_range, check_seed
from pml_ext.functional.opis.utility import UtilityCurves, check_far_range_and_grid, utility_curves
from pml_ext.functional.pairwise.pair_distances import (
    PairDistances,
    all_or_sampled_pairs,
    check_negatives_per_positive,
)


@dataclass(frozen=True)
class OPISSettings:
    """Settings of OPIS and ε-OPIS. Scores are comparable only if they have equal settings.

    Args:
        far_range, grid: range of false accept rates in which utilities are compared, and number of thresholds.
        epsilon: share of classes of ε-OPIS, see `functional.epsilon_opis`.
        negatives_per_positive: negative pairs drawn per positive pair; None: all negative pairs.
        seed: seed of the draw.
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
        """Returns the compared pairs: all pairs, or all positive and randomly drawn negative pairs."""
        return all_or_sampled_pairs(embeddings, labels, self.negatives_per_positive, self.seed, group, offsets)

    def curves_at(self, thresholds: Tensor, embeddings: Tensor, labels: Tensor) -> UtilityCurves:
        """Returns the curves of these pairs at thresholds, with the calibration range."""
        return utility_curves(
            embeddings,
            labels,
            far_range=self.far_range,
            thresholds=thresholds,
            negatives_per_positive=self.negatives_per_positive,
            seed=self.seed,
        )
