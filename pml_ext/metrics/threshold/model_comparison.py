"""Models on the same samples, each at its own threshold for one target: how their misses differ, and for whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_embeddings
from pml_ext.functional.open_set.best_scores import BestScores, scores_for_rate, threshold_for_rate
from pml_ext.functional.open_set.identification import rates_without_each
from pml_ext.functional.verification.intervals import half_width
from pml_ext.functional.verification.threshold import thresholds_at_far
from pml_ext.metrics.threshold.camera_pairs import pairs_across_cameras
from pml_ext.metrics.threshold.class_ids import Labels, number_classes
from pml_ext.metrics.threshold.fields import ClassErrors
from pml_ext.metrics.threshold.rates import pooled_rates
from pml_ext.metrics.threshold.report import ThresholdReport

_AROUND = 1.5  # times the target, and a part of it: where the slope of misses is taken
_LISTED = 10


@dataclass(frozen=True)
class ModelDifference:
    """Misses of a model less those of the first one, at the same rate of false accepts; a paired 95 % interval.

    misses: "FRR" at the same FAR, or "FNIR" at the same FPIR. lost: the classes whose FRR grew most, as they are under
    the first model and under this one.
    """

    model: str
    first: str
    misses: str
    value: float
    low: float
    high: float
    lost: tuple[tuple[ClassErrors, ClassErrors], ...]

    @property
    def verdict(self) -> str:
        """In words."""
        if self.low <= 0 <= self.high:
            return f"no difference between {self.model} and {self.first} can be told"
        return f"{self.model} misses {'more' if self.value > 0 else 'less'} than {self.first}"


@dataclass(frozen=True)
class ModelComparison:
    """A threshold report of each model, and the differences to the first."""

    reports: Mapping[str, ThresholdReport]
    differences: tuple[ModelDifference, ...]

    def summary(self) -> str:
        """A line for each model, and one for each difference."""
        width = max(map(len, self.reports))
        lines = []
        for name, report in self.reports.items():
            rates = f"FAR {report.far.rate:.3g}, FRR {report.frr.rate:.4g}"
            if report.searches and report.searches.planned.fnir:
                planned = report.searches.planned
                assert planned.fpir is not None and planned.fnir is not None
                rates += f", FPIR {planned.fpir.rate:.3g}, FNIR {planned.fnir.rate:.4g} among {planned.enrolled:,}"
            lines.append(f"{name.ljust(width)}  cosine >= {report.cosine:.4f}, {rates}")
        return "\n".join([*lines, *map(difference_in_words, self.differences)])


def difference_in_words(of: ModelDifference) -> str:
    """One line."""
    return f"{of.verdict}: {of.misses} {of.value:+.4f} [{of.low:+.4f}, {of.high:+.4f}]"


def compare_models(
    models: Mapping[str, Tensor],
    labels: Labels,
    *,
    far: float | None = None,
    fpir: float | None = None,
    gallery_size: int | None = None,
    cameras: Labels | None = None,
) -> ModelComparison:
    """Compares models at the same FAR, or at the same FPIR in galleries of a size.

    Intervals are for identities like the set's: each is left out of both models, and each model's threshold is then
    moved back to the target, to first order.

    Args:
        models: at least two names, each with the (N, D) embeddings of the same N samples; D may differ.
        labels, cameras, far, fpir, gallery_size: see `ThresholdReport.from_embeddings`.
    Raises:
        ValueError: fewer than two models; another number of samples; neither far nor fpir.
    """
    if len(models) < 2:
        raise ValueError(f"models must be two or more; got {len(models)}")
    if (far is None) == (fpir is None):
        raise ValueError(f"give one of far and fpir; got far={far!r}, fpir={fpir!r}")
    for name, embeddings in models.items():
        check_embeddings(embeddings, name)
    count = len(next(iter(models.values())))
    for name, embeddings in models.items():
        if len(embeddings) != count:
            raise ValueError(f"{name} must have the {count} samples of the first model; got {len(embeddings)}")
    ids = number_classes(labels, count)[0]
    camera_ids = None if cameras is None else number_classes(cameras, count, "cameras")[0]
    target: dict[str, Any] = {"far": far, "fpir": fpir, "gallery_size": gallery_size}
    reports, values = dict[str, ThresholdReport](), dict[str, tuple[float, np.ndarray]]()
    for name, embeddings in models.items():
        reports[name] = report = ThresholdReport.from_embeddings(
            embeddings, labels, cameras=cameras, splits=0, data=name, **target
        )
        if far is not None:
            values[name] = _frr_without_each(report, embeddings, ids, camera_ids, far)
        else:
            values[name] = _fnir_without_each(report, embeddings, ids, camera_ids)
    first, *others = models
    differences = []
    for name in others:
        value = values[name][0] - values[first][0]
        without = torch.from_numpy(values[name][1] - values[first][1])
        half = half_width(without[without.isfinite()])
        pairs = zip(reports[first].classes, reports[name].classes, strict=True)
        grown = [((after.frr or 0.0) - (before.frr or 0.0), before, after) for before, after in pairs]
        grown.sort(key=lambda entry: -entry[0])
        lost = tuple((before, after) for by, before, after in grown[:_LISTED] if by > 0)
        misses = "FRR" if far is not None else "FNIR"
        differences.append(ModelDifference(name, first, misses, value, value - half, value + half, lost))
    return ModelComparison(reports, tuple(differences))


def _frr_without_each(
    report: ThresholdReport, embeddings: Tensor, ids: Tensor, cameras: Tensor | None, far: float
) -> tuple[float, np.ndarray]:
    """FRR, and FRR without each class at a threshold that is moved back to the FAR."""
    pairs = pairs_across_cameras(embeddings.double(), ids, cameras)
    around = thresholds_at_far(pairs, (far / _AROUND, min(far * _AROUND, 0.999)))
    slope = 0.0
    if None not in around:
        (less_far, less), (more_far, more) = pooled_rates(pairs, torch.tensor(around, dtype=torch.float64))
        if more_far.rate > less_far.rate:
            slope = (more.rate - less.rate) / (more_far.rate - less_far.rate)
    counts = np.array(
        [[c.false_rejects, c.genuine_pairs, c.false_accepts, c.impostor_pairs] for c in report.classes], dtype=float
    )
    rejects, genuine, accepts, impostors = counts.T
    miss = (report.frr.errors - rejects) / (report.frr.pairs - genuine)
    hit = (report.far.errors - accepts) / (report.far.pairs - impostors)
    return report.frr.rate, miss + slope * (report.far.rate - hit)


def _fnir_without_each(
    report: ThresholdReport, embeddings: Tensor, ids: Tensor, cameras: Tensor | None
) -> tuple[float, np.ndarray]:
    """FNIR, and FNIR without each identity at a threshold that is moved back to the FPIR."""
    assert report.searches is not None and report.target.value is not None
    enrolled, fpir = report.searches.gallery_size, report.target.value
    scores = BestScores(embeddings.float(), ids, cameras, report.searches.template)
    high = scores_for_rate(scores, max(1, round(enrolled / _AROUND)), min(0.999, fpir * _AROUND))

    def at(threshold: float) -> tuple[tuple[float, np.ndarray], tuple[float, np.ndarray]]:
        return rates_without_each(high, threshold, enrolled, rank=report.searches.rank if report.searches else 1)

    ends = [threshold_for_rate(high, enrolled, rate) for rate in (fpir / _AROUND, min(0.999, fpir * _AROUND))]
    assert ends[0] is not None and ends[1] is not None
    (less_fpir, _), (less, _) = at(ends[0])
    (more_fpir, _), (more, _) = at(ends[1])
    slope = (more - less) / (more_fpir - less_fpir) if more_fpir > less_fpir else 0.0
    (rate, hit), (miss, missed) = at(report.cosine)
    return miss, missed + slope * (rate - hit)
