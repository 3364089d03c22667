"""Open-set identification: one probe against a gallery of N enrolled identities, exact over all such galleries."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.numerics import TIED
from pml_ext._shared.checks import check_fraction, check_number, check_whole
from pml_ext.functional.open_set.best_scores import (
    ALL,
    BestScores,
    HighScores,
    Template,
    is_identified_at,
    reported,
    scores_for_rate,
    scores_from,
    share_with_any,
    share_with_fewer,
    threshold_for_rate,
)
from pml_ext.functional.verification.intervals import effective_number, jackknife_interval


class RateWithInterval(NamedTuple):
    """A rate, and its confidence interval for other identities from the same population."""

    rate: float
    low: float
    high: float


class SearchRates(NamedTuple):
    """Rates in galleries of `enrolled` identities; see `Identification`.

    fnir: None without mated probes; cmc: by rank, from 1.
    """

    enrolled: int
    fpir: RateWithInterval
    fnir: RateWithInterval | None
    selectivity: RateWithInterval
    cmc: tuple[float, ...]


class _Law(NamedTuple):
    """A rate as a function of each probe's number of false matches and of the number of other identities."""

    number: Tensor  # (P,) int64
    probe: Tensor  # (S,) probe of each false match
    identity: Tensor  # (S,) identity of each false match
    label: Tensor  # (P,) identity of each probe
    value: Callable[[Tensor, int], Tensor]  # of the numbers of false matches (…) and the number of other identities


def search_rates(high: HighScores, threshold: float, enrolled: int, *, rank: int = 1, ranks: int = 0) -> SearchRates:
    """Returns the rates at a threshold of at least `high.low`; ranks: number of CMC ranks."""
    others = high.others
    hit, pooled, miss = _laws(high, threshold, enrolled, rank)

    def interval(law: _Law) -> RateWithInterval:
        rate, without = _without_each(law, high.identities)
        # Each probe is compared with every other identity, which limits the number of independent comparisons.
        trials = len(law.number) * others
        without = without if others < 2 else without[~without.isnan()]
        classes = effective_number(torch.bincount(law.label))
        return RateWithInterval(rate, *jackknife_interval(rate, without, trials, 0.95, classes))

    far = interval(pooled)
    selectivity = RateWithInterval(*(enrolled * value for value in far))
    if miss is None:
        return SearchRates(enrolled, interval(hit), None, selectivity, ())
    before = high.before[high.genuine > -torch.inf]
    cmc = (float(share_with_fewer(before, others, enrolled - 1, r + 1).mean()) for r in range(ranks))
    return SearchRates(enrolled, interval(hit), interval(miss), selectivity, tuple(cmc))


def fpir_without_each(high: HighScores, threshold: float, enrolled: int) -> tuple[float, Tensor]:
    """Returns the FPIR, and (M,) values with each identity left out as probe and from galleries."""
    rate, without = _without_each(_laws(high, threshold, enrolled, 1)[0], high.identities)
    return rate, without[~without.isnan()]


def _laws(high: HighScores, threshold: float, enrolled: int, rank: int) -> tuple[_Law, _Law, _Law | None]:
    """Returns FPIR, the pooled rate, and FNIR (None without mated probes)."""
    above = reported(high, threshold)
    number = torch.bincount(high.probe[above], minlength=len(high.genuine))
    places = number, high.probe[above], high.identity[above], high.label
    hit = _Law(*places, lambda n, m: share_with_any(n, m, min(enrolled, m)))
    pooled = _Law(*places, lambda n, m: n.double() / m)
    mated = high.genuine > -torch.inf
    if not bool(mated.any()):
        return hit, pooled, None
    row = mated.cumsum(0) - 1  # among the mated
    identified = is_identified_at(high, threshold) & mated
    better = above & identified[high.probe] & (high.value >= high.genuine[high.probe] - TIED)

    def of_others(m: int) -> int:
        return enrolled - 1 if enrolled > high.others else min(enrolled, m + 1) - 1

    def miss(n: Tensor, m: int) -> Tensor:
        missed = 1 - share_with_fewer(n.clamp_min(0), m, of_others(m), rank)
        return torch.where(n < 0, 1.0, missed)

    # −1: a probe below the threshold is missed in every gallery.
    before = torch.where(identified, high.before, -1)[mated]
    return hit, pooled, _Law(before, row[high.probe[better]], high.identity[better], high.label[mated], miss)


