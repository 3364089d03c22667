"""Chooses a cohort, and k and strength of a normalisation: on some identities, judged on others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_fraction, check_not_collapsed, warn_caller
from pml_ext.functional.opis.utility import (
    check_far_range_and_grid,
    curves_of_counts,
    find_measurable,
    opis_of_curves,
    ranks_of_rates,
)
from pml_ext.functional.pairwise.pair_distances import ListedPairs, PairDistances
from pml_ext.functional.retrieval.cohort import cohort_offsets, offsets_for
from pml_ext.functional.verification.intervals import half_widths
from pml_ext.functional.verification.roc import largest_count_within
from pml_ext.metrics.keys import rate
from pml_ext.metrics.labels import Labels, names_of_samples, number_classes

if TYPE_CHECKING:
    from pml_ext.metrics.normalization import CohortNormalization

FEWEST_IDENTITIES = 50
"""A smaller cohort is not recommended: with a few dozen identities, normalised scores were worse than cosines."""
_GROUPS = 10  # of the identities of a half, each left out once for the intervals
_MOST_SAMPLES = 2**14  # judged; bounds the memory of the listed pairs to about 150 MB
_TINY = 1e-12  # OPIS of a set without errors
_SPLITS = 5  # of the identities, for the agreement
_UNLIKE = 0.25  # below the expected correlation; cohorts of the same population were at most 0.15 below it
_FEWEST_SAMPLES = 50  # for a meaningful correlation


def cohort_mask(labels: Labels, share: float) -> Tensor:
    """Returns which samples belong to the identities that are set aside as a cohort.

    The choice depends on the identities' names only, so that the same names are set aside in every file and process.

    Args:
        labels: (N,) integers or strings.
        share: share of the identities, in (0, 1); rounded to a whole number.
    Returns:
        (N,) bool, on the CPU.

    >>> cohort_mask(["anna", "anna", "ben", "carla"], 0.34).tolist()
    [False, False, True, False]
    """
    check_fraction(share, "share")
    names = names_of_samples(labels, len(labels))
    ordered = sorted(set(names.tolist()), key=lambda name: blake2b(name.encode(), digest_size=8).digest())
    aside = {*ordered[: round(share * len(ordered))]}
    return torch.tensor([name in aside for name in names.tolist()])


class Agreement(NamedTuple):
    """Correlation of m(x) by the cohort with m(x) by other identities of the set.

    cohort: the correlation; expected: that of a cohort of the same size and kind. nan for fewer than _FEWEST_SAMPLES
    samples in the cohort or a third of the set.

    >>> Agreement(cohort=0.3, expected=0.8).is_unlike
    True
    """

    cohort: float
    expected: float

    @property
    def is_unlike(self) -> bool:
        """Whether the cohort is dense in other regions than the set."""
        return self.cohort < self.expected - _UNLIKE


def agreement_of(cohort: Tensor, k: int, embeddings: Tensor, ids: Tensor) -> Agreement:
    """Implements `CohortNormalization.agreement`; ids: (N,) class ids 0, 1, …"""
    generator = torch.Generator().manual_seed(0)
    correlations = []
    for _ in range(_SPLITS):
        third = torch.randperm(int(ids.max()) + 1, generator=generator)[ids] % 3
        judged, one, other = (embeddings[(third == part).to(embeddings.device)] for part in range(3))
        size = min(len(one), len(other), len(cohort))
        if min(size, len(judged)) < _FEWEST_SAMPLES:
            return Agreement(math.nan, math.nan)
        of_one, of_other, of_cohort = (
            cohort_offsets(judged, _spread(samples, size), min(k, size)) for samples in (one, other, cohort)
        )
        expected = _correlation(of_one, of_other)
        correlations.append([(_correlation(of_cohort, of_one) + _correlation(of_cohort, of_other)) / 2, expected])
    return Agreement(*torch.tensor(correlations).mean(dim=0).tolist())


def warn_if_unlike(agreement: Agreement) -> None:
    """Warn about a cohort that does not resemble the embeddings."""
    if agreement.is_unlike:
        warn_caller(f"{_unlike(agreement)}; normalisation may do harm. Use samples of the kind to compare")


def _unlike(agreement: Agreement) -> str:
    return (
        f"the cohort does not resemble the embeddings (correlation {agreement.cohort:.2f}; a cohort of the same kind "
        f"would have {agreement.expected:.2f})"
    )


def _spread(samples: Tensor, count: int) -> Tensor:
    """Returns `count` rows at equal distances."""
    return samples[torch.linspace(0, len(samples) - 1, count).long().to(samples.device)]


def _correlation(one: Tensor, other: Tensor) -> float:
    centred = [values - values.mean() for values in (one, other)]
    return float((centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm()))


class Change(NamedTuple):
    """Change from cosines to normalised scores, with its 95 % interval for identities like those judged."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class NormalizationTrial:
    """Results of one k and strength, means over both halves of the identities; strength 0 is the plain cosine."""

    k: int
    strength: float
    tar: float
    opis: float


