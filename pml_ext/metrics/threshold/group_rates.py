"""Error rates of a threshold by group of samples, and how far the groups lie apart."""

import torch
from torch import Tensor

from pml_ext.functional.operating_points.utility import utility_of_rates
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.errors_by_group import (
    GroupErrors,
    garbe,
    group_errors,
    interval_by_stratum,
    rates_without_each,
    to_geometric_mean,
)
from pml_ext.functional.verification.intervals import class_rate_interval
from pml_ext.metrics.threshold.fields import Consistency
from pml_ext.metrics.threshold.group_fields import Between, Group, Groups, PairOfGroups
from pml_ext.metrics.threshold.rate_fields import ErrorRate

_MOST = 50  # groups
_EXPECTED = 5  # errors at the pooled rate, below which a group's rate says nothing


def measure_groups(
    pairs: PairDistances,
    groups: Tensor,
    names: tuple[int | str, ...],
    rates: tuple[ErrorRate, ErrorRate],
    cosine: float,
    consistency: Consistency | None,
    grid: int,
) -> Groups:
    """Rates of (N,) groups 0, 1, … in the order of the pairs' samples; rates: FAR and FRR of all pairs."""
    count = len(names)
    if not 2 <= count <= _MOST:
        raise ValueError(f"groups must name 2 to {_MOST} groups of samples; got {count}")
    found = group_errors(pairs, groups, count, cosine)
    label, groups = pairs.index.cpu(), groups.cpu()
    members = torch.zeros((len(pairs.classes), count), dtype=torch.int64)
    members.index_put_((label, groups), torch.ones_like(label), accumulate=True)
    in_one = bool(((members > 0).sum(dim=1) == 1).all())
    own = torch.arange(count)
    # A rate needs as many pairs as would give a few errors at the rate of all pairs.
    enough = [_EXPECTED / max(rate.rate, 1 / rate.pairs) for rate in rates]

    def far(a: int, b: int) -> ErrorRate | None:
        return _rate(found.false_accepts[:, a, b], found.impostor_pairs[:, a, b], True, enough[0])

    def frr(a: int) -> ErrorRate | None:
        return _rate(found.false_rejects[:, a], found.genuine_pairs[:, a], False, enough[1])

    listed = tuple(
        Group(
            name, int(members[:, a].sum()), int((members[:, a] > 0).sum()), far(a, a), frr(a),
            int(found.impostor_pairs[:, a, a].sum()) // 2, int(found.genuine_pairs[:, a].sum()),
        )
        for a, name in enumerate(names)
    )  # fmt: skip
    between = tuple(
        PairOfGroups((names[a], names[b]), far(a, b), int(found.impostor_pairs[:, a, b].sum()) // 2)
        for a in range(count)
        for b in range(a + 1, count)
    )
    # Identities of one group each are a sample of that group; otherwise all are one sample.
    stratum = members.argmax(dim=1) if in_one else torch.zeros(len(members), dtype=torch.int64)
    within = GroupErrors(found.false_accepts[:, own, own], found.impostor_pairs[:, own, own], *found[2:])
    return Groups(
        listed,
        between,
        round(enough[0]),
        round(enough[1]),
        _compare([(group.label, group.far) for group in listed], *within[:2], 2, stratum),
        _compare([(group.label, group.frr) for group in listed], *within[2:], 1, stratum),
        _garbe(within, stratum) if all(rate and rate.errors for g in listed for rate in (g.far, g.frr)) else None,
        _opis(pairs, groups, label, count, consistency, grid) if in_one and consistency else None,
    )


def _rate(errors: Tensor, pairs: Tensor, spans: bool, enough: float) -> ErrorRate | None:
    share = 2 if spans else 1
    total = int(pairs.sum()) // share
    if total < enough:
        return None
    low, high = class_rate_interval(errors, pairs, pairs_span_classes=spans)
    return ErrorRate(int(errors.sum()) // share, total, low, high)


def _compare(
    groups: list[tuple[int | str, ErrorRate | None]], errors: Tensor, pairs: Tensor, share: int, stratum: Tensor
) -> tuple[Between, ...]:
    """Each group's rate to the geometric mean of all, then the highest to the lowest; empty below two groups."""
    measured = [(a, name, rate) for a, (name, rate) in enumerate(groups) if rate]
    if len(measured) < 2 or not any(rate.errors for _, _, rate in measured):
        return ()
    at, names, found = zip(*measured, strict=True)
    rates, without = rates_without_each(errors[:, at], pairs[:, at], share)
    high, low = int(rates.argmax()), int(rates.argmin())
    if not found[low].errors:
        # Both ends hold in 97.5 % of all sets, and so in 95 % together.
        return (Between(names[high], names[low], None, found[high].low / found[low].high, None),)

    def ratios(of: Tensor) -> Tensor:
        logs = to_geometric_mean(of)
        return torch.cat([logs, (logs[..., high] - logs[..., low])[..., None]], dim=-1)

    value, others = ratios(rates), ratios(without)
    ends = interval_by_stratum(value, others, stratum)
    ratio = torch.stack([value, *ends]).exp().T.tolist()
    to_what = [(name, None) for name in names] + [(names[high], names[low])]
    return tuple(Between(one, to, *numbers) for (one, to), numbers in zip(to_what, ratio, strict=True))


def _garbe(within: GroupErrors, stratum: Tensor) -> Between:
    far, far_without = rates_without_each(*within[:2], 2)
    frr, frr_without = rates_without_each(*within[2:], 1)
    value = garbe(far, frr)[None]
    low, high = interval_by_stratum(value, garbe(far_without, frr_without)[:, None], stratum)
    return Between(None, None, float(value), max(0.0, float(low)), min(1.0, float(high)))


def _opis(
    pairs: PairDistances, groups: Tensor, label: Tensor, count: int, consistency: Consistency, grid: int
) -> float | None:
    """OPIS with groups for classes, over the range of the report's; None if a group has no genuine pair."""
    thresholds = torch.linspace(*consistency.distances, grid, dtype=torch.float64)
    group_of = torch.zeros(len(pairs.classes), dtype=torch.int64).scatter_(0, label, groups)

    def by_group(counts: Tensor) -> Tensor:
        counts = counts.cpu()
        return counts.new_zeros(count, *counts.shape[1:]).index_add_(0, group_of, counts).double()

    totals = [by_group(of) for of in (pairs.positive_pairs, pairs.negative_pairs)]
    if not bool((totals[0] > 0).all()):
        return None
    genuine, impostors = (by_group(of) for of in pairs.accepted(thresholds))
    utilities = utility_of_rates(genuine / totals[0][:, None], 1 - impostors / totals[1][:, None])
    return float((utilities - utilities.mean(dim=0)).square().mean())
