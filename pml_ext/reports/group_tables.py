"""Error rates by group and by pair of groups, as tables."""

from collections.abc import Sequence

from pml_ext.metrics.threshold.fields import ThresholdFields
from pml_ext.metrics.threshold.group_fields import Between
from pml_ext.metrics.threshold.rate_fields import ErrorRate
from pml_ext.reports.searches import Table
from pml_ext.reports.wording import with_interval


def tables_by_group(report: ThresholdFields) -> list[Table]:
    """A row for each group, then one for each pair of them, the highest FAR first; empty where none were named."""
    found = report.groups
    if found is None:
        return []
    heads = ["group", "samples", "identities", "FAR", "FAR to the mean", "FRR", "FRR to the mean"]
    rows = [
        [
            str(group.label),
            f"{group.samples:,}",
            f"{group.identities:,}",
            _rate(group.far, group.impostor_pairs, found.needed_impostor_pairs),
            _ratio(found.far_ratios, group.label),
            _rate(group.frr, group.genuine_pairs, found.needed_genuine_pairs),
            _ratio(found.frr_ratios, group.label),
        ]
        for group in found.groups
    ]
    pairs = sorted(found.between, key=lambda pair: -pair.far.rate if pair.far else 1)
    of_pairs = [
        [*map(str, pair.labels), _rate(pair.far, pair.impostor_pairs, found.needed_impostor_pairs)] for pair in pairs
    ]
    return [(heads, rows), (["group", "and group", "FAR of pairs of both"], of_pairs)]


def _rate(rate: ErrorRate | None, pairs: int, needed: int) -> str:
    return with_interval(rate) if rate else f"too few pairs: {pairs:,} of {needed:,}"


def _ratio(ratios: Sequence[Between], label: int | str) -> str:
    """How many times the geometric mean of all groups."""
    own = next((ratio for ratio in ratios if ratio.one == label and ratio.to is None), None)
    return f"{own.value:.3g} × ({own.low:.3g} to {own.high:.3g})" if own else "–"
