"""The mean embedding of each class, with and without the sample that is compared with it."""

import torch
from torch import Tensor


def class_means(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(C, D) means of the embeddings of each class.

    Args:
        embeddings: (N, D).
        classes: (N,) in [0, C), each class at least once.
        num_classes: C.
    """
    return _sums(embeddings, classes, num_classes) / class_counts(classes, num_classes)[:, None]


def means_of_others(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(N, D) means of the other embeddings of each sample's class, by (sum − own)/(n − 1).

    Args:
        embeddings, classes, num_classes: as in class_means.
    Returns:
        the leave-one-out means; a sample that is alone in its class has none, and its row means nothing.
    """
    others = (class_counts(classes, num_classes) - 1)[classes]
    return (_sums(embeddings, classes, num_classes)[classes] - embeddings) / others.clamp(min=1)[:, None]


def class_counts(classes: Tensor, num_classes: int) -> Tensor:
    """(C,) how many samples each class has. As bincount, which on a GPU is waited for."""
    return classes.new_zeros(num_classes).index_add_(0, classes, torch.ones_like(classes))


def _sums(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    return embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add(0, classes, embeddings)
