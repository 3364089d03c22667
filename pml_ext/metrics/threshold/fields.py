"""What a threshold report holds: plain data, which the file, the page and the figure are made from."""

import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta
from torch import Tensor

from pml_ext._checks import check_choice, check_whole
from pml_ext._version import __version__
from pml_ext.metrics.threshold.group_fields import Groups
from pml_ext.metrics.threshold.rate_fields import (
    Calibration,
    Cosine,
    Count,
    CountAbove0,
    Distance,
    ErrorRate,
    Fraction,
    OpenFraction,
    Sha256,
)
from pml_ext.metrics.threshold.search_fields import GalleryRates, Searches

WORST = 10


@dataclass(frozen=True)
class Target:
    """What the threshold was chosen for: kind "far", "frr" or "fpir" with the rate it must not exceed, or "utility"."""

    kind: Literal["far", "frr", "utility", "fpir"]
    value: OpenFraction | None = None


@dataclass(frozen=True)
class Consistency:
    """OPIS and ε-OPIS of the set, and the range of FAR and of L2 distances they are taken over."""

    opis: Fraction
    epsilon_opis: Fraction
    epsilon: Fraction
    far_range: tuple[Fraction, Fraction]
    distances: tuple[Distance, Distance]


@dataclass(frozen=True)
class Checkpoint:
    """The model file that the embeddings come from: its name and the SHA-256 of its content."""

    file: str
    sha256: Sha256


@dataclass(frozen=True)
class CohortOfScores:
    """What normalised the scores: the gallery itself ("gallery"), or a cohort of samples with this SHA-256."""

    cohort: Literal["gallery", "samples"]
    k: CountAbove0
    strength: Annotated[float, Meta(ge=0, le=2)]
    samples: CountAbove0
    sha256: Sha256 | None = None


@dataclass(frozen=True)
class CameraRates:
    """Genuine pairs by camera: FRR across two cameras, and within one; None where the set has no such pair.

    same_camera_pairs: whether the threshold and the report's FRR count the pairs within a camera too.
    """

    cameras: Count
    same_camera_pairs: bool
    across: ErrorRate | None
    within: ErrorRate | None


@dataclass(frozen=True)
class Alternative:
    """The largest threshold whose FAR is at most `target`, and what it does.

    opis: over far_range, which contains the target; None where the set has too few classes or pairs for it.
    """

    target: OpenFraction
    cosine: Cosine
    far: ErrorRate
    frr: ErrorRate
    opis: Fraction | None
    far_range: tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Sample:
    """A sample: its row where it comes from, its class, and its picture where that is known."""

    row: int
    label: int | str
    path: str | None


@dataclass(frozen=True)
class WorstPair:
    cosine: float
    one: Sample
    other: Sample


@dataclass(frozen=True)
class WorstPairs:
    """impostors: of two classes, the highest cosine first; genuine: of one class, the lowest first."""

    impostors: tuple[WorstPair, ...]
    genuine: tuple[WorstPair, ...]


@dataclass(frozen=True)
class ClassErrors:
    """One class: an impostor pair is one sample of it and one outside it, a genuine pair two samples of it."""

    label: int | str
    samples: CountAbove0
    impostor_pairs: CountAbove0
    false_accepts: Count
    genuine_pairs: Count
    false_rejects: Count

    @property
    def far(self) -> float:
        return self.false_accepts / self.impostor_pairs

    @property
    def frr(self) -> float | None:
        """None for a class of one sample: it has no genuine pair."""
        return self.false_rejects / self.genuine_pairs if self.genuine_pairs else None


@dataclass(frozen=True)
class Stability:
    """The L2 distance between the thresholds of two random halves of the classes, over `splits` random splits."""

    splits: CountAbove0
    mean_shift: Distance
    max_shift: Distance


class ThresholdCurves(NamedTuple):
    """Over (M,) ascending distance thresholds, from where no pair is accepted to where all are; on the CPU.

    genuine, impostors: (M,) int64, accepted pairs of all classes.
    utilities: (T, M) of the classes with a genuine and an impostor pair.
    """

    distances: Tensor
    genuine: Tensor
    impostors: Tensor
    utilities: Tensor


@dataclass(frozen=True)
class ThresholdFields:
    """A decision threshold and what it does to each class, see `ThresholdReport`."""

    target: Target
    cosine: float
    far: ErrorRate
    frr: ErrorRate
    classes: tuple[ClassErrors, ...]
    consistency: Consistency | None
    stability: Stability | None
    samples: int
    embedding_dim: int
    copies: int
    version: str = __version__
    checkpoint: Checkpoint | None = None
    curves: ThresholdCurves | None = field(default=None, repr=False, compare=False)
    alternatives: tuple[Alternative, ...] = ()
    cameras: CameraRates | None = None
    data: str | None = None
    made: str = field(default="", compare=False)
    worst_pairs: WorstPairs | None = field(default=None, repr=False, compare=False)
    copied_rows: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)
    searches: Searches | None = None
    groups: Groups | None = None
    calibration: Calibration | None = None
    normalization: CohortOfScores | None = None

    @property
    def distance(self) -> float:
        """The threshold as L2 distance between normalised embeddings."""
        return distance_of(self.cosine)

    @property
    def mean_frr(self) -> float:
        """FRR as the mean over classes, each of equal weight; `frr` weighs a class by its genuine pairs."""
        return fmean(c.frr for c in self.classes if c.frr is not None)

    def for_gallery(self, identities: int) -> GalleryRates:
        """The rates of the smallest measured gallery of at least so many identities.

        Raises:
            ValueError: a report without searches, or a gallery larger than those measured.
        """
        if self.searches is None:
            raise ValueError("the threshold was chosen for pairs alone: make the report with gallery_size")
        check_whole(identities, "identities", 1)
        found = [one for one in self.searches.sizes if one.enrolled >= identities]
        if not found:
            raise ValueError(
                f"the report knows galleries of up to {self.searches.sizes[-1].enrolled:,} identities; got "
                f"{identities:,}: make it with a larger gallery_size"
            )
        if self.target.kind == "fpir" and found[0].cosine is None:
            raise ValueError(
                f"no threshold for galleries of {identities:,} identities: too few scores support one; measure more"
            )
        return found[0]

    def worst_classes(self, rate: Literal["far", "frr"], count: int = WORST) -> tuple[ClassErrors, ...]:
        """The classes with the highest FAR or FRR, highest first; of equals those with more errors, then in order."""
        check_choice(rate, ("far", "frr"), "rate")
        check_whole(count, "count", 0)
        measured = [c for c in self.classes if getattr(c, rate) is not None]
        errors = "false_accepts" if rate == "far" else "false_rejects"
        return tuple(sorted(measured, key=lambda c: (-getattr(c, rate), -getattr(c, errors)))[:count])


def distance_of(cosine: float) -> float:
    """The L2 distance of unit rows with this cosine."""
    return math.sqrt(2 - 2 * cosine)
