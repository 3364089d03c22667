"""Searches in galleries of a planned size: its threshold, and its rates from a tenth to ten times that size."""

from dataclasses import dataclass, replace

import torch

from pml_ext._ops.numerics import TIED
from pml_ext._shared.checks import check_choice, check_fraction, check_whole
from pml_ext.functional.open_set.best_scores import (
    BestScores,
    HighScores,
    Template,
    reported,
    scores_for_rate,
    scores_from,
    threshold_for_rate,
)
from pml_ext.functional.open_set.extrapolation import (
    NEEDED,
    ExtrapolatedRate,
    extrapolated_rate,
    extrapolated_threshold,
)
from pml_ext.functional.open_set.identification import RateWithInterval, fpir_without_each, search_rates
from pml_ext.thresholds.fields import (
    CMC_RANKS,
    GalleryRates,
    MeanRate,
    Searches,
    Support,
    Target,
)
from pml_ext.thresholds.samples import Samples
from pml_ext.thresholds.targets import limited_rate, support_at

_SIZES = (0.1, 0.2, 0.5, 1, 2, 5, 10)  # factors of the planned size
_OF_COPIES = 1 - TIED  # lowest cosine of copies


@dataclass(frozen=True)
class SearchPlan:
    """Planned searches of a `ThresholdReport`.

    Args:
        gallery_size: number of identities to enrol. For all identities of the set, each search leaves out the probe's
            own, so that rates are measured in galleries of one less. For more, they are extrapolated by
            `functional.extrapolate_fpir`.
        fpir: choose the smallest cosine with at most this false positive identification rate in searches of
            `gallery_size` identities. None: the report has another target, and searches use its threshold.
        rank, template: see `functional.identification`.
    Raises:
        ValueError: a number out of range.

    >>> SearchPlan(gallery_size=500, fpir=0.01).rank
    1
    """

    gallery_size: int
    fpir: float | None = None
    rank: int = 1
    template: Template = "best"

    def __post_init__(self) -> None:
        check_whole(self.gallery_size, "gallery_size", 1)
        if self.fpir is not None:
            check_fraction(self.fpir, "fpir")
        check_whole(self.rank, "rank", 1)
        check_choice(self.template, ("best", "mean"), "template")


