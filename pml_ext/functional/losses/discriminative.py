"""The discriminative loss: a sample's distance to its own class's centroid against those to all others."""

import torch
from torch import Tensor

from pml_ext._checks import check_floating, check_labels, check_labels_below
from pml_ext._ops.blocks import rows_of_a_block
from pml_ext._ops.precision import no_autocast
from pml_ext._ops.value_and_gradient import ValueAndGradient
from pml_ext.functional.losses.centroids import check_num_classes


def discriminative_loss(
    embeddings: Tensor, labels: Tensor, centroids: Tensor | None, *, entries: int | None = None
) -> Tensor:
    """‖x_i − c_{y_i}‖ − 1/(3(C − 1)) Σ_{m≠y_i} ‖x_i − c_m‖ for every sample.

    The distances to the other classes run in blocks over C: memory does not grow with B·C (for one-hot centroids
    beyond the embeddings themselves). Their gradient is computed beside the value; only second derivatives take
    memory for all B·C distances.
    A sample on a centroid, its own or another's, gets no gradient from that centroid.

    Args:
        embeddings: (B, D) unit vectors.
        labels: (B,) integer class ids in [0, C).
        centroids: (C, D) unit vectors; None for the C = D one-hot vectors, which takes no matrix product.
        entries: distances of one block; None: the block size of the device.
    Returns:
        (B,), each in [−2/3, 2].
    Raises:
        ValueError: fewer than 2 centroids, or centroids that require a gradient (they are fixed by definition).
    Source: Do et al., CVPR 2019, the bracket of eq. 8.

    >>> discriminative_loss(torch.eye(2), torch.tensor([0, 0]), None)
    tensor([-0.4714,  1.4142])
    """
    check_floating(embeddings, "embeddings", "(B, D)")
    if centroids is not None:
        check_floating(centroids, "centroids", "(C, D)")
        if centroids.shape[1] != embeddings.shape[1] or centroids.dtype != embeddings.dtype:
            raise ValueError(
                f"centroids must have the {embeddings.shape[1]} columns and the type {embeddings.dtype} of embeddings; "
                f"got {centroids.shape[1]} columns of {centroids.dtype}"
            )
    check_num_classes(embeddings.shape[1] if centroids is None else len(centroids))
    if centroids is not None and centroids.requires_grad:
        raise ValueError("centroids must be fixed; got a tensor that requires a gradient. Use centroids.detach()")
    labels = check_labels(labels, len(embeddings))
    check_labels_below(labels, embeddings.shape[1] if centroids is None else len(centroids))
    return centroid_values(embeddings, labels.long(), centroids, entries=entries)


def bracket(embeddings: Tensor, labels: Tensor, centroids: Tensor | None) -> Tensor:
    """The same by ordinary operations on all (B, C) distances, for second derivatives."""
    own_class = labels.unsqueeze(1)
    if centroids is None:
        offset = embeddings.scatter_add(1, own_class, embeddings.new_full(own_class.shape, -1.0))
        squares = embeddings.square().sum(1, keepdim=True) + 1 - 2 * embeddings
    else:
        offset = embeddings - centroids[labels]
        squares = embeddings.square().sum(1, keepdim=True) + centroids.square().sum(1) - 2 * embeddings @ centroids.T
    own = torch.linalg.vector_norm(offset, dim=1)
    # Only the others: close to the own centroid the difference of squares has no digits left.
    others = squares.clamp(min=_rounding(embeddings)).sqrt().scatter(1, own_class, 0.0).sum(1)
    values: Tensor = own - others / (3 * (squares.shape[1] - 1))
    return values


def _value_and_gradient(
    x: Tensor, labels: Tensor, centroids: Tensor | None, *, needs_gradient: bool, entries: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """In one pass over blocks of classes.

    The distance to the own class comes from differences: inner products lose its digits near the centroid. To the
    others it is squared/sqrt(max(squared, rounding)), whose gradient goes to 0 on the centroid.
    """
    labels = labels.unsqueeze(1)
    num_classes = x.shape[1] if centroids is None else len(centroids)
    share = 1 / (3 * (num_classes - 1))
    width = rows_of_a_block(len(x), x.device, entries=entries)
    rounding = _rounding(x)
    if centroids is None:
        offset = x.scatter_add(1, labels, x.new_full(labels.shape, -1.0))
    else:
        offset = x - centroids[labels[:, 0]]
    own = torch.linalg.vector_norm(offset, dim=1, keepdim=True)
    squares = torch.linalg.vector_norm(x, dim=1, keepdim=True).square()
    others = x.new_zeros(len(x))
    inverses = torch.zeros_like(own)
    gradient = offset.mul_((own > 0) / own.clamp(min=torch.finfo(x.dtype).tiny))
    with no_autocast(x.device):
        for start in range(0, num_classes, width):
            if centroids is None:
                squared = torch.sub(squares + 1, x[:, start : start + width], alpha=2)
            else:
                block = centroids[start : start + width]
                squared = torch.addmm(torch.linalg.vector_norm(block, dim=1).square(), x, block.T, alpha=-2)
                squared.add_(squares)
            inverse = squared.clamp(min=rounding).sqrt_().reciprocal_()
            _zero_own_class(inverse, labels - start)
            others += squared.mul_(inverse).sum(1)
            if not needs_gradient:
                continue
            inverses += inverse.sum(1, keepdim=True)
            if centroids is None:
                gradient[:, start : start + width].add_(inverse, alpha=share)
            else:
                gradient.addmm_(inverse, block, alpha=share)
    value = own[:, 0] - share * others
    return value, gradient.addcmul_(x, inverses, value=-share) if needs_gradient else None


def _zero_own_class(inverse: Tensor, columns: Tensor) -> None:
    """Zero entry (i, columns[i]) where that column is in the block, without waiting for the device."""
    inside = (columns >= 0) & (columns < inverse.shape[1])
    index = columns.clamp(0, inverse.shape[1] - 1)
    inverse.scatter_(1, index, inverse.gather(1, index).masked_fill_(inside, 0.0))


def _rounding(x: Tensor) -> float:
    """Of a squared distance between unit vectors."""
    return 16 * torch.finfo(x.dtype).eps


# Of input that has been checked.
centroid_values = ValueAndGradient(
    "discriminative", "(Tensor x, Tensor labels, Tensor? centroids)", _value_and_gradient, bracket, by_row=True
)