def _without_each(law: _Law, identities: int) -> tuple[float, Tensor]:
    """Returns the mean over probes, and (M,) means with each identity left out as probe and from galleries (or nan)."""
    others = identities - 1
    rate = float(law.value(law.number, others).mean())
    if others < 2:
        return rate, torch.full((identities,), torch.nan, dtype=torch.float64, device="cpu")
    left = law.value(law.number, others - 1)
    number = law.number[law.probe]
    change = law.value(number - 1, others - 1) - law.value(number, others - 1)
    sums = left.new_zeros(identities)
    sums = left.sum() - sums.index_add(0, law.label, left) + sums.index_add(0, law.identity, change)
    return rate, sums / (len(left) - torch.bincount(law.label, minlength=identities))


class Identification(NamedTuple):
    """Error rates of a search, as fractions, averaged over all galleries of a size.

    Attributes:
        threshold: a match is reported if its cosine is at least this.
        fpir: share of non-mated probes with at least one reported identity.
        fnir: share of mated probes whose identity is not among the first `rank` reported; nan without mated probes.
        selectivity: mean number of identities reported for a non-mated probe.

    >>> Identification(threshold=0.4, fpir=0.01, fnir=0.05, selectivity=0.01).fnir
    0.05
    """

    threshold: float
    fpir: float
    fnir: float
    selectivity: float


def identification(
    embeddings: Tensor,
    labels: Tensor,
    *,
    gallery_size: int,
    threshold: float | None = None,
    fpir: float | None = None,
    rank: int = 1,
    cameras: Tensor | None = None,
    template: Template = "best",
) -> Identification:
    r"""Compute the exact error rates of searches in a gallery of N identities, from a set with more identities.

    Every sample is a probe, once non-mated (N of the other M − 1 identities are enrolled) and, if its identity has
    another sample, once mated (its identity and N − 1 others are). If m other identities reach the threshold, a random
    gallery has at least one of them with this probability, so the mean over all galleries needs no sampling:

    $$1 - \binom{M - 1 - m}{N} / \binom{M - 1}{N}$$

    Args:
        embeddings: (N, D), finite; normalised here.
        labels: (N,) identities, two or more.
        gallery_size: identities enrolled, 1 to M − 1.
        threshold: lowest cosine at which an identity is reported. −1 reports all; 1 − fnir is then the CMC at `rank`.
        fpir: maximum FPIR, instead of a threshold. The lowest threshold that meets it is chosen, midway to
            the next lower score; cosines within 1e-6 count as equal. If accepting the highest score alone
            exceeds the rate, the threshold is above that score.
        rank: a search succeeds if the probe's identity is among the first `rank`. Ties, cosines within 1e-6, count
            against it.
        cameras: (N,) integers; only samples of other cameras enrol a probe's identity.
        template: score of an identity: the "best" cosine with its samples, or the cosine with their "mean".
    Returns:
        Identification, in float64; cosines are float32, or float64 for float64 embeddings.
    Raises:
        ValueError: a gallery larger than M − 1 identities; none or both of threshold and fpir; values out of range.
    Source: ISO/IEC 19795-1 and NISTIR 8271 (FPIR, FNIR, selectivity).

    >>> import torch
    >>> angles = torch.tensor([0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
    >>> embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> rates = identification(embeddings, torch.tensor([0, 0, 1, 1, 2, 2]), gallery_size=1, fpir=0.01)
    >>> rates.fpir, rates.fnir
    (0.0, 0.0)
    """
    if (threshold is None) == (fpir is None):
        raise ValueError(f"give one of threshold and fpir; got threshold={threshold!r}, fpir={fpir!r}")
    check_whole(rank, "rank", 1)
    scores = BestScores(embeddings, labels, cameras, template)
    others = scores.identities - 1
    check_whole(gallery_size, "gallery_size")
    if not 1 <= gallery_size <= others:
        raise ValueError(
            f"gallery_size must be from 1 to {others}, one less than the set's identities; got {gallery_size}. "
            "Measure a larger set, or use extrapolate_fpir"
        )
    if fpir is not None:
        check_fraction(fpir, "fpir")
        high = scores_for_rate(scores, gallery_size, fpir)
        threshold = threshold_for_rate(high, gallery_size, fpir)
        assert threshold is not None
    else:
        assert threshold is not None
        check_number(threshold, "threshold")
        if threshold != threshold:
            raise ValueError("threshold must be a number; got nan")
        # A cosine is at least −1, apart from rounding.
        high = scores_from(scores, threshold if threshold > -1 else ALL)
    rates = search_rates(high, threshold if threshold > -1 else ALL, gallery_size, rank=rank)
    fnir = float("nan") if rates.fnir is None else rates.fnir.rate
    return Identification(float(threshold), rates.fpir.rate, fnir, rates.selectivity.rate)
