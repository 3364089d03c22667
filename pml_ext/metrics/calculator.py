"""PML's AccuracyCalculator with this package's metrics, aware of cameras."""

import copy
from collections.abc import Sequence
from functools import partial, partialmethod
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from pml_ext._checks import check_items, check_switch, check_whole
from pml_ext._names import hint
from pml_ext._pml import FaissKMeans
from pml_ext.functional.operating_points.utility import UtilityCurves, epsilon_opis_of_curves, opis_of_curves
from pml_ext.functional.retrieval.ranking import check_ranks
from pml_ext.functional.spectrum import spectral_variance
from pml_ext.functional.verification.roc import equal_error_rate, roc_auc
from pml_ext.functional.verification.tar_at_far_rule import operating_point
from pml_ext.metrics import keys
from pml_ext.metrics.clustering_metrics import CLUSTERING_METRICS, ClusteringMetrics
from pml_ext.metrics.evaluation_set import EvaluationSet, make_evaluation_set
from pml_ext.metrics.gallery_cohort import Normalization, check_normalize
from pml_ext.metrics.neighbor_metrics import NEIGHBOR_METRICS, RANK_METRICS, NeighborMetrics
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.undefined import NO_CLASSES, NO_MATCH, lacking_pairs, warn_meaningless_opis, warn_undefined

FARS = (1e-2, 1e-3, 1e-4)

_VERIFICATION = keys.names_over(keys.ALL_PAIRS)
_ONE_VALUE = keys.names_over(keys.WHOLE_SET)
_SINGLE_VALUED = (*_VERIFICATION, *_ONE_VALUE, keys.F1)