@dataclass(frozen=True)
class NormalizationTrials:
    """Result of `CohortNormalization.tune`.

    plain: results of cosines; trials: results by k and strength; chosen: the trial with the lowest OPIS, among those
        that do not lower TAR if there are any.
    opis_change: logarithm of the ratio of OPIS, and tar_change: difference of TAR, each of what one half of the
        identities chose, measured on the other half.
    far: FAR of the TAR; classes, samples: numbers in the set; cohort: number of cohort samples; identities: number of
        its identities, None if unknown; agreement: how well the cohort resembles the set.

    >>> plain, one = NormalizationTrial(5, 0.0, 0.7, 0.002), NormalizationTrial(5, 1.0, 0.8, 0.001)
    >>> lower, higher, like = Change(-0.69, -0.9, -0.4), Change(0.1, 0.05, 0.15), Agreement(0.8, 0.8)
    >>> print(NormalizationTrials(plain, (one,), one, lower, higher, 0.001, 40, 400, 400, 100, like).summary())
    recommended: k = 5, strength = 1
    OPIS -50 % [-59, -33], TAR at FAR 1e-3 +10.0 points [+5.0, +15.0] against plain cosines
    on 400 samples of 40 classes that are not in the cohort of 400 samples of 100 identities
    """

    plain: NormalizationTrial
    trials: tuple[NormalizationTrial, ...]
    chosen: NormalizationTrial
    opis_change: Change
    tar_change: Change
    far: float
    classes: int
    samples: int
    cohort: int
    identities: int | None
    agreement: Agreement

    @property
    def best(self) -> NormalizationTrial | None:
        """The chosen trial if it is recommended, else None.

        It is if OPIS or TAR is decidedly better, by its interval, and the other one not decidedly worse; the cohort
        must also have enough identities and resemble the samples.
        """
        is_better = self.opis_change.high < 0 or self.tar_change.low > 0
        is_cohort = not self.is_small and not self.agreement.is_unlike
        return self.chosen if is_cohort and is_better and not self._is_worse else None

    @property
    def _is_worse(self) -> bool:
        return self.opis_change.low > 0 or self.tar_change.high < 0

    @property
    def is_small(self) -> bool:
        """Whether the cohort has fewer than FEWEST_IDENTITIES identities, or samples if these are unknown."""
        return (self.cohort if self.identities is None else self.identities) < FEWEST_IDENTITIES

    @property
    def reason(self) -> str:
        """Why the chosen trial is recommended or not."""
        if self.is_small:
            return f"the cohort has fewer than {FEWEST_IDENTITIES} identities"
        if self.agreement.is_unlike:
            return _unlike(self.agreement)
        if self._is_worse:
            worse = "OPIS" if self.opis_change.low > 0 else "TAR"
            return f"{worse} is decidedly worse with normalised scores"
        if self.best is None:
            return "neither OPIS nor TAR is decidedly better with normalised scores"
        better = "OPIS" if self.opis_change.high < 0 else "TAR"
        return f"{better} is decidedly better, and {'TAR' if better == 'OPIS' else 'OPIS'} not decidedly worse"

    @property
    def verdict(self) -> str:
        """In words."""
        return "recommended" if self.best is not None else f"not recommended, {self.reason}"

    def summary(self) -> str:
        """Returns verdict, changes and data."""
        opis = "OPIS {:+.0f} % [{:+.0f}, {:+.0f}]".format(*(100 * math.expm1(end) for end in self.opis_change))
        tar = "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*(100 * end for end in self.tar_change))
        cohort = f"the cohort of {self.cohort} samples"
        if self.identities is not None:
            cohort += f" of {self.identities} identities"
        lines = [
            f"{self.verdict}: k = {self.chosen.k}, strength = {self.chosen.strength:g}",
            f"{opis}, TAR at FAR {rate(self.far)} {tar} against plain cosines",
            f"on {self.samples} samples of {self.classes} classes that are not in {cohort}",
        ]
        return "\n".join(lines)


