"""Error rates of searches in galleries of a size, with intervals for identities like those measured."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext.functional.open_set.gallery_law import share_with_any, share_with_fewer
from pml_ext.functional.open_set.high_scores import HighScores, found_at, reported
from pml_ext.functional.verification.class_interval import jackknife_interval


class RateWithInterval(NamedTuple):
    """A rate, and the interval that covers it for other identities of the same kind."""

    rate: float
    low: float
    high: float


class SearchRates(NamedTuple):
    """Rates in galleries of `enrolled` identities; see `Identification`.

    fnir: None without mated probes; if_alike: the FPIR if all probes had the pooled rate; cmc: by rank, from 1.
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
    others, above = high.others, reported(high, threshold)
    number = torch.bincount(high.probe[above], minlength=len(high.own))
    places = number, high.probe[above], high.identity[above], high.label

    def interval(law: _Law) -> RateWithInterval:
        return _rate_without_each(law, high.identities, confidence)

    hit = interval(_Law(*places, lambda n, m: share_with_any(n, m, min(enrolled, m))))
    pooled = interval(_Law(*places, lambda n, m: n.double() / m))
    selectivity = RateWithInterval(*(enrolled * value for value in pooled))
    alike = float(share_with_any(number.double().mean(), others, enrolled))
    mated = high.own > -torch.inf
    if not bool(mated.any()):
        return SearchRates(enrolled, hit, None, selectivity, alike, ())
    row = mated.cumsum(0) - 1  # among the mated
    found = found_at(high, threshold) & mated
    better = above & found[high.probe] & (high.value >= high.own[high.probe])
    before = high.before[mated]

    def miss(n: Tensor, m: int) -> Tensor:
        return 1 - share_with_fewer(n, m, min(enrolled, m + 1) - 1, rank)

    # One that is not found is missed in every gallery.
    law = _Law(
        torch.where(found[mated], before, -1), row[high.probe[better]], high.identity[better], high.label[mated],
        lambda n, m: torch.where(n < 0, 1.0, miss(n.clamp_min(0), m)),
    )  # fmt: skip
    cmc = (float(share_with_fewer(before, others, enrolled - 1, r + 1).mean()) for r in range(ranks))
    return SearchRates(enrolled, hit, interval(law), selectivity, alike, tuple(cmc))


def _rate_without_each(law: _Law, identities: int, confidence: float) -> RateWithInterval:
    """The mean over probes, and its interval from leaving out each identity, as probe and in galleries."""
    others = identities - 1
    rate = float(law.value(law.number, others).mean())
    if others < 2:
        return RateWithInterval(rate, *jackknife_interval(rate, torch.full((identities,), torch.nan), 1, confidence))
    left = law.value(law.number, others - 1)
    number = law.number[law.probe]
    change = law.value(number - 1, others - 1) - law.value(number, others - 1)
    sums = left.new_zeros(identities)
    sums = left.sum() - sums.index_add(0, law.label, left) + sums.index_add(0, law.identity, change)
    probes = len(left) - torch.bincount(law.label, minlength=identities)
    without = (sums / probes)[probes > 0]
    # Each probe meets every other identity: a mean over galleries is of that many comparisons at most.
    return RateWithInterval(rate, *jackknife_interval(rate, without, len(left) * others, confidence))
