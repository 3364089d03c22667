"""Contents of a threshold report as typed records, the source of the JSON file, the page and the figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
from msgspec import Meta
from torch import Tensor

from pml_ext._shared.checks import check_choice, check_whole
from pml_ext._version import __version__
from pml_ext.functional.open_set.best_scores import Template
from pml_ext.metrics.checkpoint import Checkpoint, CountAbove0, Sha256

# Ranges that the decoder checks on reading.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
OpenFraction = Annotated[float, Meta(gt=0, lt=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Cosine = Annotated[float, Meta(ge=-1, le=1)]
Score = Annotated[float, Meta(ge=-3.1, le=3.1)]  # normalised scores exceed cosines
Distance = Annotated[float, Meta(ge=0, le=2)]

WORST = 10
"""Length of the lists of classes with the highest error rates."""
CMC_RANKS = (1, 5, 10, 20)
FEW_ERRORS, CAUTION = 10, 0.95
"""Independent errors below which a choice is called uncertain, and the confidence that it is compared with."""
_LABELS_SHOWN = 5
_LARGER = 1.1  # largest gallery that a threshold serves, as a factor of the planned one


@dataclass(frozen=True)
class ErrorRate:
    """Errors among the pairs of a set, and the 95 % interval of the rate for classes like the set's.

    low, high: by a jackknife over classes; the threshold counts as fixed, not as chosen on these pairs.
    """

    errors: Count
    pairs: CountAbove0
    low: Fraction
    high: Fraction

    @property
    def rate(self) -> float:
        return self.errors / self.pairs

    def __str__(self) -> str:
        return f"{self.rate:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class MeanRate:
    """An expected rate, with its 95 % interval for identities like the set's."""

    rate: NotNegative
    low: NotNegative
    high: NotNegative

    def __str__(self) -> str:
        return f"{self.rate:.3g} [{self.low:.3g}, {self.high:.3g}]"


RateKind = Literal["far", "frr", "fpir"]


@dataclass(frozen=True)
class Target:
    """Target of the threshold: kind "far", "frr" or "fpir" with a maximum rate, or "utility".

    confidence: probability with which the rate is at most `value` for other identities; None if only the set's rate is.
    """

    kind: RateKind | Literal["utility"]
    value: OpenFraction | None = None
    confidence: OpenFraction | None = None


@dataclass(frozen=True)
class OperatingPoint:
    """Error rates at another threshold, a cosine or a normalised score."""

    cosine: Score
    far: ErrorRate
    frr: ErrorRate


@dataclass(frozen=True)
class Support:
    """Errors that the choice of the threshold rests on.

    errors: at the target's rate, of pairs or (expected) of searches; independent: errors of independent trials that
    would tell as much, fewer because the pairs of an identity are alike.
    cautious: with fewer than FEW_ERRORS independent ones and without a confidence: the threshold that CAUTION gives,
    with its rates, or why there is none.
    """

    errors: NotNegative
    independent: NotNegative
    cautious: OperatingPoint | str | None = None


@dataclass(frozen=True)
class ClassErrors:
    """Errors of one class: impostor pairs have one sample of the class, genuine pairs two."""

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
        """False reject rate; None for a class of one sample, which has no genuine pair."""
        return self.false_rejects / self.genuine_pairs if self.genuine_pairs else None


@dataclass(frozen=True)
class Consistency:
    """OPIS and ε-OPIS of the set, with their FAR range and L2 distance range."""

    opis: Fraction
    epsilon_opis: Fraction
    epsilon: Fraction
    far_range: tuple[Fraction, Fraction]
    distances: tuple[Distance, Distance]


@dataclass(frozen=True)
class CameraRates:
    """FRR of genuine pairs across cameras and within a camera; None if the set has no such pair."""

    cameras: Count
    across: ErrorRate | None
    within: ErrorRate | None


@dataclass(frozen=True)
class NormalizationRecord:
    """The cohort that normalised the scores. identities: None for a cohort without labels."""

    k: CountAbove0
    strength: Annotated[float, Meta(ge=0, le=2)]
    samples: CountAbove0
    identities: CountAbove0 | None
    sha256: Sha256


@dataclass(frozen=True)
class PlainCosines:
    """Plain cosines at the FAR of a report on normalised scores. opis: None if it is not measurable."""

    cosine: Score
    frr: ErrorRate
    opis: Fraction | None


@dataclass(frozen=True)
class Group:
    """Rates of one group, such as a sex, a site or a product line.

    far: over impostor pairs inside the group; frr: over genuine pairs with a sample of the group. None if the group has
    too few pairs, see `Groups`.
    """

    label: int | str
    samples: CountAbove0
    identities: CountAbove0
    far: ErrorRate | None
    frr: ErrorRate | None
    impostor_pairs: Count
    genuine_pairs: Count


