"""Class means, with and without the sample that is compared with them."""

import torch
from torch import Tensor


def class_means(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(C, D) mean embedding of each class; classes: (N,) in [0, C), each at least once."""
    return _sums(embeddings, classes, num_classes) / class_counts(classes, num_classes)[:, None]


def means_of_others(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(N, D) leave-one-out class means, (sum − own)/(n − 1); the row of a sample alone in its class is meaningless."""
    others = (class_counts(classes, num_classes) - 1)[classes]
    return (_sums(embeddings, classes, num_classes)[classes] - embeddings) / others.clamp(min=1)[:, None]


def class_counts(classes: Tensor, num_classes: int) -> Tensor:
    """(C,) number of samples of each class. Unlike bincount it does not synchronise with the GPU."""
    return classes.new_zeros(num_classes).index_add_(0, classes, torch.ones_like(classes))


def _sums(embeddings: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    return embeddings.new_zeros(num_classes, embeddings.shape[1]).index_add(0, classes, embeddings)