class _Measured(NamedTuple):
    """OPIS and TAR of a set."""

    opis: float
    tar: float


@dataclass(frozen=True)
class _Half:
    """One half of the identities: embeddings, (N,) ids, and (K, N) mean cosines with the cohort for each k."""

    embeddings: Tensor
    ids: Tensor
    means: Tensor
    far: float
    far_range: tuple[float, float]

    def subset(self, mask: Tensor) -> "_Half":
        """Returns the samples selected by an (N,) mask."""
        on_device = mask.to(self.embeddings.device)
        return replace(self, embeddings=self.embeddings[on_device], ids=self.ids[mask], means=self.means[:, on_device])

    def listed(self, place: int, strength: float) -> ListedPairs:
        """Returns the pairs by the k at a place among the tried ones, as far as measured; strength 0: by cosines."""
        offsets = 0.5 * strength * self.means[place] if strength else None
        pairs = PairDistances(self.embeddings, self.ids, offsets=offsets)
        total, share = pairs.total_negative_pairs, max(self.far, *self.far_range)
        needed, share = share * total + 1, min(1.0, 1.35 * share)
        while True:
            rank = max(1, int(share * total))
            listed = pairs.listed(float(pairs.negative_distances_at([rank])))
            if rank == total or _fewest_without_a_group(listed) >= needed:
                return listed
            share = min(1.0, 2 * share)

    def measure(self, listed: ListedPairs, grid: int = 100) -> _Measured:
        """Measure by this half's pairs; those at the first rejected distance are excluded from TAR."""
        pairs = PairDistances(self.embeddings, self.ids)
        total = pairs.total_negative_pairs
        refused = largest_count_within(self.far, total) + 1
        if not pairs.total_positive_pairs or not 2 <= refused <= total:
            raise ValueError(
                f"TAR at FAR {self.far:g} needs genuine pairs and at least {math.ceil(1 / self.far)} impostor pairs in "
                f"each half of the identities; got {pairs.total_positive_pairs} and {total}"
            )
        kept = find_measurable(pairs)
        places = torch.tensor([*ranks_of_rates(pairs, self.far_range, required=True), refused]) - 1
        ends = listed.negatives[places.to(listed.negatives.device)]
        thresholds = torch.lerp(ends[0], ends[1], torch.linspace(0, 1, grid).to(ends))
        below = torch.nextafter(ends[2:], torch.zeros_like(ends[2:]))
        merged, place = torch.unique(torch.cat([thresholds, below]), return_inverse=True)
        positives, negatives = (counts[:, place] for counts in listed.accepted(merged, len(pairs.classes)))
        curves = curves_of_counts(pairs, kept, thresholds, positives[kept, :grid], negatives[kept, :grid], ends[:2])
        tar = positives[:, grid].sum() / pairs.total_positive_pairs
        return _Measured(float(opis_of_curves(curves)), float(tar))

    def change(self, plain: ListedPairs, normalized: ListedPairs) -> tuple[float, float]:
        """Returns the logarithm of the ratio of OPIS, and the difference of TAR, from cosines to normalised scores."""
        before, after = self.measure(plain), self.measure(normalized)
        return math.log(max(after.opis, _TINY) / max(before.opis, _TINY)), after.tar - before.tar

    def changes(self, plain: ListedPairs, normalized: ListedPairs) -> tuple[Change, Change]:
        """Returns `change` with intervals, by a jackknife over groups of identities."""
        classes, index = torch.unique(self.ids, return_inverse=True)
        group = _group_of(torch.arange(len(classes)))
        without = []
        for left_out in range(_GROUPS):
            is_out = (group == left_out).to(plain.inside.device)
            rest = self.subset(_group_of(index) != left_out)
            without.append(rest.change(plain.without(is_out), normalized.without(is_out)))
        changes = []
        for value, left in zip(self.change(plain, normalized), torch.tensor(without).T, strict=True):
            half = float(half_widths(left))
            changes.append(Change(value, value - half, value + half))
        return changes[0], changes[1]


