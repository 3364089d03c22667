"""Searches in galleries of a planned size: their threshold, and their rates from a tenth to ten times that size."""

from dataclasses import dataclass, fields

from torch import Tensor

from pml_ext._checks import check_choice, check_fraction, check_whole
from pml_ext.functional.open_set.best_scores import BestScores, Template
from pml_ext.functional.open_set.high_scores import HighScores, scores_for_rate, scores_from, threshold_for_rate
from pml_ext.functional.open_set.rates_by_size import RateWithInterval, search_rates
from pml_ext.metrics.threshold.fields import CMC_RANKS, GalleryRates, MeanRate, Searches

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10)


@dataclass(frozen=True)
class SearchPlan:
    """What is asked of `ThresholdReport.from_embeddings` about searches; see there."""

    gallery_size: int | None
    fpir: float | None
    rank: int
    template: Template

    def __post_init__(self) -> None:
        if self.fpir is not None:
            check_fraction(self.fpir, "fpir")
        check_whole(self.rank, "rank", 1)
        check_choice(self.template, ("best", "mean"), "template")
        if self.gallery_size is not None:
            check_whole(self.gallery_size, "gallery_size", 1)
            return
        if self.fpir is not None:
            raise ValueError("fpir needs gallery_size, how many identities are to be enrolled")
        given = [
            f.name for f, default in zip(fields(self)[2:], (1, "best"), strict=True) if getattr(self, f.name) != default
        ]
        if given:
            raise ValueError(f"{', '.join(given)} is for searches, which need gallery_size")


class PlannedSearch:
    """The scores of a set that decide about its searches, and the threshold of a plan."""

    def __init__(self, plan: SearchPlan, embeddings: Tensor, labels: Tensor, cameras: Tensor | None) -> None:
        assert plan.gallery_size is not None
        scores = BestScores(embeddings.float(), labels, cameras, plan.template)
        most = scores.identities - 1
        if plan.gallery_size > most:
            raise ValueError(
                f"gallery_size must be at most {most}, one less than the identities of the set; got "
                f"{plan.gallery_size}: measure at least {plan.gallery_size + 1} identities"
            )
        self.plan, self._scores = plan, scores
        sizes = {max(1, round(step * plan.gallery_size)) for step in _STEPS}
        self._sizes = sorted(size for size in sizes if size <= most)
        self._high: HighScores | None = None

    def threshold(self) -> float:
        """The lowest cosine with the plan's FPIR at its size."""
        assert self.plan.fpir is not None and self.plan.gallery_size is not None
        self._high = scores_for_rate(self._scores, self._sizes[0], self.plan.fpir)
        return self._of_size(self._high, self.plan.gallery_size)

    def _of_size(self, high: HighScores, enrolled: int) -> float:
        assert self.plan.fpir is not None
        threshold = threshold_for_rate(high, enrolled, self.plan.fpir)
        assert threshold is not None
        return threshold

    def rates(self, cosine: float) -> Searches:
        """Rates at a threshold, and the thresholds of all sizes."""
        plan, scores = self.plan, self._scores
        high = scores_from(scores, cosine) if self._high is None else self._high

        def at(enrolled: int) -> GalleryRates:
            found = search_rates(high, cosine, enrolled, rank=plan.rank, ranks=CMC_RANKS[-1])
            own, fnir = None, None
            if self._high is not None:
                own = self._of_size(high, enrolled)
                there = search_rates(high, own, enrolled, rank=plan.rank).fnir
                fnir = None if there is None else there.rate
            return GalleryRates(
                enrolled,
                _mean(found.fpir),
                found.if_alike,
                None if found.fnir is None else _mean(found.fnir),
                _mean(found.selectivity),
                tuple(found.cmc[rank - 1] for rank in CMC_RANKS if found.cmc),
                own,
                fnir,
            )

        assert plan.gallery_size is not None
        mated = int((high.own > float("-inf")).sum())
        sizes = tuple(map(at, self._sizes))
        of_set = scores.identities, scores.samples, mated
        return Searches(plan.gallery_size, plan.template, plan.rank, *of_set, sizes)


def _mean(rate: RateWithInterval) -> MeanRate:
    middle = max(0.0, rate.rate)  # but for rounding
    return MeanRate(middle, max(0.0, min(rate.low, middle)), max(rate.high, middle))
