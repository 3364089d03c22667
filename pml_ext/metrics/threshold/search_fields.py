"""What a threshold report holds about searches in galleries."""

from dataclasses import dataclass

from pml_ext.functional.open_set.best_scores import Template
from pml_ext.metrics.threshold.rate_fields import Count, CountAbove0, Fraction, MeanRate, Score

CMC_RANKS = (1, 5, 10, 20)


@dataclass(frozen=True)
class GalleryRates:
    """Searches in galleries of `enrolled` identities, at the report's threshold; see `functional.Identification`.

    fpir: None where an extrapolation says nothing, see `functional.ExtrapolatedRate.is_known`.
    fpir_if_alike: the FPIR to expect if all probes had the pooled rate: more than fpir where they differ.
    fnir, cmc: None, and empty, where no probe is mated; cmc: shares found among the first CMC_RANKS, at any threshold.
    cosine, cosine_fnir: the lowest threshold with the target's FPIR in galleries of this size, and its FNIR; None
        without such a target, or where too few scores support it.
    extrapolated: to more identities than the set has, see `functional.extrapolate_fpir`. FNIR is then that of the
        largest measured gallery, and the high end of its interval adds that of FPIR.
    """

    enrolled: CountAbove0
    fpir: MeanRate | None
    fpir_if_alike: Fraction
    fnir: MeanRate | None
    selectivity: MeanRate
    cmc: tuple[Fraction, ...]
    cosine: Score | None = None
    cosine_fnir: Fraction | None = None
    extrapolated: bool = False


@dataclass(frozen=True)
class HeldOut:
    """A check of extrapolation: fitted on some identities, compared with all. Galleries are of `enrolled` identities.

    cosine: the threshold of the check, which enough scores of those identities reach.
    """

    identities: CountAbove0
    enrolled: CountAbove0
    cosine: Score
    predicted: MeanRate
    measured: Fraction


@dataclass(frozen=True)
class Searches:
    """One probe against the enrolled identities of a gallery, for galleries of several sizes.

    gallery_size: the planned one; template: "best" sample of an identity or its "mean"; rank: the own identity must be
    among this many; identities, probes, mated: of the set; sizes: ascending, from a tenth to ten times the planned one.
    """

    gallery_size: CountAbove0
    template: Template
    rank: CountAbove0
    identities: CountAbove0
    probes: CountAbove0
    mated: Count
    sizes: tuple[GalleryRates, ...]
    held_out: HeldOut | None = None

    @property
    def planned(self) -> GalleryRates:
        """The rates at the planned size."""
        return next(size for size in self.sizes if size.enrolled == self.gallery_size)
