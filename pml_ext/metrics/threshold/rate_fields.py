"""Numbers of a threshold report, with the range that a file may hold, and error rates."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CountAbove0 = Annotated[int, Meta(gt=0, le=2**63 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
OpenFraction = Annotated[float, Meta(gt=0, lt=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Cosine = Annotated[float, Meta(ge=-1, le=1)]
Score = Annotated[float, Meta(ge=-3.1, le=3.1)]  # normalised ones too, or above every one
Distance = Annotated[float, Meta(ge=0, le=2)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True)
class ErrorRate:
    """Errors among the pairs of a set, and the 95 % interval of the rate for classes like the set's.

    low, high: see `functional.class_interval`; the threshold is taken as given, not as chosen on these pairs.
    """

    errors: Count
    pairs: CountAbove0
    low: Fraction
    high: Fraction

    @property
    def rate(self) -> float:
        return self.errors / self.pairs


@dataclass(frozen=True)
class MeanRate:
    """An expected rate, or another mean that is not negative, and its 95 % interval for identities like the set's."""

    rate: NotNegative
    low: NotNegative
    high: NotNegative


@dataclass(frozen=True)
class Calibration:
    """The natural log-likelihood ratio of a pair is slope · cosine + intercept; see `ScoreCalibration`.

    cllr: in bits, of classes that the line was not fitted on, over genuine_pairs and impostor_pairs; min_cllr: with the
    best increasing function of the cosine in place of the line.
    """

    slope: float
    intercept: float
    cllr: MeanRate
    min_cllr: MeanRate
    genuine_pairs: CountAbove0
    impostor_pairs: CountAbove0
