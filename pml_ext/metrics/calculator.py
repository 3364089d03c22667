"""PML's AccuracyCalculator with this package's metrics and camera support."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._shared.checks import check_items, check_switch, check_whole
from pml_ext._shared.names import hint
from pml_ext._shared.settings import CheckedSettings
from pml_ext.functional.opis.utility import UtilityCurves
from pml_ext.functional.retrieval.ranking import check_ranks
from pml_ext.metrics import keys
from pml_ext.metrics.evaluation_set import EvaluationSet, make_evaluation_set
from pml_ext.metrics.normalization import CSLS, CohortNormalization, check_normalize
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.undefined import warn_meaningless_opis, warn_undefined

log = logging.getLogger("pml_ext")


_OWN = "calculate_"
"""Prefix of a metric's method in a user's subclass."""


class AccuracyCalculator(CheckedSettings):
    """Computes retrieval, ReID, verification and clustering metrics, with the interface of PML's AccuracyCalculator.

    In addition to PML's metrics: `cmc_rank_<r>`, `reid_mean_average_precision`, `mean_inverse_negative_penalty`,
    `tar_at_far_1e-2`, `1e-3` and `1e-4`, `verification_auc`, `equal_error_rate`, `opis`, `epsilon_opis`, `f1` (of the
    clustering) and `spectral_variance`. All values are fractions. They cover:

    - ranks (PML's, cmc, inverse negative penalty, reid mAP): queries against references (`functional.rank_matches`);
      queries without a match are not counted.
    - opis, epsilon_opis, tar_at_far, verification_auc (see `functional.labelled_pairs_roc`), equal_error_rate: all
      pairs of the union of queries and references, of the classes that have a query. Verification ignores cameras:
      pairs of one camera count.
    - f1, NMI, AMI, spectral_variance: the queries.

    With cameras, references of the query's identity and camera are removed in every ranking metric. Identity −1 is then
    junk and removed, too.

    PML's metrics equal those of PML's calculator on the same embeddings: they are by the L2 distance of the rows as
    they are. They are computed from the ranks of the matches, in blocks, without a list of neighbours. PML orders tied
    distances arbitrarily; here a non-match ranks before a match. If all distances tie, as after a collapse,
    precision_at_1 is 0, while PML returns the probability of a random match. This package's metrics normalise the
    embeddings; the log says once if the rows are not of length 1.

    A class of one sample has no match: ranks skip its query, and OPIS skips the class. Its pairs with other classes
    count as impostor pairs in every metric. A metric without any pair is nan, with a warning.

    PML's hooks keep the epoch with the highest value. `include` therefore also accepts negative_opis,
    negative_epsilon_opis, negative_equal_error_rate and negative_spectral_variance, which increase as the embeddings
    improve, and tar_at_far_1em2/3/4, names that need no quotes in SQL.

    With knn_func or label_comparison_fn, PML computes its neighbour metrics itself, from k neighbours of every query.
    As with PML's calculator, a subclass may define `calculate_<name>(**kwargs)` and add the name to the return value of
    requires_knn() or requires_clustering().

    Unless `include` names them, this package's metrics are skipped in calls that do not support them: all of them with
    a label_comparison_fn, and f1 if neither NMI nor AMI clusters the queries.

    Args:
        include, exclude, avg_of_avgs, return_per_class, k, label_comparison_fn, device, knn_func, kmeans_func:
            see PML; k-means of faiss without its warnings. Only ranking metrics have per-class values and averages.
        far_range, grid, epsilon: settings of OPIS, see `functional.epsilon_opis`.
        ranks: CMC ranks; cmc_rank_5 is the share of queries with a match among the first 5.
        normalize: use normalised scores instead of distances, with a `CohortNormalization` of other identities, or rank
            by `CSLS`, which has ranking metrics only. Clusterings and spectral_variance use the embeddings in any case.
            None: no normalisation.

    >>> query, gallery = torch.tensor([[1, 0.0], [0, 1]]), torch.tensor([[1, 0.0], [0.9, 0.4], [0.8, 0.6], [0.1, 1]])
    >>> labels, gallery_labels = torch.tensor([0, 1]), torch.tensor([0, 1, 0, 1])
    >>> cameras, gallery_cameras = torch.tensor([1, 2]), torch.tensor([1, 1, 2, 1])
    >>> calculator = AccuracyCalculator(include=("cmc_rank_1", "reid_mean_average_precision"))
    >>> values = calculator.get_accuracy(
    ...     query, labels, gallery, gallery_labels, query_cameras=cameras, reference_cameras=gallery_cameras
    ... )
    >>> {name: round(value, 3) for name, value in values.items()}
    {'cmc_rank_1': 0.5, 'reid_mean_average_precision': 0.667}
    """

    fixed = ("include", "exclude", "ranks")

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
        ranks: Sequence[int] = (1, 5, 10),
        normalize: CohortNormalization | CSLS | None = None,
    ) -> None:
        OPISSettings(far_range, grid, epsilon)  # checks them
        self.far_range, self.grid, self.epsilon = far_range, grid, epsilon
        check_ranks(ranks)
        if not isinstance(normalize, CSLS):
            check_normalize(normalize)
        check_switch(avg_of_avgs, "avg_of_avgs")
        check_switch(return_per_class, "return_per_class")
        if avg_of_avgs and return_per_class:
            raise ValueError("avg_of_avgs and return_per_class exclude each other; got True for both")
        if k is not None and k != "max_bin_count":
            check_whole(k, 'k, unless it is None or "max_bin_count",', 1)
        self.avg_of_avgs, self.return_per_class = avg_of_avgs, return_per_class
        self.k, self.normalize = k, normalize
        self._has_logged_distances = False
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.knn_func, self.kmeans_func = knn_func, kmeans_func
        self.label_comparison_fn = label_comparison_fn or torch.eq
        if normalize is not None and self._compares_labels:
            raise NotImplementedError("normalize cannot be combined with label_comparison_fn")

        by_default = {*keys.CALCULATED, *map(keys.cmc_rank, ranks), *self._added}
        self._known = {*by_default, *keys.OTHER_SPELLINGS}
        self._check_names(self._known, include, exclude)
        if isinstance(normalize, CSLS):
            by_default = {name for name in by_default if name not in self._added and keys.is_ranking(name)}
            if others := [name for name in include if name not in by_default]:
                raise ValueError(
                    f"CSLS has ranking metrics only; got {', '.join(others)}. For metrics of pairs and thresholds pass "
                    "normalize a CohortNormalization of other identities"
                )
        if self._compares_labels:
            by_default &= {*keys.names_of(keys.NeighborMetric), keys.NMI, keys.AMI, *self._added}
        self.include, self.exclude, self.ranks = tuple(include), tuple(exclude), tuple(ranks)
        self._names = [name for name in sorted({*(include or by_default)}) if name not in exclude]
        self._refuse_equal_only(self._names)

    @property
    def opis_settings(self) -> OPISSettings:
        """Returns far_range, grid and epsilon."""
        return OPISSettings(self.far_range, self.grid, self.epsilon)

    @property
    def _added(self) -> list[str]:
        """Returns the metrics that a subclass computes in calculate_<name>(**kwargs), as with PML's calculator."""
        return added_metrics(type(self))

    @property
    def _compares_labels(self) -> bool:
        return self.label_comparison_fn is not torch.eq

    def requires_knn(self) -> list[str]:
        """Returns the names of metrics that need neighbours; a subclass adds more."""
        return keys.names_of(keys.NeighborMetric)

    def requires_clustering(self) -> list[str]:
        """Returns the names of metrics that need clusters; a subclass adds more."""
        return keys.names_of(keys.ClusterMetric)

    def get_curr_metrics(self) -> list[str]:
        """Returns the names of the metrics of `get_accuracy`; PML's hooks look up their primary_metric here."""
        return self._chosen()

    def description(self) -> str:
        """Returns the description that PML's testers put into record names."""
        return "avg_of_avgs" if self.avg_of_avgs else ""

    def _check_names(self, known: Collection[str], include: Sequence[str], exclude: Sequence[str]) -> None:
        for argument, names in (("include", include), ("exclude", exclude)):
            check_items(names, argument, "metric names")
            for name in names:
                rank = str(name).removeprefix("cmc_rank_")
                if name not in known and rank.isdecimal():
                    raise ValueError(f"{argument}: {name!r} needs ranks=({rank},) in the constructor")
                if name not in known:
                    raise ValueError(f"{argument}: unknown metric {name!r}{hint(name, sorted(known))}")

    def _refuse_equal_only(self, names: Sequence[str]) -> None:
        """Raise for metrics that would ignore label_comparison_fn."""
        honours = {*keys.names_of(keys.NeighborMetric), *self._added}
        equal_only = [name for name in names if name in self._known and name not in honours]
        if self._compares_labels and equal_only:
            raise NotImplementedError(
                f"{', '.join(equal_only)} compare labels for equality, not by label_comparison_fn. Exclude them"
            )

    def _chosen(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
        """Returns the metrics of a call, with f1 if it is named or if NMI or AMI cluster the queries anyway."""
        chosen = [name for name in self._names if name in (include or self._names) and name not in exclude]
        clustered = {keys.NMI, keys.AMI, *include, *self.include} & {*chosen}
        return [name for name in chosen if name != keys.F1 or clustered & {*keys.names_of(keys.ClusterMetric)}]

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
        """Computes the metrics.

        Args:
            query, reference: (Q, D) and (R, D) embeddings, tensors or numpy arrays, finite. reference None: search
                within the queries, excluding self-matches.
            query_labels, reference_labels: (Q,) and (R,) class ids of any size.
            ref_includes_query: whether reference starts with the queries.
            include, exclude: names to select from those of the constructor.
            query_cameras, reference_cameras: (Q,) and (R,) integers, both; without reference, query_cameras alone.
            group: process group that shares the work; its ranks pass the same arguments and exchange tensors on
                `device`, and all get the result of one process. Match ranks, OPIS and verification are sharded;
                clusterings, spectral_variance, and neighbours by knn_func or label_comparison_fn are computed by every
                rank. None: this process alone.
        Returns:
            Dict of name to fraction (never × 100); with return_per_class, to a list ordered by class id.
        Raises:
            ValueError: unknown names; different lengths; values that are not finite; a metric without per-class
                values with return_per_class or avg_of_avgs; with cameras, a metric that does not support them.
            NotImplementedError: one of our metrics, or cameras, with a custom label_comparison_fn.
        """
        if reference is None and (reference_labels is not None or reference_cameras is not None):
            raise ValueError("reference_labels and reference_cameras need reference; got reference=None")
        check_switch(ref_includes_query, "ref_includes_query")
        self._refuse_equal_only(include)
        self._check_names(self._names, include, exclude)
        names = self._chosen(include, exclude)
        by_camera = query_cameras is not None or reference_cameras is not None
        self._check_selection(names, by_camera, named=include or self.include)
        queries = (query, query_labels, query_cameras)
        references = None if reference is None else (reference, reference_labels, reference_cameras)
        measured = make_evaluation_set(
            queries,
            references,
            ref_includes_query,
            device=self.device,
            is_id=not self._compares_labels,
            kmeans_func=self.kmeans_func,
            k=self.k,
            opis_settings=self.opis_settings,
            normalize=self.normalize,
            group=group,
        )
        by_pml = [name for name in names if self._is_by_pml(name)]
        results = self._compute_by_pml(by_pml, measured) if by_pml else {}
        metrics = {name: keys.metric_of(name) for name in names if name not in self._added}
        ours = {name: metric for name, metric in metrics.items() if name not in by_pml}
        self._warn_of_small_k(ours, measured)
        self._log_distances(ours, measured)
        for name, metric in ours.items():
            value = metric.compute(measured)
            is_ranking = isinstance(metric, keys.RankMetric)
            results[name] = self._mean_over_queries(value, measured) if is_ranking else float(value)
        undefined = [name for name in metrics if np.isnan(results[name]).all()]
        reasons = [(name, metrics[name].why_undefined(measured)) for name in undefined]
        warn_undefined((name, reason) for name, reason in reasons if reason)
        of_opis = [name for name, metric in metrics.items() if isinstance(metric, keys.ClassMetric)]
        if of_opis and isinstance(measured.curves, UtilityCurves):
            warn_meaningless_opis([name.removeprefix("negative_") for name in of_opis], measured.curves)
        return {name: results[name] for name in names}

    def _mean_over_queries(self, values: Tensor, measured: EvaluationSet) -> float | list[float]:
        """Returns the mean over queries with a match, or the means by class, ordered by class id as in PML."""
        has_match = measured.matches > 0
        if not bool(has_match.any()):
            classes = len(torch.unique(measured.query_labels, dim=0))
            return [float("nan")] * classes if self.return_per_class else float("nan")
        values, labels = values[has_match].double(), measured.query_labels[has_match]
        if not self.return_per_class and not self.avg_of_avgs:
            return float(values.mean())
        _, index, counts = torch.unique(labels, dim=0, return_inverse=True, return_counts=True)
        by_class = torch.zeros(len(counts), dtype=values.dtype, device=values.device).index_add_(0, index, values)
        by_class /= counts
        return by_class.tolist() if self.return_per_class else float(by_class.mean())

    def _is_by_pml(self, name: str) -> bool:
        """Returns whether PML's calculator computes a metric: with the user's functions, or in a subclass."""
        has_functions = self.knn_func is not None or self._compares_labels
        return name in self._added or (has_functions and name in keys.names_of(keys.NeighborMetric))

    def _compute_by_pml(self, names: list[str], measured: EvaluationSet) -> dict[str, Any]:
        from pml_ext._pml import AccuracyCalculator as PMLCalculator

        compare = self.label_comparison_fn if self._compares_labels else None
        theirs = PMLCalculator(
            exclude=(keys.NMI, keys.AMI),
            avg_of_avgs=self.avg_of_avgs,
            return_per_class=self.return_per_class,
            k=self.k,
            label_comparison_fn=compare,
            device=self.device,
            knn_func=self.knn_func,
            kmeans_func=lambda *_: measured.clusters,
        )
        theirs.original_function_dict |= {name: getattr(self, _OWN + name) for name in self._added}
        theirs.requires_knn, theirs.requires_clustering = self.requires_knn, self.requires_clustering
        queries, references = (measured.query, measured.query_labels), (measured.reference, measured.reference_labels)
        accuracies: dict[str, Any] = theirs.get_accuracy(
            *queries, *references, measured.ref_includes_query, include=names
        )
        return accuracies

    def _warn_of_small_k(self, names: Collection[str], measured: EvaluationSet) -> None:
        at_r = {keys.R_PRECISION, keys.MEAN_AVERAGE_PRECISION_AT_R} & {*names}
        if at_r and isinstance(self.k, int) and self.k < (most := int(measured.matches.max())):
            log.warning("%s: k=%d is less than the %d matches of a query. Pass k='max_bin_count'", at_r, self.k, most)

    def _log_distances(self, metrics: Mapping[str, keys.CalculatorMetric], measured: EvaluationSet) -> None:
        """Log once which metrics are by L2 and which by cosine, if they differ."""
        by_l2 = [name for name, metric in metrics.items() if isinstance(metric, keys.NeighborMetric)]
        is_mixed = any(name not in by_l2 and keys.follows_scores(name) for name in metrics)
        if self._has_logged_distances or not (by_l2 and is_mixed) or measured.of_unit_rows:
            return
        self._has_logged_distances = True
        names = ", ".join(by_l2)
        log.warning("the rows are not of length 1: %s by L2 distance, as in PML, the others by cosine", names)

    def _check_selection(self, names: list[str], by_camera: bool, named: Sequence[str]) -> None:
        """Raise for options that the chosen metrics do not support."""
        if by_camera and self._compares_labels:
            raise NotImplementedError("cameras cannot be combined with label_comparison_fn")
        if self.return_per_class or self.avg_of_avgs:
            option = "return_per_class" if self.return_per_class else "avg_of_avgs"
            # NMI and AMI return one value, as in PML; so do metrics that `include` does not name.
            asked = [name for name in names if name in named and name not in (keys.NMI, keys.AMI, *self._added)]
            if single := [name for name in asked if not keys.is_ranking(name)]:
                raise ValueError(
                    f"{option} needs metrics with a value per class, such as precision_at_1; got {', '.join(single)}. "
                    "Exclude them"
                )
        if by_camera or self.normalize is not None:
            what = "cameras" if by_camera else "normalised scores"
            if blind := [name for name in names if self._is_by_pml(name)]:
                raise ValueError(
                    f"{', '.join(blind)} cannot take {what} into account by knn_func or in a subclass. Exclude them"
                )


def added_metrics(calculator: type) -> list[str]:
    """Returns the metrics that a subclass of a calculator computes, one for each method calculate_<name>."""
    return [name.removeprefix(_OWN) for name in dir(calculator) if name.startswith(_OWN)]
