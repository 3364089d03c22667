"""Tunes k and strength of a cohort normalisation on validation classes, and reports whether it helps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_fraction, check_not_collapsed
from pml_ext.functional.operating_points.calibration import (
    check_far_range_and_grid,
    find_measurable,
    ranks_of_rates,
)
from pml_ext.functional.operating_points.utility import UtilityCurves, curves_of_counts, opis_of_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.retrieval.cohort import offsets_for
from pml_ext.functional.verification.roc import largest_count_within
from pml_ext.metrics.keys import rate


@dataclass(frozen=True)
class NormalizationTrial:
    """Results of one k and strength on validation classes; strength 0 is the plain cosine.

    >>> NormalizationTrial(k=10, strength=1.0, tar=0.8, opis=0.001).helps_over(NormalizationTrial(10, 0.0, 0.7, 0.002))
    True
    """

    k: int
    strength: float
    tar: float
    opis: float

    def helps_over(self, plain: "NormalizationTrial") -> bool:
        """Returns whether OPIS is lower and TAR is not lower."""
        return self.opis < plain.opis and self.tar >= plain.tar


@dataclass(frozen=True)
class NormalizationTrials:
    """The trials of `CohortNormalization.tune`.

    plain: results of cosines; trials: results by k and strength; far: FAR of the TAR; classes, samples: numbers in the
    validation set; cohort: number of cohort samples.

    >>> plain, one = NormalizationTrial(5, 0.0, 0.7, 0.002), NormalizationTrial(5, 1.0, 0.8, 0.001)
    >>> print(NormalizationTrials(plain, (one,), far=0.001, classes=40, samples=400, cohort=400).summary())
    recommended: k = 5, strength = 1; OPIS 0.002 → 0.001 (-50 %), TAR at FAR 1e-3 70.00 % → 80.00 %
    on 400 samples of 40 classes, with a cohort of 400 samples
    """

    plain: NormalizationTrial
    trials: tuple[NormalizationTrial, ...]
    far: float
    classes: int
    samples: int
    cohort: int

    @property
    def best(self) -> NormalizationTrial | None:
        """The trial with the lowest OPIS among those that lower OPIS and not TAR; None if there is none."""
        return min((t for t in self.trials if t.helps_over(self.plain)), key=lambda t: t.opis, default=None)

    def summary(self) -> str:
        """Returns the change in OPIS and TAR of the recommended trial, or of the best one if none is recommended."""
        plain = self.plain
        shown = self.best or min(self.trials, key=lambda t: t.opis)
        said = "recommended:" if self.best else "not recommended, it does harm here; the most even trial was"
        change = 100 * (shown.opis / plain.opis - 1) if plain.opis else math.nan
        opis = f"OPIS {plain.opis:.3g} → {shown.opis:.3g} ({change:+.0f} %)"
        tar = f"TAR at FAR {rate(self.far)} {100 * plain.tar:.2f} % → {100 * shown.tar:.2f} %"
        data = f"on {self.samples} samples of {self.classes} classes, with a cohort of {self.cohort} samples"
        return f"{said} k = {shown.k}, strength = {shown.strength:g}; {opis}, {tar}\n{data}"


class MeasuredPairs(NamedTuple):
    """OPIS curves, and (T, F) genuine and false accepts of each class at F false accept rates."""

    curves: UtilityCurves
    genuine: Tensor
    false_accepts: Tensor
    total_genuine: int

    @property
    def tar(self) -> Tensor:
        """(F,) pooled true accept rates."""
        return self.genuine.sum(dim=0) / self.total_genuine


def measure_pairs(
    pairs: PairDistances, fars: Sequence[float], far_range: tuple[float, float], grid: int = 100
) -> MeasuredPairs:
    """Measure with one threshold search and one exact count; pairs at the first rejected distance are excluded."""
    total = pairs.total_negative_pairs
    refused = [largest_count_within(far, total) + 1 for far in fars]
    if not pairs.total_positive_pairs or min(refused) < 2 or max(refused) > total:
        raise ValueError(
            f"TAR at FAR {min(fars):g} needs genuine pairs and at least {math.ceil(1 / min(fars))} impostor pairs; got "
            f"{pairs.total_positive_pairs} and {total}"
        )
    kept = find_measurable(pairs)
    found = pairs.negative_distances_at([*ranks_of_rates(pairs, far_range, required=True), *refused])
    thresholds = torch.lerp(found[0], found[1], torch.linspace(0, 1, grid).to(found))
    below = torch.nextafter(found[2:], torch.zeros_like(found[2:]))
    merged, place = torch.unique(torch.cat([thresholds, below]), return_inverse=True)
    positives, negatives = (counts[:, place] for counts in pairs.accepted(merged))
    curves = curves_of_counts(pairs, kept, thresholds, positives[kept, :grid], negatives[kept, :grid], found[:2])
    return MeasuredPairs(curves, positives[:, grid:], negatives[:, grid:], pairs.total_positive_pairs)


def try_normalizations(
    cohort: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    *,
    rows: Tensor | None,
    ks: Sequence[int],
    strengths: Sequence[float],
    far: float,
    far_range: tuple[float, float],
) -> NormalizationTrials:
    """Measure OPIS and TAR at one FAR for cosines and for every k and strength; k above the cohort size is skipped."""
    check_fraction(far, "far")
    check_not_collapsed(embeddings)
    check_far_range_and_grid(far_range, 100)
    most = len(cohort) - (rows is not None)
    fitting = sorted({k for k in ks if k <= most})
    if not fitting or not len(strengths):
        raise ValueError(f"ks must have a number up to the cohort size {most}, and strengths a number; got {ks}")

    def measure(k: int, strength: float, offsets: Tensor | None) -> NormalizationTrial:
        found = measure_pairs(PairDistances(embeddings, labels, offsets=offsets), (far,), far_range)
        return NormalizationTrial(k, float(strength), float(found.tar[0]), float(opis_of_curves(found.curves)))

    plain = measure(fitting[0], 0.0, None)
    means = offsets_for(embeddings, cohort, fitting, rows=rows)
    trials = []
    for k, mean in zip(fitting, means, strict=True):
        trials += [measure(k, strength, 0.5 * strength * mean) for strength in strengths]
    return NormalizationTrials(plain, tuple(trials), far, len(torch.unique(labels)), len(embeddings), len(cohort))
