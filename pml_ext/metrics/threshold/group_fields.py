"""What a threshold report holds about groups of samples."""

from dataclasses import dataclass

from pml_ext.metrics.threshold.rate_fields import Count, CountAbove0, ErrorRate, Fraction, NotNegative


@dataclass(frozen=True)
class Group:
    """Samples of one group, such as a sex, a site, a product line.

    far: over impostor pairs of two of its samples; frr: over genuine pairs with a sample of it; None where the group
    has too few pairs, see `Groups`.
    """

    label: int | str
    samples: CountAbove0
    identities: CountAbove0
    far: ErrorRate | None
    frr: ErrorRate | None
    impostor_pairs: Count
    genuine_pairs: Count


@dataclass(frozen=True)
class PairOfGroups:
    """far: over impostor pairs of a sample of each group; None where there are too few."""

    labels: tuple[int | str, int | str]
    far: ErrorRate | None
    impostor_pairs: Count


@dataclass(frozen=True)
class Between:
    """A number that compares groups, and its 95 % interval for identities like the set's.

    one, to: the rate of group `one` divided by that of group `to`, or (None) by the geometric mean of all groups; both
    None: a number of all groups.
    value, high: None for a ratio to a rate without errors, of which only the low end is known.
    """

    one: int | str | None
    to: int | str | None
    value: NotNegative | None
    low: NotNegative
    high: NotNegative | None


@dataclass(frozen=True)
class Groups:
    """Error rates by group at the report's threshold.

    needed_impostor_pairs, needed_genuine_pairs: from how many pairs on a rate is given.
    far_ratios, frr_ratios: of each group with a rate, then of the highest to the lowest. If a group has no error, the
        geometric mean is 0, and only the last is there; if none has one, neither is it.
    garbe: see `pml_ext.functional.verification.errors_by_group`; None unless every group has both rates and errors of
        both kinds.
    opis: over groups instead of classes, over the report's range; None where identities are in several groups.
    """

    groups: tuple[Group, ...]
    between: tuple[PairOfGroups, ...]
    needed_impostor_pairs: Count
    needed_genuine_pairs: Count
    far_ratios: tuple[Between, ...]
    frr_ratios: tuple[Between, ...]
    garbe: Between | None
    opis: Fraction | None