@dataclass(frozen=True)
class GroupPair:
    """Rate of a pair of groups. far: over impostor pairs with a sample of each group; None for too few pairs."""

    labels: tuple[int | str, int | str]
    far: ErrorRate | None
    impostor_pairs: Count


@dataclass(frozen=True)
class GroupComparison:
    """Rate of group `one` divided by that of group `to`, with its 95 % interval for identities like the set's.

    value, high: None if the lower rate has no errors, so that only the low end is known.
    """

    one: int | str
    to: int | str
    value: NotNegative | None
    low: NotNegative
    high: NotNegative | None


@dataclass(frozen=True)
class Groups:
    """Error rates by group at the report's threshold.

    needed_impostor_pairs, needed_genuine_pairs: minimum number of pairs of a reported rate.
    far_ratios, frr_ratios: ratio of the highest to the lowest rate (last); empty without two rates or without errors.
    """

    groups: tuple[Group, ...]
    between: tuple[GroupPair, ...]
    needed_impostor_pairs: Count
    needed_genuine_pairs: Count
    far_ratios: tuple[GroupComparison, ...]
    frr_ratios: tuple[GroupComparison, ...]


@dataclass(frozen=True)
class GalleryRates:
    """Searches in galleries of `enrolled` identities, at the report's threshold; see `functional.Identification`.

    fnir: None without mated probes. cmc: CMC at ranks up to CMC_RANKS, at any threshold; empty without mated probes.
    is_extrapolated: whether the gallery is larger than any of the set; it then has no cmc.
    """

    enrolled: CountAbove0
    fpir: MeanRate
    fnir: MeanRate | None
    cmc: tuple[Fraction, ...]
    is_extrapolated: bool = False


@dataclass(frozen=True)
class Searches:
    """Rates of searches in galleries of several sizes.

    gallery_size: planned size; template: "best" sample of an identity or its "mean"; rank: a search succeeds if the own
    identity is among the first `rank`; identities, probes, mated: numbers in the set; sizes: ascending, from a tenth to
    ten times the planned size; images: median number of enrolled images of a mated probe's identity.
    """

    gallery_size: CountAbove0
    template: Template
    rank: CountAbove0
    identities: CountAbove0
    probes: CountAbove0
    mated: Count
    sizes: tuple[GalleryRates, ...]
    images: CountAbove0 | None = None

    @property
    def planned(self) -> GalleryRates:
        """The rates at the planned size; at one less if it is that of all identities of the set."""
        return next((size for size in self.sizes if size.enrolled >= self.gallery_size), self.sizes[-1])


@dataclass(frozen=True)
class Sample:
    """A sample: its source row, its class, and its image if known."""

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
    """The worst pairs. impostors: highest cosine first; genuine: lowest cosine first."""

    impostors: tuple[WorstPair, ...]
    genuine: tuple[WorstPair, ...]


LabelError = Literal["wrong label", "one identity, two labels", "two identities, one label", "copies"]


@dataclass(frozen=True)
class DoubtfulLabel:
    """Samples whose label looks wrong.

    label, samples: the label and its doubtful samples; of copies, both samples. other: the label that fits instead;
    None for two identities with one label. cosine: mean cosine with the other label, or between the two identities.
    """

    kind: LabelError
    label: int | str
    other: int | str | None
    cosine: float
    samples: tuple[Sample, ...]

    def summary(self) -> str:
        """One line."""
        first = self.samples[0]
        text = f"row {first.row}" if first.path is None else f"row {first.row}, {first.path}"
        if len(self.samples) > 1:
            text += f", and {len(self.samples) - 1:,} more"
        fits = "" if self.other is None else f", looks like {self.other}"
        return f"{self.kind}: {text}: labelled {self.label}{fits} (mean cosine {self.cosine:.3f})"


@dataclass(frozen=True)
class DoubtfulLabels:
    """Labels that look wrong, and the threshold and rates without their samples.

    left_out: number of samples left out. cosine, far, frr: None if the other samples are too few for the target.
    """

    labels: tuple[DoubtfulLabel, ...]
    left_out: CountAbove0
    cosine: Score | None = None
    far: ErrorRate | None = None
    frr: ErrorRate | None = None

    def summary(self) -> list[str]:
        """Returns lines of text: the first labels and the effect on the threshold."""
        without = f"without their {self.left_out:,} samples: "
        effect = "too few samples for the target"
        if self.cosine is not None:
            effect = f"threshold {self.cosine:.4f}, FAR {self.far}, FRR {self.frr}"
        return [*describe_doubtful(self.labels), f"{without}{effect}"]


