"""Settings of OPIS; does not import torchmetrics."""

from dataclasses import dataclass

from pml_ext._shared.checks import check_in_range
from pml_ext.functional.opis.utility import check_far_range_and_grid


@dataclass(frozen=True)
class OPISSettings:
    """Settings of OPIS and ε-OPIS. Scores are comparable only if they have equal settings.

    Args:
        far_range, grid: range of false accept rates in which utilities are compared, and number of thresholds.
        epsilon: share of classes of ε-OPIS, see `functional.epsilon_opis`.
    Raises:
        ValueError: a number out of range.

    >>> OPISSettings(far_range=(1e-3, 1e-2)).grid
    100
    """

    far_range: tuple[float, float] = (1e-2, 1e-1)
    grid: int = 100
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_far_range_and_grid(self.far_range, self.grid)
        check_in_range(self.epsilon, 0, 1, "epsilon")
