"""Compares models on the same samples, each at a separate threshold for one target."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_embeddings
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import half_widths
from pml_ext.functional.verification.threshold import thresholds_at_far
from pml_ext.metrics.labels import Labels, number_classes
from pml_ext.metrics.threshold.fields import ClassErrors
from pml_ext.metrics.threshold.measure import error_rates
from pml_ext.metrics.threshold.report import ThresholdReport
from pml_ext.metrics.threshold.samples import Samples, SampleSource

_AROUND = 1.5  # the slope of the miss rate is measured between target / factor and target × factor
_LISTED = 10


@dataclass(frozen=True)
class ModelDifference:
    """Miss rate of a model minus that of the first, at the same FAR, with a paired 95 % interval.

    lost: classes with the largest increase, each under the first model and under this one.
    """

    model: str
    first: str
    value: float
    low: float
    high: float
    lost: tuple[tuple[ClassErrors, ClassErrors], ...]

    @property
    def verdict(self) -> str:
        """In words."""
        if self.low <= 0 <= self.high:
            return f"no significant difference between {self.model} and {self.first}"
        return f"{self.model} misses {'more' if self.value > 0 else 'less'} than {self.first}"

    def summary(self) -> str:
        """One line."""
        return f"{self.verdict}: FRR {self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


@dataclass(frozen=True)
class ModelComparison:
    """Threshold reports by model, and differences to the first model."""

    reports: Mapping[str, ThresholdReport]
    differences: tuple[ModelDifference, ...]

    def summary(self) -> str:
        """Returns one line per model and one per difference."""
        width = max(map(len, self.reports))
        lines = []
        for name, report in self.reports.items():
            rates = f"FAR {report.far.rate:.3g}, FRR {report.frr.rate:.4g}"
            lines.append(f"{name.ljust(width)}  cosine >= {report.cosine:.4f}, {rates}")
        lines += [difference.summary() for difference in self.differences]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Misses:
    """FRR of a model, and (T,) values with each class left out and the threshold readjusted to the target."""

    rate: float
    without: np.ndarray


def compare_models(
    models: Mapping[str, Tensor], labels: Labels, *, far: float, cameras: Labels | None = None
) -> ModelComparison:
    """Compares models at the same FAR.

    Intervals are for identities like the set's, by a jackknife: each identity is left out of both models, and each
    model's threshold is readjusted to the target, to first order.

    Args:
        models: at least two names, each with the (N, D) embeddings of the same N samples; D may differ.
        labels, far, cameras: see `ThresholdReport.from_embeddings`.
    Raises:
        ValueError: fewer than two models; different numbers of samples.
    """
    if len(models) < 2:
        raise ValueError(f"models must contain two or more; got {len(models)}")
    count = len(next(iter(models.values())))
    for name, embeddings in models.items():
        check_embeddings(embeddings, name)
        if len(embeddings) != count:
            raise ValueError(f"{name} must have the {count} samples of the first model; got {len(embeddings)}")
    ids = number_classes(labels, count)[0]
    camera_ids = None if cameras is None else number_classes(cameras, count, "cameras")[0]
    reports, misses = dict[str, ThresholdReport](), dict[str, _Misses]()
    for name, embeddings in models.items():
        report = ThresholdReport.from_embeddings(
            embeddings, labels, far=far, cameras=cameras, source=SampleSource(data=name)
        )
        reports[name] = report
        misses[name] = _misses(report, Samples(embeddings.double(), ids, camera_ids).pairs(), far)
    first, *others = models
    differences = []
    for name in others:
        value = misses[name].rate - misses[first].rate
        without = torch.from_numpy(misses[name].without - misses[first].without)
        half = float(half_widths(without[without.isfinite()]))
        lost = _lost_classes(reports[first], reports[name])
        differences.append(
            ModelDifference(model=name, first=first, value=value, low=value - half, high=value + half, lost=lost)
        )
    return ModelComparison(reports, tuple(differences))


def _lost_classes(first: ThresholdReport, second: ThresholdReport) -> tuple[tuple[ClassErrors, ClassErrors], ...]:
    """Returns the classes with increased FRR, largest increase first, under both models."""
    grown = []
    for before, after in zip(first.classes, second.classes, strict=True):
        growth = (after.frr or 0.0) - (before.frr or 0.0)
        if growth > 0:
            grown.append((growth, before, after))
    grown.sort(key=lambda entry: -entry[0])
    return tuple((before, after) for _, before, after in grown[:_LISTED])


def _misses(report: ThresholdReport, pairs: PairDistances, far: float) -> _Misses:
    low, high = thresholds_at_far(pairs, (far / _AROUND, min(far * _AROUND, 0.999)))
    slope = 0.0
    if low is not None and high is not None:
        labels = [c.label for c in report.classes]
        low_far, low_frr, _ = error_rates(pairs, labels, low)
        high_far, high_frr, _ = error_rates(pairs, labels, high)
        if high_far.rate > low_far.rate:
            slope = (high_frr.rate - low_frr.rate) / (high_far.rate - low_far.rate)
    rows = [[c.false_rejects, c.genuine_pairs, c.false_accepts, c.impostor_pairs] for c in report.classes]
    rejects, genuine, accepts, impostors = np.array(rows, dtype=float).T
    frr_without = (report.frr.errors - rejects) / (report.frr.pairs - genuine)
    far_without = (report.far.errors - accepts) / (report.far.pairs - impostors)
    return _Misses(report.frr.rate, frr_without + slope * (report.far.rate - far_without))
