"""The calculator's metrics of a clustering of the queries: PML's, and F1."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pml_ext import _pml
from pml_ext.functional.clustering import adjusted_mutual_information, clustering_f1
from pml_ext.metrics import keys

CLUSTERING_METRICS = keys.names_over(keys.CLUSTERS)


class ClusteringMetrics(_pml.AccuracyCalculator):
    """NMI, AMI and F1 of one k-means; F1 where it was named, or where PML's metrics cluster anyway."""

    _named: tuple[str, ...]  # the metrics that the constructor was asked for

    def requires_clustering(self) -> list[str]:
        return [*super().requires_clustering(), keys.F1]

    def _chosen(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> dict[str, Any]:
        """The metrics of a call; f1 where it was named, or where PML's metrics cluster anyway."""
        chosen: dict[str, Any] = self.get_function_dict(include, exclude)
        if keys.F1 not in (*include, *self._named) and not chosen.keys() & {keys.NMI, keys.AMI}:
            chosen.pop(keys.F1, None)
        return chosen

    def calculate_f1(self, query_labels: Tensor, cluster_labels: Any, **kwargs: Any) -> float:
        return float(clustering_f1(_as_tensor(cluster_labels, query_labels), query_labels.long()))

    def calculate_AMI(self, query_labels: Tensor, cluster_labels: Any, **kwargs: Any) -> float:
        return adjusted_mutual_information(_as_tensor(cluster_labels, query_labels), query_labels.long())


def _as_tensor(cluster_labels: Any, query_labels: Tensor) -> Tensor:
    """A kmeans_func may return a tensor or, like scikit-learn, an array."""
    return torch.as_tensor(cluster_labels, device=query_labels.device).long()
