"""Agreement of a clustering with the classes."""

import torch
from torch import Tensor

from pml_ext._checks import check_labels, check_tensor


def clustering_f1(cluster_labels: Tensor, labels: Tensor) -> Tensor:
    """Pairwise F1: precision and recall of "two samples of one cluster are of one class", over all pairs.

    Args:
        cluster_labels: (N,) integer cluster of each sample.
        labels: (N,) integer class of each sample.
    Returns:
        0-dim float64, a fraction; nan where neither clusters nor classes hold two samples.
    Raises:
        ValueError: shapes that differ, types that are not integer.
    Source: Manning et al., Introduction to Information Retrieval, section 16.3, with β = 1.

    >>> round(float(clustering_f1(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 5, 9]))), 3)
    0.4
    """
    check_tensor(labels, "labels", "(N,)")
    labels = check_labels(labels, labels.shape[0] if labels.ndim else 0)
    cluster_labels = check_labels(cluster_labels, len(labels), "cluster_labels")
    in_both = _pairs(torch.stack([cluster_labels.long(), labels.long()], dim=1))
    return 2 * in_both / (_pairs(cluster_labels) + _pairs(labels))


def _pairs(ids: Tensor) -> Tensor:
    counts = torch.unique(ids, dim=0, return_counts=True)[1].double()
    pairs: Tensor = (counts * (counts - 1) / 2).sum()
    return pairs
