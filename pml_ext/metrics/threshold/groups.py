"""Error rates of a threshold by group of samples, and how far the groups lie apart."""

from collections.abc import Sequence
from itertools import combinations

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
from pml_ext.metrics.threshold.samples import pooled_rate
from pml_ext.metrics.threshold.structures import Consistency, ErrorRate, Group, GroupComparison, GroupPair, Groups

_MAX_GROUPS = 50
_EXPECTED_ERRORS = 5  # at the pooled rate, below which a group's rate says nothing


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
    if not 2 <= count <= _MAX_GROUPS:
        raise ValueError(f"groups must name 2 to {_MAX_GROUPS} groups of samples; got {count}")
    errors = group_errors(pairs, groups, count, cosine)
    label, groups = pairs.index.cpu(), groups.cpu()
    members = torch.zeros((len(pairs.classes), count), dtype=torch.int64)
    members.index_put_((label, groups), torch.ones_like(label), accumulate=True)
    has_one_group = bool(((members > 0).sum(dim=1) == 1).all())
    needed = _pairs_needed(rates[0]), _pairs_needed(rates[1])
    listed = []
    for place, name in enumerate(names):
        listed.append(_group(errors, members[:, place], place, name, needed))
    between = []
    for a, b in combinations(range(count), 2):
        impostors = errors.impostor_pairs[:, a, b]
        far = _rate(errors.false_accepts[:, a, b], impostors, needed[0], is_shared=True)
        between.append(GroupPair((names[a], names[b]), far, int(impostors.sum()) // 2))
    # Identities of one group each are a sample of that group; otherwise all are one sample.
    stratum, opis = torch.zeros(len(members), dtype=torch.int64), None
    if has_one_group:
        stratum = members.argmax(dim=1)
        opis = _opis_over_groups(pairs, groups, count, consistency, grid)
    own = torch.arange(count)
    within = errors._replace(
        false_accepts=errors.false_accepts[:, own, own], impostor_pairs=errors.impostor_pairs[:, own, own]
    )
    fars, frrs = [group.far for group in listed], [group.frr for group in listed]
    far_ratios = _ratios(names, fars, within.false_accepts, within.impostor_pairs, 2, stratum)
    frr_ratios = _ratios(names, frrs, within.false_rejects, within.genuine_pairs, 1, stratum)
    has_errors = all(rate is not None and rate.errors for rate in fars + frrs)
    return Groups(
        groups=tuple(listed),
        between=tuple(between),
        needed_impostor_pairs=round(needed[0]),
        needed_genuine_pairs=round(needed[1]),
        far_ratios=far_ratios,
        frr_ratios=frr_ratios,
        garbe=_garbe(within, stratum) if has_errors else None,
        opis=opis,
    )


def _pairs_needed(pooled: ErrorRate) -> float:
    """As many pairs as would give a few errors at the rate of all pairs."""
    return _EXPECTED_ERRORS / max(pooled.rate, 1 / pooled.pairs)


def _group(
    errors: GroupErrors,
    members: Tensor,
    place: int,
    name: int | str,
    needed: tuple[float, float],
) -> Group:
    """members: (T,) samples of each class in the group."""
    impostors, genuine = errors.impostor_pairs[:, place, place], errors.genuine_pairs[:, place]
    samples, identities = int(members.sum()), int((members > 0).sum())
    far = _rate(errors.false_accepts[:, place, place], impostors, needed[0], is_shared=True)
    frr = _rate(errors.false_rejects[:, place], genuine, needed[1], is_shared=False)
    return Group(
        label=name,
        samples=samples,
        identities=identities,
        far=far,
        frr=frr,
        impostor_pairs=int(impostors.sum()) // 2,
        genuine_pairs=int(genuine.sum()),
    )


def _rate(errors: Tensor, pairs: Tensor, needed: float, *, is_shared: bool) -> ErrorRate | None:
    """See `pooled_rate`; None for fewer pairs than needed."""
    total = int(pairs.sum()) // (2 if is_shared else 1)
    return None if total < needed else pooled_rate(errors, pairs, is_shared=is_shared)


def _ratios(
    names: Sequence[int | str],
    rates: Sequence[ErrorRate | None],
    errors: Tensor,
    pairs: Tensor,
    share: int,
    stratum: Tensor,
) -> tuple[GroupComparison, ...]:
    """Each group's rate to the geometric mean of all, then the highest to the lowest; empty below two groups.

    errors, pairs: (T, G); share: how many classes count a pair.
    """
    places = [place for place, rate in enumerate(rates) if rate is not None]
    measured = [rate for rate in rates if rate is not None]
    if len(measured) < 2 or not any(rate.errors for rate in measured):
        return ()
    labels = [names[place] for place in places]
    values, without = rates_without_each(errors[:, places], pairs[:, places], share)
    high, low = int(values.argmax()), int(values.argmin())
    if not measured[low].errors:
        # Both ends hold in 97.5 % of all sets, and so in 95 % together.
        least = measured[high].low / measured[low].high
        return (GroupComparison(labels[high], labels[low], None, least, None),)

    def log_ratios(of_rates: Tensor) -> Tensor:
        logs = to_geometric_mean(of_rates)
        extremes = logs[..., high] - logs[..., low]
        return torch.cat([logs, extremes[..., None]], dim=-1)

    ratio = log_ratios(values)
    interval = interval_by_stratum(ratio, log_ratios(without), stratum)
    columns = torch.stack([ratio, *interval]).exp().T.tolist()
    to_mean = [GroupComparison(label, None, *column) for label, column in zip(labels, columns, strict=False)]
    extremes = GroupComparison(labels[high], labels[low], *columns[-1])
    return (*to_mean, extremes)


def _garbe(within: GroupErrors, stratum: Tensor) -> GroupComparison:
    far, far_without = rates_without_each(within.false_accepts, within.impostor_pairs, 2)
    frr, frr_without = rates_without_each(within.false_rejects, within.genuine_pairs, 1)
    value = garbe(far, frr)[None]
    low, high = interval_by_stratum(value, garbe(far_without, frr_without)[:, None], stratum)
    return GroupComparison(
        None,
        None,
        float(value),
        max(0.0, float(low)),
        min(1.0, float(high)),
    )


def _opis_over_groups(
    pairs: PairDistances, groups: Tensor, count: int, consistency: Consistency | None, grid: int
) -> float | None:
    """OPIS with groups for classes, over the range of the report's; None if a group has no genuine pair."""
    if consistency is None:
        return None
    thresholds = torch.linspace(*consistency.distances, grid, dtype=torch.float64)
    group_of_class = torch.zeros(len(pairs.classes), dtype=torch.int64)
    group_of_class.scatter_(0, pairs.index.cpu(), groups)

    def by_group(counts: Tensor) -> Tensor:
        counts = counts.cpu()
        sums = counts.new_zeros(count, *counts.shape[1:])
        return sums.index_add_(0, group_of_class, counts).double()

    genuine_pairs, impostor_pairs = by_group(pairs.positive_pairs), by_group(pairs.negative_pairs)
    if not bool((genuine_pairs > 0).all()):
        return None
    genuine, impostors = (by_group(counts) for counts in pairs.accepted(thresholds))
    tpr, tnr = genuine / genuine_pairs[:, None], 1 - impostors / impostor_pairs[:, None]
    utilities = utility_of_rates(tpr, tnr)
    return float((utilities - utilities.mean(dim=0)).square().mean())
