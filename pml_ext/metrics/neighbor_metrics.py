"""The calculator's metrics of neighbours, PML's and ours, from the ranks of each query's matches."""

import torch
from torch import Tensor

from pml_ext import _pml
from pml_ext.functional.retrieval.ranking import Ranking
from pml_ext.metrics import keys
from pml_ext.metrics.evaluation_set import EvaluationSet

NEIGHBOR_METRICS = keys.names_over(keys.NEIGHBORS)
RANK_METRICS = keys.names_over(keys.RANKS)  # and CMC


class NeighborMetrics(_pml.AccuracyCalculator):
    """PML's neighbour metrics without its list of neighbours, and those of re-identification."""

    def requires_knn(self) -> list[str]:
        # PML 2.9 forgets it: asked for alone it would be called without neighbours.
        return [*super().requires_knn(), keys.MEAN_RECIPROCAL_RANK]

    def calculate_mean_inverse_negative_penalty(self, measured: EvaluationSet) -> float | list[float]:
        return self._mean_over_queries(measured.ranking.inverse_negative_penalty, measured)

    def calculate_reid_mean_average_precision(self, measured: EvaluationSet) -> float | list[float]:
        return self._mean_over_queries(measured.ranking.average_precision, measured)

    def _cmc_rank(self, measured: EvaluationSet, *, rank: int) -> float | list[float]:
        return self._mean_over_queries((measured.ranking.first_match_rank <= rank).double(), measured)

    def _is_ranked_here(self, name: str, measured: EvaluationSet) -> bool:
        """Whether a metric of PML's neighbours is its own, and so follows from the ranks of the matches."""
        methods = (f"calculate_{name}", "determine_k")
        return (
            (measured.compared is None or not measured.ref_includes_query or measured.compared.count_themselves)
            and self.knn_func is self._default_knn
            and all(getattr(type(self), method) is getattr(_pml.AccuracyCalculator, method) for method in methods)
        )

    def _of_neighbors(self, name: str, measured: EvaluationSet) -> float | list[float]:
        """PML's metric of this name from the ranks of the matches."""
        ranking: Ranking = measured.nearest
        first = ranking.first_match_rank
        found = first <= (measured.limit or len(measured.reference))
        per_query = {
            keys.PRECISION_AT_1: (first == 1).double(),
            keys.MEAN_AVERAGE_PRECISION: ranking.average_precision,
            keys.MEAN_AVERAGE_PRECISION_AT_R: ranking.average_precision_at_r,
            keys.R_PRECISION: ranking.r_precision,
            keys.MEAN_RECIPROCAL_RANK: torch.where(found, 1 / first, 0.0),
        }
        return self._mean_over_queries(per_query[name], measured)

    def _mean_over_queries(self, values: Tensor, measured: EvaluationSet) -> float | list[float]:
        """The mean over queries with a match, by class where asked for: as PML, classes in the order of their ids."""
        has_match = measured.matches > 0
        if not bool(has_match.any()):
            classes = len(torch.unique(measured.query_labels, dim=0))
            return [float("nan")] * classes if self.return_per_class else float("nan")
        values, labels = values[has_match], measured.query_labels[has_match]
        if not self.return_per_class and not self.avg_of_avgs:
            return float(values.mean())
        _, index, counts = torch.unique(labels, dim=0, return_inverse=True, return_counts=True)
        by_class = torch.zeros(len(counts), dtype=values.dtype, device=values.device).index_add_(0, index, values)
        by_class /= counts
        return by_class.tolist() if self.return_per_class else float(by_class.mean())