def describe_doubtful(labels: Sequence[DoubtfulLabel]) -> list[str]:
    """Returns lines of text: how many labels look wrong, and the first five."""
    count = "1 doubtful label" if len(labels) == 1 else f"{len(labels):,} doubtful labels"
    lines = [f"{count}; look at their images:"]
    lines += [f"  {label.summary()}" for label in labels[:_LABELS_SHOWN]]
    if len(labels) > _LABELS_SHOWN:
        lines.append(f"  and {len(labels) - _LABELS_SHOWN:,} more")
    return lines


class ThresholdCurves(NamedTuple):
    """Curves over (M,) ascending distance thresholds, from accepting no pair to accepting all; on the CPU.

    genuine, impostors: (M,) int64, numbers of accepted pairs.
    utilities: (T, M) utilities of the classes with genuine and impostor pairs.
    """

    distances: Tensor
    genuine: Tensor
    impostors: Tensor
    utilities: Tensor


@dataclass(frozen=True)
class ThresholdFields:
    """A decision threshold and its error rates, see `ThresholdReport`."""

    target: Target
    cosine: float
    far: ErrorRate
    frr: ErrorRate
    classes: tuple[ClassErrors, ...]
    consistency: Consistency | None
    samples: int
    embedding_dim: int
    copies: int
    version: str = __version__
    checkpoint: Checkpoint | None = None
    curves: ThresholdCurves | None = field(default=None, repr=False, compare=False)
    cameras: CameraRates | None = None
    data: str | None = None
    made: str = field(default="", compare=False)
    worst_pairs: WorstPairs | None = field(default=None, repr=False, compare=False)
    searches: Searches | None = None
    groups: Groups | None = None
    normalization: NormalizationRecord | None = None
    plain: PlainCosines | None = None
    support: Support | None = None
    points: tuple[OperatingPoint, ...] = ()
    doubtful: DoubtfulLabels | None = None
    sample_keys: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def distance(self) -> float:
        """The threshold as L2 distance between normalised embeddings."""
        return distance_of(self.cosine)

    @property
    def score_name(self) -> str:
        """Name of the scores that the threshold applies to."""
        return "cosine" if self.normalization is None else "normalised score"

    @property
    def is_across_cameras(self) -> bool:
        """Whether the FRR counts genuine pairs across cameras only."""
        return self.cameras is not None

    def for_gallery(self, identities: int) -> GalleryRates:
        """Returns the rates of searches at the threshold, in the smallest reported gallery of at least this size.

        The threshold serves galleries of up to 1.1 times the planned size. In smaller ones FPIR is lower.

        Raises:
            ValueError: a report without searches, or a larger gallery.
        """
        if self.searches is None:
            raise ValueError("the report has no searches. Create it with a SearchPlan")
        check_whole(identities, "identities", 1)
        planned, planned_size = self.searches.planned, self.searches.gallery_size
        if identities <= _LARGER * planned_size:
            smaller = [size for size in self.searches.sizes if identities <= size.enrolled < planned.enrolled]
            return [*smaller, planned][0]
        # Exact if all probes were alike; lower if they differ (Jensen)
        fpir = 1 - (1 - planned.fpir.rate) ** (identities / planned.enrolled)
        raise ValueError(
            f"the report is for galleries of {planned_size:,} identities; got {identities:,}, where FPIR would be up "
            f"to {fpir:.3g} at its threshold {self.cosine:.4f} (extrapolated). Choose the threshold with "
            f"--gallery-size {identities} (gallery_size of SearchPlan)"
        )

    def worst_classes(self, rate: Literal["far", "frr"], count: int = WORST) -> tuple[ClassErrors, ...]:
        """Returns the classes with the highest FAR or FRR, highest first; ties: more errors first, then in order."""
        check_choice(rate, ("far", "frr"), "rate")
        check_whole(count, "count", 0)
        errors = "false_accepts" if rate == "far" else "false_rejects"
        measured = [c for c in self.classes if getattr(c, rate) is not None]
        measured.sort(key=lambda c: (-getattr(c, rate), -getattr(c, errors)))
        return tuple(measured[:count])


def distance_of(cosine: float) -> float:
    """Returns the L2 distance of unit rows with this cosine."""
    return math.sqrt(2 - 2 * cosine)


Distances = TypeVar("Distances", float, np.ndarray)


def cosine_of(distance: Distances) -> Distances:
    """Returns the cosine of unit rows at this L2 distance, or of an array of distances."""
    return 1 - distance**2 / 2
