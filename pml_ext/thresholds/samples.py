"""Samples of a threshold report: classes, cameras, pairs, and the cohort that normalises their scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import (
    check_directions,
    check_embeddings,
    check_finite,
    check_finite_embeddings,
    check_not_collapsed,
    warn_caller,
)
from pml_ext._shared.copies import describe_copies, find_copies, vector_keys
from pml_ext.functional.open_set.best_scores import BestScores, Template
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.functional.verification.intervals import class_rate_interval
from pml_ext.metrics.labels import Ids, number_classes
from pml_ext.metrics.normalization import CohortNormalization, check_normalize
from pml_ext.thresholds.fields import ErrorRate, NormalizationRecord, Sample

_KEYS, _DECIMALS = 1000, 4  # of a report's samples; of the coordinates that they are made of


@dataclass(frozen=True)
class Samples:
    """Embeddings of N samples, with the ids that define genuine pairs.

    embeddings: (N, D).
    ids: (N,) class ids 0, 1, …, on the CPU.
    cameras: (N,) ids; with them only genuine pairs across cameras count. None if unknown.
    offsets: (N,), subtracted from each cosine of the sample, see `CohortNormalization`. None for plain cosines.
    """

    embeddings: Tensor
    ids: Tensor
    cameras: Tensor | None = None
    offsets: Tensor | None = None

    def subset(self, mask: Tensor) -> "Samples":
        """Returns the samples selected by a (N,) mask on the CPU."""
        on_device = mask.to(self.embeddings.device)
        cameras = None if self.cameras is None else self.cameras[mask]
        offsets = None if self.offsets is None else self.offsets[on_device]
        return Samples(self.embeddings[on_device], self.ids[mask], cameras, offsets)

    def pairs(self) -> PairDistances:
        """Returns the pairs of a deployed matcher: all pairs, or with cameras, only genuine pairs across cameras."""
        return PairDistances(self.embeddings, self.ids, offsets=self.offsets, cameras=self.cameras)

    def best_scores(self, template: Template) -> BestScores:
        """Returns the scores of searches."""
        return BestScores(self.embeddings, self.ids, self.cameras, template, offsets=self.offsets)


@dataclass(frozen=True)
class SampleSource:
    """Where the samples of a `ThresholdReport` come from, for its page.

    Args:
        rows: N row numbers of the samples, such as rows in a file; None: 0, 1, …
        paths: N image files (None for a sample without one); the page shows those of the worst pairs.
        data: name of the data set or file.

    >>> SampleSource(rows=[7, 9], data="val.npz").row(1)
    9
    """

    rows: Sequence[int] | None = None
    paths: Sequence[str | Path | None] | None = None
    data: str | None = None

    def check(self, count: int) -> None:
        """Raise unless rows and paths have `count` entries."""
        for name, values in (("rows", self.rows), ("paths", self.paths)):
            if values is not None and len(values) != count:
                raise ValueError(f"{name} must have {count} entries, one per embedding; got {len(values)}")

    def row(self, place: int) -> int:
        """Returns the row number of a sample, by its index in the embeddings."""
        return place if self.rows is None else int(self.rows[place])

    def sample(self, place: int, label: int | str) -> Sample:
        """Returns the sample at an index in the embeddings."""
        path = None if self.paths is None else self.paths[place]
        return Sample(self.row(place), label, None if path is None else str(path))


Copies = list[tuple[int, int]]
"""Rows whose embedding equals that of an earlier row, and that row."""


def read_samples(
    embeddings: Tensor,
    labels: Ids,
    *,
    cameras: Ids | None,
    normalize: CohortNormalization | None,
    source: SampleSource,
) -> tuple[Samples, tuple[int | str, ...], Copies]:
    """Returns checked samples, the names of their classes, and copies, about which it warns."""
    check_finite_embeddings(embeddings)
    check_directions(embeddings, "embeddings")
    check_not_collapsed(embeddings)
    check_normalize(normalize)
    count = len(embeddings)
    source.check(count)
    ids, names = number_classes(labels, count)
    camera_ids = None if cameras is None else number_classes(cameras, count, "cameras")[0]
    copies = find_copies(vector_keys(embeddings.detach().double().cpu().numpy()))
    if copies:
        rows = [f"row {source.row(place)}" for place in range(count)]
        warn_caller(describe_copies(copies, "embeddings", "others", rows, rows))
    offsets = None
    if normalize is not None:
        offsets = normalize.corrections_of_judged(embeddings, labels, rows=source.rows)
    return Samples(embeddings.double(), ids, camera_ids, offsets), names, copies


def lowest_keys(embeddings: Tensor) -> tuple[str, ...]:
    """Returns the lowest `_KEYS` of the samples' keys: a random sample of them, whatever their order and length."""
    return tuple(sorted({*_sample_keys(embeddings)})[:_KEYS])