class AccuracyCalculator(NeighborMetrics, ClusteringMetrics):
    """Every metric of PML's calculator, and: opis, epsilon_opis, cmc_rank_<r>, mean_inverse_negative_penalty,
    reid_mean_average_precision, tar_at_far_1e-2/3/4, verification_auc, equal_error_rate, f1 (of the clustering),
    spectral_variance.

    Without cameras PML's own metrics are PML's, number for number, on the embeddings as handed in (PML's default
    neighbours are by L2 distance). They follow from the ranks of the matches, in blocks of memory, without a list of
    neighbours (with knn_func PML makes that list). Where distances tie PML's order is arbitrary;
    here a non-match comes first. Where all tie, as after a collapse, precision_at_1 is 0, and PML's is the chance of
    a match. Ours normalise the embeddings. What each is taken over:

    - cmc, inverse negative penalty, reid mAP: queries against references (`functional.rank_matches`); queries
      without a match are not counted.
    - opis, epsilon_opis, tar_at_far, verification_auc (see `functional.labelled_pairs_roc`), equal_error_rate: all
      pairs of queries and references together, of the classes that have a query. Verification knows no cameras:
      pairs of one camera count.
    - f1, NMI, AMI, spectral_variance: the queries.

    Where `include` does not name them, our metrics are left out of calls that they do not fit: all of them under a
    label_comparison_fn, which they cannot honour, and f1 where neither NMI nor AMI clusters the queries.

    With cameras, references of the query's identity and camera are removed and identity −1 is junk and left out; PML's
    neighbour metrics are then computed by this package's ranking (cosine) and none ignores the cameras.

    Args:
        include, exclude, avg_of_avgs, return_per_class, k, label_comparison_fn, device, knn_func, kmeans_func:
            as PML's; faiss's k-means without advice. Per-class values and their average exist for ranking metrics.
        far_range, grid, epsilon, negatives_per_positive, seed: of opis and epsilon_opis, see `functional.epsilon_opis`.
        ranks: of the CMC; cmc_rank_5 is the share of queries with a match among the first 5.
        normalize: rank and decide by normalised scores instead of distances, by a `CohortNormalization` or, with a
            `GalleryCohort`, by the references themselves. Clusterings and spectral_variance are about the embeddings
            and stay. None: no.
    Attributes:
        opis_settings: those five.

    >>> x, y = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.9, 0.4]]), torch.tensor([0, 0, 1, 1])
    >>> calculator = AccuracyCalculator(include=("precision_at_1", "reid_mean_average_precision"))
    >>> {name: round(value, 3) for name, value in sorted(calculator.get_accuracy(x, y).items())}
    {'precision_at_1': 0.0, 'reid_mean_average_precision': 0.458}
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        label_comparison_fn: Any = None,
        device: torch.device | None = None,
        knn_func: Any = None,
        kmeans_func: Any = None,
        *,
        far_range: tuple[float, float] = (1e-2, 1e-1),
        grid: int = 100,
        epsilon: float = 0.1,
        negatives_per_positive: int | None = None,
        seed: int = 0,
        ranks: Sequence[int] = (1, 5, 10),
        normalize: Normalization | None = None,
    ) -> None:
        self.opis_settings = OPISSettings(far_range, grid, epsilon, negatives_per_positive, seed)
        check_ranks(ranks)
        check_normalize(normalize)
        if normalize is not None and label_comparison_fn is not None and label_comparison_fn is not torch.eq:
            raise NotImplementedError("normalize cannot be combined with label_comparison_fn")
        self.normalize = normalize
        for rank in ranks:  # found by PML as every calculate_* method is
            setattr(self, f"calculate_{keys.cmc_rank(rank)}", partial(self._cmc_rank, rank=rank))
        self._per_query = (*map(keys.cmc_rank, ranks), *RANK_METRICS)
        # Measured by this package; f1 is not among them, since PML makes the clusters.
        self._ours = (*self._per_query, *_VERIFICATION, *_ONE_VALUE)
        check_switch(avg_of_avgs, "avg_of_avgs")
        check_switch(return_per_class, "return_per_class")
        if k is not None and k != "max_bin_count":
            check_whole(k, 'k, unless it is None or "max_bin_count",', 1)
        for name, metrics in (("include", include), ("exclude", exclude)):
            check_items(metrics, name, "metric names")
        functions = {"label_comparison_fn": label_comparison_fn, "knn_func": knn_func, "kmeans_func": kmeans_func}
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, or None for PML's; got {function!r}")
        self._named = tuple(include)
        if label_comparison_fn is not None and label_comparison_fn is not torch.eq:
            self._refuse_equal_only(include)
            exclude = (*exclude, *self._ours, keys.F1)
        super().__init__(
            include=include,
            exclude=exclude,
            avg_of_avgs=avg_of_avgs,
            return_per_class=return_per_class,
            k=k,
            label_comparison_fn=label_comparison_fn,
            device=None if device is None else torch.device(device),
            knn_func=knn_func,
            # From C++, faiss warns of fewer than 39 samples per class.
            kmeans_func=kmeans_func or FaissKMeans(min_points_per_centroid=1),
        )
        self._default_knn = None if knn_func else self.knn_func
        self.curr_function_dict = self._chosen()

    def check_primary_metrics(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        for name, metrics in (("include", include), ("exclude", exclude)):
            is_list = isinstance(metrics, Sequence) and not isinstance(metrics, str)
            if not is_list or not all(isinstance(metric, str) for metric in metrics):
                raise TypeError(f"{name} must be a tuple or list of metric names; got {metrics!r}")
            if getattr(self, "label_comparison_fn", torch.eq) is not torch.eq and name == "include":
                self._refuse_equal_only(metrics)
            for metric in metrics:
                if metric not in self.original_function_dict:
                    rank = metric.removeprefix("cmc_rank_")
                    more = f" Pass ranks=({rank},) to measure this rank." if rank.isdecimal() else ""
                    raise ValueError(
                        f"{name}: unknown metric {metric!r}{hint(metric, self.original_function_dict)}{more}"
                    )

    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        *,
        query_cameras: Any = None,
        reference_cameras: Any = None,
        group: dist.ProcessGroup | None = None,
    ) -> dict[str, Any]:
        """Measure.

        Args:
            query, reference: (Q, D) and (R, D) embeddings, tensors or numpy arrays, finite. reference None: the
                queries themselves, each without itself.
            query_labels, reference_labels: (Q,) and (R,) class ids of any size.
            ref_includes_query: reference starts with the queries.
            include, exclude: names to take or leave among those of the constructor.
            query_cameras, reference_cameras: (Q,) and (R,) integers, both or (without reference) the first alone.
            group: the ranks that share the work, each with the same arguments, exchanging tensors of `device`; all get
                the result, which is that of one process. They divide ranks of matches, OPIS and verification; each
                computes whole clusterings, spectral_variance, and neighbours by knn_func or label_comparison_fn. None:
                this process alone.
        Returns:
            name to fraction (never × 100), or to a list by class, ordered by class id, with return_per_class.
        Raises:
            ValueError: unknown names; lengths that differ; values that are not finite; a metric without per-class
                values under return_per_class or avg_of_avgs; with cameras, a metric that cannot respect them.
            NotImplementedError: one of our metrics, or cameras, with a custom label_comparison_fn.
        """
        if reference is None and (reference_labels is not None or reference_cameras is not None):
            raise ValueError("reference_labels and reference_cameras need reference; got reference=None")
        check_switch(ref_includes_query, "ref_includes_query")
        self.check_primary_metrics(include, exclude)
        names = list(self._chosen(include, exclude))
        by_camera = query_cameras is not None or reference_cameras is not None
        self._check_selection(names, by_camera, named=include or self._named)
        normalized = self.normalize is not None
        measured = make_evaluation_set(
            (query, query_labels, query_cameras),
            None if reference is None else (reference, reference_labels, reference_cameras),
            ref_includes_query,
            device=self.device,
            label_comparison=None if self.label_comparison_fn is torch.eq else self.label_comparison_fn,
            k=self.k,
            opis=self.opis_settings,
            fars=FARS,
            normalize=self.normalize,
            group=group,
        )
        ranked = [
            name
            for name in names
            if name in NEIGHBOR_METRICS and (by_camera or normalized or self._is_ranked_here(name, measured))
        ]
        measured.ranks_both_ways = bool(ranked) and any(name in self._per_query for name in names)
        mine = [name for name in names if name in (*self._ours, *ranked)]
        results = {}
        of_call = copy.copy(self)  # PML keeps the metrics of a call in an attribute, which other threads would change
        if pml := [name for name in names if name not in mine]:
            results = super(AccuracyCalculator, of_call).get_accuracy(
                measured.query,
                measured.query_labels,
                measured.reference,
                measured.reference_labels,
                measured.ref_includes_query,
                include=pml,
            )
        if ranked and not by_camera:
            # PML's own, for its warning where k is too small for a metric.
            of_call.curr_function_dict = dict.fromkeys(names)
            bins = measured.matches + int(measured.ref_includes_query)
            of_call.determine_k(bins, len(measured.reference), measured.ref_includes_query)
        for name in mine:
            of_set = partial(self._of_neighbors, name) if name in ranked else self.original_function_dict[name]
            results[name] = of_set(measured)
        ours = [name for name in names if name in (*keys.FACTS, *self._per_query)]  # not those of a subclass
        undefined = [name for name in ours if np.isnan(results[name]).all()]
        warn_undefined((name, reason) for name in undefined if (reason := self._lacking(name, measured)))
        of_opis = [name for name in (keys.OPIS, keys.EPSILON_OPIS) if name in names]
        if of_opis and isinstance(measured.curves, UtilityCurves):
            warn_meaningless_opis(of_opis, measured.curves)
        return {name: results[name] for name in names}

    def _lacking(self, name: str, measured: EvaluationSet) -> str:
        """What lacks for a metric that is nan; "" where nothing does."""
        if name in (keys.OPIS, keys.EPSILON_OPIS):
            return "" if isinstance(measured.curves, UtilityCurves) else str(measured.curves)
        if name in _VERIFICATION:
            return lacking_pairs(measured.roc)
        if name == keys.F1:
            return NO_CLASSES
        return NO_MATCH if name in (*self._per_query, *NEIGHBOR_METRICS) and not bool(measured.matches.any()) else ""

    def calculate_opis(self, measured: EvaluationSet) -> float:
        curves = measured.curves
        return float(opis_of_curves(curves)) if isinstance(curves, UtilityCurves) else float("nan")

    def calculate_epsilon_opis(self, measured: EvaluationSet) -> float:
        if not isinstance(curves := measured.curves, UtilityCurves):
            return float("nan")
        return float(epsilon_opis_of_curves(curves, self.opis_settings.epsilon))

    def calculate_verification_auc(self, measured: EvaluationSet) -> float:
        return float(roc_auc(measured.roc))

    def calculate_equal_error_rate(self, measured: EvaluationSet) -> float:
        return float(equal_error_rate(measured.roc).far)

    def calculate_spectral_variance(self, measured: EvaluationSet) -> float:
        return float(spectral_variance(measured.query))

    def _tar_at_far(self, measured: EvaluationSet, *, far: float) -> float:
        return float(operating_point(measured.roc, far).tar)

    def _check_selection(self, names: list[str], by_camera: bool, named: Sequence[str]) -> None:
        """Refuse what the chosen metrics cannot honour."""
        if by_camera and self.label_comparison_fn is not torch.eq:
            raise NotImplementedError("cameras cannot be combined with label_comparison_fn")
        if self.return_per_class or self.avg_of_avgs:
            option = "return_per_class" if self.return_per_class else "avg_of_avgs"
            # Those that nobody asked for by name give their one value, as PML's NMI does.
            if single := [name for name in names if name in _SINGLE_VALUED and name in named]:
                by_class = ", ".join((*self._per_query, *NEIGHBOR_METRICS))
                raise ValueError(
                    f"{option} needs metrics with a value per class: {by_class}; got {', '.join(single)}: exclude them"
                )
        if by_camera or self.normalize is not None:
            what = "cameras" if by_camera else "normalised scores"
            if blind := [name for name in names if name not in (*self._ours, *NEIGHBOR_METRICS, *CLUSTERING_METRICS)]:
                raise ValueError(
                    f"{', '.join(blind)} cannot take {what} into account: exclude them or leave "
                    f"{'cameras' if by_camera else 'normalize'} out"
                )
            if self.knn_func is not self._default_knn and (
                neighbours := [name for name in names if name in NEIGHBOR_METRICS]
            ):
                raise ValueError(
                    f"knn_func knows no {what}, and {', '.join(neighbours)} would not use it: leave out one of them"
                )

    def _refuse_equal_only(self, named: Sequence[str]) -> None:
        if equal_only := [name for name in named if name in (*self._ours, keys.F1)]:
            raise NotImplementedError(
                f"{', '.join(equal_only)} compare labels for equality, not by label_comparison_fn: leave them out"
            )


# A rate in the name, found by PML as every calculate_* method is.
for _far in FARS:
    _method = partialmethod(AccuracyCalculator._tar_at_far, far=_far)
    setattr(AccuracyCalculator, f"calculate_{keys.tar_at_far(_far)}", _method)
