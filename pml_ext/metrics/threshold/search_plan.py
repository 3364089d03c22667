"""Searches in galleries of a planned size: their threshold, and their rates from a tenth to ten times that size."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_fraction, check_switch, check_whole
from pml_ext.functional.open_set.best_scores import (
    ALL,
    BestScores,
    HighScores,
    Template,
    scores_for_rate,
    scores_from,
    share_by_pooled_rate,
    threshold_for_rate,
)
from pml_ext.functional.open_set.extrapolation import NEEDED, ExtrapolatedRate, extrapolated_rate, fitted_rate
from pml_ext.functional.open_set.identification import RateWithInterval, SearchRates, search_rates
from pml_ext.metrics.threshold.rate_fields import MeanRate
from pml_ext.metrics.threshold.search_fields import CMC_RANKS, GalleryRates, HeldOut, Searches

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_FEWEST, _CHECKED_BY = 10, 5 * NEEDED  # identities and scores that extrapolation is checked on


@dataclass(frozen=True)
class SearchPlan:
    """What is asked of `ThresholdReport.from_embeddings` about searches; see there."""

    gallery_size: int | None
    fpir: float | None
    rank: int
    template: Template
    extrapolate: bool

    def __post_init__(self) -> None:
        if self.fpir is not None:
            check_fraction(self.fpir, "fpir")
        check_whole(self.rank, "rank", 1)
        check_choice(self.template, ("best", "mean"), "template")
        check_switch(self.extrapolate, "extrapolate")
        if self.gallery_size is not None:
            check_whole(self.gallery_size, "gallery_size", 1)
            return
        if self.fpir is not None:
            raise ValueError("fpir needs gallery_size, how many identities are to be enrolled")
        given = [
            f.name
            for f, default in zip(fields(self)[2:], (1, "best", False), strict=True)
            if getattr(self, f.name) != default
        ]
        if given:
            raise ValueError(f"{', '.join(given)} is for searches, which need gallery_size")


class PlannedSearch:
    """The scores of a set that decide about its searches, and the threshold of a plan."""

    def __init__(
        self,
        plan: SearchPlan,
        embeddings: Tensor,
        labels: Tensor,
        cameras: Tensor | None,
        offsets: Tensor | None = None,
    ) -> None:
        assert plan.gallery_size is not None
        self._set = embeddings.float(), labels, cameras, offsets
        self._scores = BestScores(*self._set[:3], plan.template, offsets=offsets)
        self._most = self._scores.identities - 1
        if plan.gallery_size > self._most and not plan.extrapolate:
            raise ValueError(
                f"gallery_size must be at most {self._most}, one less than the identities of the set; got "
                f"{plan.gallery_size}: measure at least {plan.gallery_size + 1} identities, or extrapolate "
                "(extrapolate=True, --extrapolate)"
            )
        self.plan, self.planned = plan, plan.gallery_size
        sizes = {max(1, round(step * self.planned)) for step in _STEPS}
        self._sizes = sorted(size for size in sizes if size <= self._most or plan.extrapolate)
        self._high: HighScores | None = None  # where thresholds are to be chosen

    def threshold(self) -> float:
        """The lowest cosine with the plan's FPIR at its size."""
        assert self.plan.fpir is not None
        smallest = min(self._sizes[0], self._most)
        self._high = scores_for_rate(self._scores, smallest, self.plan.fpir)
        found = self._of_size(self._high, self.planned)
        if found is None:
            raise ValueError(
                f"no threshold for an FPIR of {self.plan.fpir:g} among {self.planned} identities: too few scores of "
                f"different identities reach it to extrapolate from (fewer than {NEEDED}, or the 95 % interval spans "
                "0 to 1); measure more identities, or allow a higher FPIR"
            )
        if found > 1:
            raise ValueError(
                f"no threshold meets fpir={self.plan.fpir:g}: too many probes have the embedding of another identity. "
                "Does one sample have several labels?"
            )
        return found

    def _of_size(self, high: HighScores, enrolled: int) -> float | None:
        """None where too few scores support it."""
        assert self.plan.fpir is not None
        if enrolled <= self._most:
            return threshold_for_rate(high, enrolled, self.plan.fpir)
        value = high.value.double().unique().flip(0)
        middles = ((value[1:] + value[:-1]) / 2).tolist()  # the k-th accepts k + 1 distinct scores
        low, above = 0, len(middles)
        while low < above:  # the first that exceeds the rate
            middle = (low + above) // 2
            rate = fitted_rate(high, middles[middle], enrolled)
            low, above = (low, middle) if rate is not None and rate > self.plan.fpir else (middle + 1, above)
        if not low:
            return None
        found = middles[low - 1]
        is_known = fitted_rate(high, found, enrolled) is not None and extrapolated_rate(high, found, enrolled).is_known
        return found if is_known else None

    def rates(self, cosine: float) -> Searches:
        """Rates at a threshold, and the thresholds of all sizes."""
        plan, scores = self.plan, self._scores
        high = scores_from(scores, cosine) if self._high is None else self._high

        def at(enrolled: int) -> GalleryRates:
            measured = min(enrolled, self._most)
            found = search_rates(high, cosine, measured, rank=plan.rank, ranks=CMC_RANKS[-1])
            own, fnir = None, None
            if self._high is not None and (own := self._of_size(high, enrolled)) is not None:
                there = search_rates(high, own, measured, rank=plan.rank).fnir
                fnir = None if there is None else there.rate
            cmc = tuple(found.cmc[rank - 1] for rank in CMC_RANKS if found.cmc)
            fpir: MeanRate | None = _mean(found.fpir)
            if enrolled > self._most:
                beyond = extrapolated_rate(high, cosine, enrolled)
                found, cmc = self._beyond(found, beyond, enrolled), ()
                fpir = _mean(found.fpir) if beyond.is_known else None
            miss = None if found.fnir is None else _mean(found.fnir)
            rates = fpir, found.if_alike, miss, _mean(found.selectivity)
            return GalleryRates(enrolled, *rates, cmc, own, fnir, enrolled > self._most)

        mated = int((high.own > float("-inf")).sum())
        of_set = scores.identities, scores.samples, mated
        sizes = tuple(map(at, self._sizes))
        check = self._held_out() if plan.extrapolate else None
        return Searches(self.planned, plan.template, plan.rank, *of_set, sizes, check)

    def _beyond(self, largest: SearchRates, beyond: ExtrapolatedRate, enrolled: int) -> SearchRates:
        """What the rates of the largest measured gallery become among more identities."""
        fpir = RateWithInterval(*beyond[:3])
        pooled = RateWithInterval(*(value / self._most for value in largest.selectivity))
        miss = largest.fnir and largest.fnir._replace(high=min(1.0, largest.fnir.high + fpir.high))
        selectivity = RateWithInterval(*(enrolled * value for value in pooled))
        return SearchRates(enrolled, fpir, miss, selectivity, share_by_pooled_rate(pooled.rate, enrolled), ())

    def _held_out(self) -> HeldOut | None:
        """Extrapolation from a tenth of the identities to all; None where they are too few, or say nothing."""
        embeddings, labels, cameras, offsets = self._set
        count = self._scores.identities // 10
        if count < _FEWEST:
            return None
        chosen = torch.randperm(self._scores.identities, generator=torch.Generator().manual_seed(0))[:count]
        rows = torch.isin(labels, torch.unique(labels)[chosen])
        part = embeddings[rows], labels[rows], None if cameras is None else cameras[rows]
        own = None if offsets is None else offsets[rows]
        few = scores_from(BestScores(*part, self.plan.template, offsets=own), ALL)
        cosine = float(few.value.double().sort(descending=True).values[:_CHECKED_BY][-1])
        all_of_it = scores_from(self._scores, cosine)
        measured = search_rates(all_of_it, cosine, self._most).fpir.rate
        predicted = extrapolated_rate(few, cosine, self._most)
        if not predicted.is_known:
            return None
        return HeldOut(count, self._most, cosine, _mean(RateWithInterval(*predicted[:3])), measured)


def _mean(rate: RateWithInterval) -> MeanRate:
    middle = max(0.0, rate.rate)  # but for rounding
    return MeanRate(middle, max(0.0, min(rate.low, middle)), max(rate.high, middle))
