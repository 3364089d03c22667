"""The data of one calculator call, with cached intermediate results that several metrics share."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.numerics import unit_rows
from pml_ext._pml import FaissKMeans
from pml_ext._shared.checks import check_finite, check_labels, check_tensor, tensor_of
from pml_ext._shared.identities import JUNK
from pml_ext.functional.clustering_metrics import adjusted_mutual_information, clustering_f1
from pml_ext.functional.opis.utility import (
    TooFewClassesError,
    UtilityCurves,
    epsilon_opis_of_curves,
    opis_of_curves,
    utility_curves,
)
from pml_ext.functional.retrieval.cohort import sides_of_distance
from pml_ext.functional.retrieval.feature_distances import have_unit_rows
from pml_ext.functional.retrieval.ranking import Ranking, rank_matches
from pml_ext.functional.spectrum import spectral_variance
from pml_ext.functional.verification.all_pairs import labelled_pairs_roc
from pml_ext.functional.verification.roc import ROC, equal_error_rate, operating_point, roc_auc
from pml_ext.metrics import keys
from pml_ext.metrics.normalization import CSLS, CohortNormalization
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.undefined import lacking_pairs


@dataclass
class EvaluationSet:
    """Queries and references without junk, with classes numbered 0, 1, … in the order of their ids."""

    query: Tensor
    query_labels: Tensor
    reference: Tensor
    reference_labels: Tensor
    ref_includes_query: bool
    query_cameras: Tensor | None
    reference_cameras: Tensor | None
    k: int | str | None
    opis_settings: OPISSettings
    kmeans_func: Callable[[Tensor, int], Any] | None = None
    normalize: CohortNormalization | CSLS | None = None
    group: dist.ProcessGroup | None = None

    @cached_property
    def _reference_corrections(self) -> Tensor:
        """(R,) numbers to subtract from the cosines with each reference."""
        assert self.normalize is not None
        return self.normalize.corrections(self.reference, group=self.group)

    def _ranked(self, within: int | None, metric: str) -> Ranking:
        query, reference = self.query, self.reference
        if self.normalize is not None:
            query, reference = sides_of_distance(unit_rows(query), unit_rows(reference), self._reference_corrections)
            metric = "euclidean"
        return rank_matches(
            query,
            self.query_labels,
            reference,
            self.reference_labels,
            query_cameras=self.query_cameras,
            gallery_cameras=self.reference_cameras,
            gallery_includes_query=self.ref_includes_query,
            within=within,
            metric=metric,
            group=self.group,
        )

    @cached_property
    def ranking(self) -> Ranking:
        """The ranking of all references, by cosine."""
        return self._ranked(None, "cosine")

    @cached_property
    def nearest(self) -> Ranking:
        """The ranking within PML's k, by Euclidean distance like PML's neighbours.

        For unit rows the cosine ranks alike, so `ranking` is reused if k is None.
        """
        if self.of_unit_rows and self.limit is None:
            return self.ranking
        return self._ranked(self.limit, "cosine" if self.of_unit_rows else "euclidean")

    @cached_property
    def of_unit_rows(self) -> bool:
        """Whether the cosine and the L2 distance rank alike; normalised scores replace both."""
        return self.normalize is not None or (have_unit_rows(self.query) and have_unit_rows(self.reference))

    @cached_property
    def matches(self) -> Tensor:
        """(Q,) number of matches of each query among the references."""
        if self.query_cameras is not None:
            return self.ranking.matches
        classes = 1 + int(max(self.query_labels.max(), self.reference_labels.max()))
        counts = torch.bincount(self.reference_labels, minlength=classes)[self.query_labels]
        return counts - int(self.ref_includes_query)

    @cached_property
    def limit(self) -> int | None:
        """PML's k as a rank: "max_bin_count" is the largest number of matches of a query."""
        return max(1, int(self.matches.max())) if isinstance(self.k, str) else self.k

    @cached_property
    def _with_query(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Embeddings, labels and offsets of samples whose class has a query; distractors are left out."""
        offsets = None
        if self.ref_includes_query:
            embeddings, labels = self.reference, self.reference_labels
        else:
            embeddings = torch.cat([self.query, self.reference])
            labels = torch.cat([self.query_labels, self.reference_labels])
        if isinstance(self.normalize, CohortNormalization):
            offsets = self._reference_corrections
            if not self.ref_includes_query:
                offsets = torch.cat([self.normalize.corrections(self.query, group=self.group), offsets])
        wanted = torch.isin(labels, self.query_labels)
        return embeddings[wanted], labels[wanted], None if offsets is None else offsets[wanted]

    @property
    def reciprocal_rank(self) -> Tensor:
        """(Q,) reciprocal rank of the first match; 0 if it is not among the k nearest references."""
        first = self.nearest.first_match_rank
        return torch.where(first <= (self.limit or len(self.reference)), 1 / first, 0.0)

    @cached_property
    def roc(self) -> ROC:
        """The ROC of the cosines of the same pairs; exact at the equal error rate and at `keys.FARS`."""
        embeddings, labels, offsets = self._with_query
        return labelled_pairs_roc(embeddings, labels, fars=keys.FARS, offsets=offsets, group=self.group)

    @property
    def lacking_pairs(self) -> str:
        return lacking_pairs(self.roc)

    @property
    def auc(self) -> Tensor:
        return roc_auc(self.roc)

    @property
    def equal_error_rate(self) -> Tensor:
        return equal_error_rate(self.roc).far

    def tar_at_far(self, far: float) -> Tensor:
        return operating_point(self.roc, far).tar

    @cached_property
    def curves(self) -> UtilityCurves | TooFewClassesError:
        """Utility curves of OPIS, or the error if the set has too few classes, or too few pairs for far_range."""
        embeddings, labels, offsets = self._with_query
        settings = self.opis_settings
        try:
            return utility_curves(
                embeddings,
                labels,
                far_range=settings.far_range,
                grid=settings.grid,
                group=self.group,
                offsets=offsets,
            )
        except TooFewClassesError as error:
            return error

    def _of_curves(self, measure: Callable[[UtilityCurves], Tensor | float]) -> float:
        """Returns a measure of the curves; nan without curves."""
        return math.nan if isinstance(self.curves, TooFewClassesError) else float(measure(self.curves))

    @property
    def opis(self) -> float:
        return self._of_curves(opis_of_curves)

    @property
    def epsilon_opis(self) -> float:
        return self._of_curves(lambda curves: epsilon_opis_of_curves(curves, self.opis_settings.epsilon))

    @cached_property
    def clusters(self) -> Any:
        """(Q,) cluster ids by kmeans_func, as many clusters as classes; a tensor, or an array from scikit-learn."""
        # faiss warns from C++ about fewer than 39 samples per class.
        cluster = self.kmeans_func or FaissKMeans(min_points_per_centroid=1)
        return cluster(self.query, len(torch.unique(self.query_labels)))

    @property
    def clusters_and_classes(self) -> tuple[Tensor, Tensor]:
        return torch.as_tensor(self.clusters, device=self.query_labels.device).long(), self.query_labels.long()

    @property
    def nmi(self) -> float:
        from sklearn.metrics import normalized_mutual_info_score

        clusters, classes = self.clusters_and_classes
        return float(normalized_mutual_info_score(classes.cpu().numpy(), clusters.cpu().numpy()))

    @property
    def ami(self) -> float | Tensor:
        return adjusted_mutual_information(*self.clusters_and_classes)

    @property
    def f1(self) -> float | Tensor:
        return clustering_f1(*self.clusters_and_classes)

    @property
    def spectral_variance(self) -> Tensor:
        return spectral_variance(self.query)


def make_evaluation_set(
    query: tuple[Any, Any, Any],
    reference: tuple[Any, Any, Any] | None,
    ref_includes_query: bool,
    *,
    device: torch.device,
    is_id: bool,
    normalize: CohortNormalization | CSLS | None,
    **settings: Any,
) -> EvaluationSet:
    """Check and align embeddings, labels and cameras (or None) of the queries and of the references.

    The settings are fields of the set. Label ids are renumbered, because PML compares labels as float32, in which ids
    above 2^24 collide.
    """
    reference = query if reference is None else reference
    ref_includes_query = ref_includes_query or reference is query
    if (query[2] is None) != (reference[2] is None):
        raise ValueError("query_cameras and reference_cameras must be given together; got only one of them")
    first = _tensors("query", query, device, is_id=is_id)
    second = first if reference is query else _tensors("reference", reference, device, is_id=is_id)
    (x, labels, cameras), (ref_x, ref_labels, ref_cameras) = first, second
    if x.shape[1] != ref_x.shape[1]:
        raise ValueError(f"reference must have the query's {x.shape[1]} columns; got {ref_x.shape[1]}")
    dtype = torch.promote_types(x.dtype, ref_x.dtype)
    x, ref_x = x.to(dtype), ref_x.to(dtype)
    if ref_includes_query:
        _check_start(x, ref_x, "reference")
        _check_start(labels, ref_labels, "reference_labels")
        if cameras is not None and ref_cameras is not None:
            _check_start(cameras, ref_cameras, "reference_cameras")
    ids, ref_ids = labels, ref_labels
    if isinstance(normalize, CohortNormalization):
        judged = [(ref_x, ref_labels)] if ref_includes_query else [(x, labels), (ref_x, ref_labels)]
        for embeddings, names in judged:
            normalize.corrections_of_judged(embeddings, names)
    if is_id:
        numbered = torch.unique(torch.cat([labels, ref_labels]), return_inverse=True)[1]
        ids, ref_ids = numbered[: len(labels)], numbered[len(labels) :]
    if cameras is not None and ref_cameras is not None:
        known, ref_known = labels != JUNK, ref_labels != JUNK
        x, ids, cameras = x[known], ids[known], cameras[known]
        ref_x, ref_ids, ref_cameras = ref_x[ref_known], ref_ids[ref_known], ref_cameras[ref_known]
    if not len(x) or not len(ref_x):
        raise ValueError(f"query and reference must not be empty; got {len(x)} and {len(ref_x)} samples")
    parts = x, ids, ref_x, ref_ids, ref_includes_query, cameras, ref_cameras
    return EvaluationSet(*parts, normalize=normalize, **settings)


def _tensors(
    name: str, data: tuple[Any, Any, Any], device: torch.device, *, is_id: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns tensors on the device; labels are class ids or the values that a label_comparison_fn compares."""
    embeddings, labels, cameras = data
    x = _tensor(embeddings, device, name).detach()
    if x.is_complex() or x.dtype == torch.bool or (x.is_floating_point() and x.dtype.itemsize < 2):
        raise ValueError(f"{name} must be real numbers, floats of 16 bits or more; got {x.dtype}")
    x = (x if x.dtype in (torch.float32, torch.float64) else x.float()).contiguous()  # faiss accepts no other type
    if x.ndim != 2 or not x.shape[1]:
        raise ValueError(f"{name} must have shape (N, D), one row per sample; got {tuple(x.shape)}")
    check_finite(x, name)
    y = _tensor(labels, device, f"{name}_labels")
    if is_id:
        y = check_labels(y, len(x), f"{name}_labels")
    elif y.shape[:1] != (len(x),):
        raise ValueError(f"{name}_labels must have {len(x)} entries, one label per embedding; got {tuple(y.shape)}")
    if cameras is None:
        return x, y, None
    return x, y, check_labels(_tensor(cameras, device, f"{name}_cameras"), len(x), f"{name}_cameras")


def _tensor(values: Any, device: torch.device, name: str) -> Tensor:
    """Returns a tensor that shares the values' memory if possible, so that a memory-mapped array stays on disk."""
    if isinstance(values, Tensor):
        check_tensor(values, name, "(N, …)")
    with warnings.catch_warnings():
        # torch's warning about a read-only array; nothing is written here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        try:
            return tensor_of(values, device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be a tensor or an array of numbers; got {type(values).__name__}") from error


def _check_start(query: Tensor, reference: Tensor, name: str) -> None:
    start = reference[: len(query)]
    equal = torch.isclose if query.is_floating_point() else torch.eq
    if start.shape != query.shape or not bool(equal(start, query).all()):
        raise ValueError(f"{name} must start with the query's entries if ref_includes_query is True; it does not")
