"""What classifiers do to the score of the own class, and to those of the others, before they are scaled."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Rule = Callable[[Tensor, float], Tensor]
"""(scores, margin) -> scores of the same shape."""


class Margin(NamedTuple):
    """A margin softmax: scale · own(score to the own class), scale · others(the other scores), then cross-entropy.

    usual: the margin and the scale unless given. others: None leaves them as they are. factor_of_others: the
    derivative of `others`. of_cosines: scores are cosines, else inner products.
    """

    usual: tuple[float, float]
    own: Rule
    others: Rule | None = None
    factor_of_others: Rule | None = None
    of_cosines: bool = True


def _arcface(cosines: Tensor, margin: float) -> Tensor:
    """cos(θ + margin), whose gradient is finite at cosines of ±1 too."""
    sines = ((1 - cosines) * (1 + cosines)).clamp_min(1e-12).sqrt()
    return cosines * math.cos(margin) - sines * math.sin(margin)


def _circle_own(cosines: Tensor, margin: float) -> Tensor:
    return (1 + margin - cosines.detach()).clamp_min(0) * (cosines - 1 + margin)


def _circle_factor(cosines: Tensor, margin: float) -> Tensor:
    return (cosines.detach() + margin).clamp_min(0)


def _circle_others(cosines: Tensor, margin: float) -> Tensor:
    return _circle_factor(cosines, margin) * (cosines - margin)


MARGINS = {
    "softmax": Margin((0.0, 1.0), lambda scores, margin: scores, of_cosines=False),
    "cosface": Margin((0.4, 64.0), lambda cosines, margin: cosines - margin),
    "arcface": Margin((0.5, 64.0), _arcface),
    "circle": Margin((0.25, 64.0), _circle_own, _circle_others, _circle_factor),
}
"""By name. cosface: Wang et al., CVPR 2018, eq. 4. arcface: Deng et al., CVPR 2019, eq. 3, margin in radians.
circle: Sun et al., CVPR 2020, eq. 5 and 6, whose weights carry no gradient."""