def count_own(report_keys: Sequence[str], embeddings: Tensor) -> int:
    """Returns approximately how many embeddings equal one of the report's, from its `lowest_keys`."""
    keys = _sample_keys(embeddings)
    if len(report_keys) == _KEYS:
        keys = [key for key in keys if key <= report_keys[-1]]
    own = {*report_keys}.intersection(keys)
    return round(len(embeddings) * sum(key in own for key in keys) / max(1, len(keys)))


def _sample_keys(embeddings: Tensor) -> list[str]:
    keys = vector_keys(unit_rows(embeddings.double()).round(decimals=_DECIMALS).cpu().numpy())
    return [key.hex() for key in keys]


def pooled_rate(errors: Tensor, pairs: Tensor, classes_per_pair: int) -> ErrorRate:
    """Returns the pooled rate of (T,) errors and pairs per class; classes_per_pair: see `rate_without_each`."""
    interval = class_rate_interval(errors, pairs, classes_per_pair)
    return ErrorRate(int(errors.sum()) // classes_per_pair, int(pairs.sum()) // classes_per_pair, *interval)


def as_tensor(rows: Any) -> Any:
    """Returns a NumPy array as a tensor that shares its memory; anything else unchanged."""
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(np.require(rows, requirements=["C", "W"]))
    return rows


def require_embeddings(rows: Tensor, name: str, dim: int) -> None:
    """Raise unless rows are finite, non-zero, and have `dim` columns."""
    check_embeddings(rows, name)
    if rows.shape[1] != dim:
        raise ValueError(
            f"{name} must have {dim} columns, as the embeddings that the threshold is from; got {rows.shape[1]}: is it "
            "another model's?"
        )
    check_finite(rows, name)
    check_directions(rows, name)


def describe_cohort(normalize: CohortNormalization) -> NormalizationRecord:
    """Returns the normalisation record of a report."""
    samples = len(normalize.cohort)
    return NormalizationRecord(normalize.k, normalize.strength, samples, normalize.identities, normalize.sha256)


def is_same_cohort(one: Any, other: Any) -> bool:
    """Returns whether two normalisations (cohorts or records) are equal; None stands for cosines."""
    if one is None or other is None:
        return one is other
    return bool((one.k, one.strength, one.sha256) == (other.k, other.strength, other.sha256))


def require_cohort(expected: NormalizationRecord | None, actual: CohortNormalization | None) -> None:
    """Raise unless the normalisation computes the scores of a report with `expected`."""
    if expected is None:
        if actual is not None:
            raise ValueError("the threshold is for cosines. Leave normalization out")
        return
    numbers = f"k = {expected.k} and strength = {expected.strength:g}"
    wanted = f"that of the report, with {numbers} and the cohort {expected.sha256[:12]}…"
    if actual is None:
        raise ValueError(f"the threshold is for normalised scores. Pass normalization, {wanted}")
    if not is_same_cohort(actual, expected):
        raise ValueError(
            f"normalization must be {wanted}; got k = {actual.k}, strength = {actual.strength:g} and the cohort "
            f"{actual.sha256[:12]}…"
        )


def pair_scores(a: Tensor, b: Tensor, normalization: CohortNormalization | None) -> Tensor:
    """Returns (P,) scores of row i with row i, for unit rows in float64."""
    cosines = (a * b).sum(dim=1)
    if normalization is None:
        return cosines
    return cosines - (normalization.corrections(a) + normalization.corrections(b)).to(torch.float64)
