"""Error rates of searches in galleries of a size, with intervals for identities like those measured."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pml_ext.functional.open_set.gallery_law import share_by_pooled_rate, share_with_any, share_with_fewer
from pml_ext.functional.open_set.high_scores import HighScores, found_at, reported
from pml_ext.functional.verification.class_interval import effective_number, jackknife_interval


class RateWithInterval(NamedTuple):
    """A rate, and the interval that covers it for other identities of the same kind."""

    rate: float
    low: float
    high: float


class SearchRates(NamedTuple):
    """Rates in galleries of `enrolled` identities; see `Identification`.

    fnir: None without mated probes; if_alike: the FPIR to expect if all probes had the pooled rate; cmc: by rank, from
    1.
    """

    enrolled: int
    fpir: RateWithInterval
    fnir: RateWithInterval | None
    selectivity: RateWithInterval
    if_alike: float
    cmc: tuple[float, ...]


class _Law(NamedTuple):
    """A rate that depends on how many other identities each probe is taken for, and on how many there are."""

    number: Tensor  # (P,) int64
    probe: Tensor  # (S,) which probes are taken for
    identity: Tensor  # (S,) which identities
    label: Tensor  # (P,) the probes' own
    value: Callable[[Tensor, int], Tensor]  # of numbers of identities (…), and of how many others there are


def search_rates(
    high: HighScores, threshold: float, enrolled: int, *, rank: int = 1, ranks: int = 0, confidence: float = 0.95
) -> SearchRates:
    """Rates at a threshold not below `high.low`; ranks: how many of the CMC."""
    others = high.others
    hit, pooled, miss = _laws(high, threshold, enrolled, rank)

    def interval(law: _Law) -> RateWithInterval:
        rate, without = _without_each(law, high.identities)
        # Each probe meets every other identity: a mean over galleries is of that many comparisons at most.
        trials = len(law.number) * others
        without = without if others < 2 else without[~without.isnan()]
        classes = effective_number(torch.bincount(law.label))
        return RateWithInterval(rate, *jackknife_interval(rate, without, trials, confidence, classes))

    far = interval(pooled)
    selectivity = RateWithInterval(*(enrolled * value for value in far))
    alike = share_by_pooled_rate(far.rate, enrolled)
    if miss is None:
        return SearchRates(enrolled, interval(hit), None, selectivity, alike, ())
    before = high.before[high.own > -torch.inf]
    cmc = (float(share_with_fewer(before, others, enrolled - 1, r + 1).mean()) for r in range(ranks))
    return SearchRates(enrolled, interval(hit), interval(miss), selectivity, alike, tuple(cmc))


def rates_without_each(
    high: HighScores, threshold: float, enrolled: int, *, rank: int = 1
) -> tuple[tuple[float, np.ndarray], tuple[float, np.ndarray]]:
    """FPIR and FNIR, each with its (M,) values without each identity."""
    hit, _, miss = _laws(high, threshold, enrolled, rank)
    if miss is None:
        raise ValueError("FNIR needs identities with two samples; each has one")
    (fpir, hits), (fnir, misses) = (_without_each(law, high.identities) for law in (hit, miss))
    return (fpir, hits.numpy()), (fnir, misses.numpy())


def _laws(high: HighScores, threshold: float, enrolled: int, rank: int) -> tuple[_Law, _Law, _Law | None]:
    """Of FPIR, of the pooled rate, and of FNIR (None without mated probes)."""
    above = reported(high, threshold)
    number = torch.bincount(high.probe[above], minlength=len(high.own))
    places = number, high.probe[above], high.identity[above], high.label
    hit = _Law(*places, lambda n, m: share_with_any(n, m, min(enrolled, m)))
    pooled = _Law(*places, lambda n, m: n.double() / m)
    mated = high.own > -torch.inf
    if not bool(mated.any()):
        return hit, pooled, None
    row = mated.cumsum(0) - 1  # among the mated
    found = found_at(high, threshold) & mated
    better = above & found[high.probe] & (high.value >= high.own[high.probe])

    def miss(n: Tensor, m: int) -> Tensor:
        missed = 1 - share_with_fewer(n.clamp_min(0), m, min(enrolled, m + 1) - 1, rank)
        return torch.where(n < 0, 1.0, missed)

    # −1: one that is not found is missed in every gallery.
    before = torch.where(found, high.before, -1)[mated]
    return hit, pooled, _Law(before, row[high.probe[better]], high.identity[better], high.label[mated], miss)


def _without_each(law: _Law, identities: int) -> tuple[float, Tensor]:
    """The mean over probes, and (M,) its values without each identity, as probe and in galleries; nan where none is."""
    others = identities - 1
    rate = float(law.value(law.number, others).mean())
    if others < 2:
        return rate, torch.full((identities,), torch.nan, dtype=torch.float64)
    left = law.value(law.number, others - 1)
    number = law.number[law.probe]
    change = law.value(number - 1, others - 1) - law.value(number, others - 1)
    sums = left.new_zeros(identities)
    sums = left.sum() - sums.index_add(0, law.label, left) + sums.index_add(0, law.identity, change)
    return rate, sums / (len(left) - torch.bincount(law.label, minlength=identities))