def _group_of(classes: Tensor) -> Tensor:
    return classes % _GROUPS


def _fewest_without_a_group(listed: ListedPairs) -> int:
    """Returns the number of negative pairs that remain without one of the groups, of the group with the most pairs."""
    one, other = _group_of(listed.one), _group_of(listed.other)
    touched = torch.bincount(one, minlength=_GROUPS) + torch.bincount(other[one != other], minlength=_GROUPS)
    return len(one) - int(touched.max())


def tune_normalization(
    normalization: "CohortNormalization",
    embeddings: Tensor,
    labels: Labels,
    *,
    ks: Sequence[int],
    strengths: Sequence[float],
    far: float,
    far_range: tuple[float, float],
) -> NormalizationTrials:
    """Implements `CohortNormalization.tune`, for a cohort of identities that are not judged."""
    check_fraction(far, "far")
    check_not_collapsed(embeddings)
    check_far_range_and_grid(far_range, 100)
    cohort = normalization.cohort
    fitting = sorted({k for k in ks if k <= len(cohort)})
    if not fitting or not len(strengths):
        raise ValueError(f"ks must have a number up to the cohort size {len(cohort)}, and strengths a number; got {ks}")
    ids, names = number_classes(labels, len(embeddings))[0], names_of_samples(labels, len(embeddings))
    if len(ids) > _MOST_SAMPLES:
        kept = cohort_mask(names, _MOST_SAMPLES / len(ids))
        embeddings, names = embeddings[kept.to(embeddings.device)], names[kept.numpy()]
        ids = torch.unique(ids[kept], return_inverse=True)[1]
    whole = _Half(embeddings, ids, torch.stack(offsets_for(embeddings, cohort, fitting)), far, far_range)
    first = cohort_mask(names, 0.5)
    halves = whole.subset(first), whole.subset(~first)
    settings = [(place, float(strength)) for place in range(len(fitting)) for strength in strengths]
    cosines = [half.listed(0, 0.0) for half in halves]
    plain = [half.measure(listed) for half, listed in zip(halves, cosines, strict=True)]
    measured = []
    for half in halves:
        measured.append([half.measure(half.listed(*setting)) for setting in settings])
    of_plain = _mean_trial(fitting[0], 0.0, plain)
    trials = []
    for (place, strength), pair in zip(settings, zip(*measured, strict=True), strict=True):
        trials.append(_mean_trial(fitting[place], strength, pair))
    changes = []
    for chooser, judge in ((0, 1), (1, 0)):
        choice = settings[_choose(plain[chooser], measured[chooser])]
        changes.append(halves[judge].changes(cosines[judge], halves[judge].listed(*choice)))
    opis_change, tar_change = (_mean_change(of_measure) for of_measure in zip(*changes, strict=True))
    chosen = trials[_choose(of_plain, trials)]
    agreement = agreement_of(cohort, chosen.k, embeddings, ids)
    return NormalizationTrials(
        plain=of_plain,
        trials=tuple(trials),
        chosen=chosen,
        opis_change=opis_change,
        tar_change=tar_change,
        far=far,
        classes=len(torch.unique(ids)),
        samples=len(embeddings),
        cohort=len(cohort),
        identities=normalization.identities,
        agreement=agreement,
    )


def _mean_trial(k: int, strength: float, halves: Sequence[_Measured]) -> NormalizationTrial:
    tar = sum(half.tar for half in halves) / len(halves)
    return NormalizationTrial(k, strength, tar, sum(half.opis for half in halves) / len(halves))


def _choose(plain: "_Measured | NormalizationTrial", trials: Sequence["_Measured | NormalizationTrial"]) -> int:
    """Returns the place of the trial with the lowest OPIS, among those that do not lower TAR if there are any."""
    kept = [place for place, trial in enumerate(trials) if trial.tar >= plain.tar] or range(len(trials))
    return min(kept, key=lambda place: trials[place].opis)


def _mean_change(changes: Sequence[Change]) -> Change:
    """Returns the mean of independent changes."""
    value = sum(change.value for change in changes) / len(changes)
    half = math.hypot(*(change.high - change.value for change in changes)) / len(changes)
    return Change(value, value - half, value + half)
