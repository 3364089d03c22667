"""Error rates of a threshold by group of samples, and ratios between groups."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.errors_by_group import group_errors, interval_by_stratum, rates_without_each
from pml_ext.thresholds.fields import ErrorRate, Group, GroupComparison, GroupPair, Groups
from pml_ext.thresholds.samples import pooled_rate

_MAX_GROUPS = 50
_EXPECTED_ERRORS = 5  # expected errors at the pooled rate; a group with fewer gets no rate


def check_groups(names: Sequence[int | str]) -> None:
    """Raise for too few or too many groups."""
    if not 2 <= len(names) <= _MAX_GROUPS:
        raise ValueError(f"groups must have 2 to {_MAX_GROUPS} different values; got {len(names)}")


def measure_groups(
    pairs: PairDistances,
    groups: Tensor,
    names: tuple[int | str, ...],
    rates: tuple[ErrorRate, ErrorRate],
    cosine: float,
) -> Groups:
    """Measure the rates of (N,) groups 0, 1, …, in the order of the pairs' samples; rates: FAR and FRR of all pairs."""
    count = len(names)
    errors = group_errors(pairs, groups, count, cosine)
    label, groups = pairs.index.cpu(), groups.cpu()
    members = torch.zeros((len(pairs.classes), count), dtype=torch.int64, device="cpu")
    members.index_put_((label, groups), torch.ones_like(label), accumulate=True)
    needed_impostors, needed_genuine = (_pairs_needed(rate) for rate in rates)

    def far_of(a: int, b: int) -> ErrorRate | None:
        return _rate(
            errors.false_accepts[:, a, b], errors.impostor_pairs[:, a, b], needed_impostors, classes_per_pair=2
        )

    def impostor_pairs(a: int, b: int) -> int:
        return int(errors.impostor_pairs[:, a, b].sum()) // 2

    samples, identities = members.sum(dim=0).tolist(), (members > 0).sum(dim=0).tolist()
    listed = []
    for place, name in enumerate(names):
        rejects, genuine = errors.false_rejects[:, place], errors.genuine_pairs[:, place]
        group = Group(
            label=name,
            samples=samples[place],
            identities=identities[place],
            far=far_of(place, place),
            frr=_rate(rejects, genuine, needed_genuine, classes_per_pair=1),
            impostor_pairs=impostor_pairs(place, place),
            genuine_pairs=int(genuine.sum()),
        )
        listed.append(group)
    between = []
    for a, b in combinations(range(count), 2):
        between.append(GroupPair((names[a], names[b]), far_of(a, b), impostor_pairs(a, b)))
    # If each identity has one group, groups are separate strata; otherwise there is one stratum.
    stratum = torch.zeros(len(members), dtype=torch.int64, device="cpu")
    if bool(((members > 0).sum(dim=1) == 1).all()):
        stratum = members.argmax(dim=1)
    diagonal = torch.arange(count, device="cpu")
    fars, frrs = [group.far for group in listed], [group.frr for group in listed]
    accepts, impostors = errors.false_accepts[:, diagonal, diagonal], errors.impostor_pairs[:, diagonal, diagonal]
    far_ratios = _extreme_ratio(names, fars, accepts, impostors, 2, stratum)
    frr_ratios = _extreme_ratio(names, frrs, errors.false_rejects, errors.genuine_pairs, 1, stratum)
    return Groups(
        groups=tuple(listed),
        between=tuple(between),
        needed_impostor_pairs=round(needed_impostors),
        needed_genuine_pairs=round(needed_genuine),
        far_ratios=far_ratios,
        frr_ratios=frr_ratios,
    )


def _pairs_needed(pooled: ErrorRate) -> float:
    """Returns the number of pairs with a few expected errors at the pooled rate."""
    return _EXPECTED_ERRORS / max(pooled.rate, 1 / pooled.pairs)


def _rate(errors: Tensor, pairs: Tensor, needed: float, classes_per_pair: int) -> ErrorRate | None:
    """Returns the `pooled_rate`, or None for fewer pairs than needed."""
    if int(pairs.sum()) // classes_per_pair < needed:
        return None
    return pooled_rate(errors, pairs, classes_per_pair)


def _extreme_ratio(
    names: Sequence[int | str],
    rates: Sequence[ErrorRate | None],
    errors: Tensor,
    pairs: Tensor,
    classes_per_pair: int,
    stratum: Tensor,
) -> tuple[GroupComparison, ...]:
    """Returns the ratio of the highest to the lowest group rate; empty without two rates, or without an error.

    errors, pairs: (T, G) counts per class; classes_per_pair: see `pooled_rate`.
    """
    places = [place for place, rate in enumerate(rates) if rate is not None]
    measured = [rate for rate in rates if rate is not None]
    if len(measured) < 2 or not any(rate.errors for rate in measured):
        return ()
    values, without = rates_without_each(errors[:, places], pairs[:, places], classes_per_pair)
    high, low = int(values.argmax()), int(values.argmin())
    one, to = names[places[high]], names[places[low]]
    if not measured[low].errors:
        # Each rate's interval has 97.5 % confidence, so both together have 95 %.
        return (GroupComparison(one, to, None, measured[high].low / measured[low].high, None),)
    ratio = (values[high] / values[low]).log()[None]
    ratio_without = (without[:, high] / without[:, low]).log()[:, None]
    ends = interval_by_stratum(ratio, ratio_without, stratum)
    return (GroupComparison(one, to, *torch.cat([ratio, *ends]).exp().tolist()),)