class PlannedSearch:
    """The search scores of a set, and the threshold of a plan."""

    def __init__(self, plan: SearchPlan, samples: Samples) -> None:
        self.plan = plan
        self._images = _enrolled_images(samples)
        self._scores = _search_scores(samples, plan.template)
        identities = self._scores.identities
        self._measurable = identities - 1  # the largest gallery: the probe's identity is left out
        self._planned = self._measurable if plan.gallery_size == identities else plan.gallery_size
        sizes = {max(1, round(factor * plan.gallery_size)) for factor in _SIZES}
        sizes.add(min(self._planned, self._measurable))
        self._sizes = sorted(size for size in sizes if size <= self._measurable)
        self._high: HighScores | None = None

    def threshold(self, target: Target) -> tuple[float, Support]:
        """Returns the lowest cosine that meets the target at the plan's size, and what it rests on."""
        assert self.plan.fpir is not None
        if self._scores.identities < 3:  # of two, leaving one out leaves no search, so that the rate has no interval
            raise ValueError(
                f"FPIR needs at least 3 identities; got {self._scores.identities}. Measure more identities"
            )
        self._high = scores_for_rate(self._scores, self._sizes[0], self.plan.fpir)
        is_measurable = self._planned <= self._measurable
        choose = self._measured_threshold if is_measurable else self._extrapolated_threshold
        cosine, support = choose(self._high, target)
        if cosine > 1:
            raise _equal_probes_error(self.plan.fpir)
        return cosine, support

    def _measured_threshold(self, high: HighScores, target: Target) -> tuple[float, Support]:
        plan, scores = self.plan, self._scores
        assert plan.fpir is not None
        cosine = threshold_for_rate(high, self._planned, plan.fpir)
        assert cosine is not None  # not None: the scores are enough for the smallest size
        rate, without = fpir_without_each(high, cosine, self._planned)
        trials, support = support_at(target, rate, without, scores.samples, errors=rate * scores.samples)
        if target.confidence is not None:
            allowed = limited_rate(target, trials, support, scores.identities)
            cosine = threshold_for_rate(high, self._planned, allowed)
            assert cosine is not None
        return cosine, support

    def _extrapolated_threshold(self, high: HighScores, target: Target) -> tuple[float, Support]:
        size, fpir = self.plan.gallery_size, self.plan.fpir
        assert fpir is not None
        if int(reported(high, _OF_COPIES).sum()) >= NEEDED and extrapolated_rate(high, _OF_COPIES, size).rate > fpir:
            raise _equal_probes_error(fpir)
        cosine = extrapolated_threshold(high, size, fpir, target.confidence)
        if cosine is not None:
            cosine = min(cosine, _OF_COPIES)  # decides all copies alike
        rate = None if cosine is None else self.extrapolated_fpir(cosine)
        if cosine is None or rate is None or not rate.is_known:
            raise ValueError(
                f"FPIR {fpir:g} in galleries of {size:,} needs a threshold that too few pairs of the set support. Its "
                f"{self._scores.identities:,} identities allow --gallery-size {self._scores.identities}. Measure more "
                "identities for a larger one, or allow a higher rate"
            )
        pairs = int(reported(high, cosine).sum())
        return cosine, Support(pairs, min(pairs, rate.independent))

    def rates(self, cosine: float) -> Searches:
        """Returns the rates at a threshold."""
        plan, scores = self.plan, self._scores
        high = self._scores_from(cosine)
        sizes = [_gallery_rates(high, cosine, size, plan.rank) for size in self._sizes]
        if self._planned > self._measurable:
            sizes.append(self._extrapolated_rates(high, cosine))
        mated = int((high.genuine > float("-inf")).sum())
        return Searches(
            gallery_size=plan.gallery_size,
            template=plan.template,
            rank=plan.rank,
            identities=scores.identities,
            probes=scores.samples,
            mated=mated,
            sizes=tuple(sizes),
            images=self._images,
        )

    def extrapolated_fpir(self, cosine: float) -> ExtrapolatedRate:
        """Returns the FPIR at the plan's size, which is larger than the set."""
        return extrapolated_rate(self._scores_from(cosine), cosine, self.plan.gallery_size)

    def _scores_from(self, cosine: float) -> HighScores:
        return scores_from(self._scores, cosine) if self._high is None else self._high

    def _extrapolated_rates(self, high: HighScores, cosine: float) -> GalleryRates:
        plan, rate = self.plan, self.extrapolated_fpir(cosine)
        if not rate.is_known:
            raise ValueError(
                f"the FPIR in galleries of {plan.gallery_size:,} cannot be extrapolated from "
                f"{self._scores.identities:,} identities: at the threshold {cosine:.4f} it may be {rate.low:.2g} to "
                f"{rate.high:.2g}. Measure more identities, or choose the threshold by FPIR"
            )
        fpir = MeanRate(rate.rate, rate.low, rate.high)
        fnir = search_rates(high, cosine, plan.gallery_size, rank=plan.rank).fnir
        missed = None if fnir is None else _mean_rate(fnir)
        return GalleryRates(plan.gallery_size, fpir, missed, (), is_extrapolated=True)


def rates_in_gallery(samples: Samples, cosine: float, enrolled: int, *, template: Template, rank: int) -> GalleryRates:
    """Returns the rates of searches at a threshold, in galleries of one size below the number of identities."""
    high = scores_from(_search_scores(samples, template), cosine)
    return _gallery_rates(high, cosine, enrolled, rank)


def _search_scores(samples: Samples, template: Template) -> BestScores:
    return replace(samples, embeddings=samples.embeddings.float()).best_scores(template)


def _gallery_rates(high: HighScores, cosine: float, enrolled: int, rank: int) -> GalleryRates:
    rates = search_rates(high, cosine, enrolled, rank=rank, ranks=CMC_RANKS[-1])
    cmc = tuple(rates.cmc[place - 1] for place in CMC_RANKS) if rates.cmc else ()
    fnir = None if rates.fnir is None else _mean_rate(rates.fnir)
    return GalleryRates(enrolled, _mean_rate(rates.fpir), fnir, cmc)


def _enrolled_images(samples: Samples) -> int | None:
    """Returns the median number of enrolled images of a mated probe's identity; None without mated probes."""
    not_enrolled = torch.ones_like(samples.ids)  # the probe, or with cameras, the samples of its identity and camera
    if samples.cameras is not None:
        both = torch.stack([samples.ids, samples.cameras])
        _, index, sizes = torch.unique(both, dim=1, return_inverse=True, return_counts=True)
        not_enrolled = sizes[index]
    enrolled = torch.bincount(samples.ids)[samples.ids] - not_enrolled
    mated = enrolled[enrolled > 0]
    return int(mated.median()) if len(mated) else None


def _equal_probes_error(fpir: float) -> ValueError:
    return ValueError(
        f"no threshold meets FPIR {fpir:g}: too many probes equal a sample of another identity. Check for samples with "
        "several labels"
    )


def _mean_rate(rate: RateWithInterval) -> MeanRate:
    middle = max(0.0, rate.rate)  # rounding can make it negative
    return MeanRate(middle, max(0.0, min(rate.low, middle)), max(rate.high, middle))
