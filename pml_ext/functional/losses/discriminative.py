"""The discriminative loss: a sample's distance to its class centroid minus its mean distance to the others."""

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
    """‖x_i − c_{y_i}‖ − 1/(3(C − 1)) Σ_{m≠y_i} ‖x_i − c_m‖ for each sample.

    Works in blocks of classes and computes the gradient together with the value, so that only second derivatives store
    all B·C distances. A sample on a centroid gets no gradient from that centroid.

    Args:
        embeddings: (B, D) unit vectors.
        labels: (B,) integer class ids in [0, C).
        centroids: (C, D) unit vectors; None for the C = D one-hot vectors, which need no matrix product.
        entries: distances per block; None: the device's block size.
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
                f"centroids must have {embeddings.shape[1]} columns of {embeddings.dtype} like the embeddings; got "
                f"{centroids.shape[1]} columns of {centroids.dtype}"
            )
    check_num_classes(embeddings.shape[1] if centroids is None else len(centroids))
    if centroids is not None and centroids.requires_grad:
        raise ValueError("centroids must be fixed; got a tensor that requires a gradient. Use centroids.detach()")
    labels = check_labels(labels, len(embeddings))
    check_labels_below(labels, embeddings.shape[1] if centroids is None else len(centroids))
    return centroid_values(embeddings, labels.long(), centroids, entries=entries)


def bracket(embeddings: Tensor, labels: Tensor, centroids: Tensor | None) -> Tensor:
    """`discriminative_loss` by ordinary operations on all (B, C) distances, for second derivatives."""
    own_class = labels.unsqueeze(1)
    if centroids is None:
        offset = embeddings.scatter_add(1, own_class, embeddings.new_full(own_class.shape, -1.0))
        squares = embeddings.square().sum(1, keepdim=True) + 1 - 2 * embeddings
    else:
        offset = embeddings - centroids[labels]
        squares = embeddings.square().sum(1, keepdim=True) + centroids.square().sum(1) - 2 * embeddings @ centroids.T
    own = torch.linalg.vector_norm(offset, dim=1)
    # Only for the other classes: near the own centroid the difference of squares loses all digits.
    others = squares.clamp(min=_rounding(embeddings)).sqrt().scatter(1, own_class, 0.0).sum(1)
    values: Tensor = own - others / (3 * (squares.shape[1] - 1))
    return values


def _value_and_gradient(
    x: Tensor, labels: Tensor, centroids: Tensor | None, *, needs_gradient: bool, entries: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """One pass over blocks of classes.

    The distance to the own class comes from differences: inner products lose all digits near the centroid. Distances
    to other classes are squared/sqrt(max(squared, rounding)), whose gradient vanishes on the centroid.
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
    """Zero entry (i, columns[i]) if the block has that column, without synchronising with the device."""
    inside = (columns >= 0) & (columns < inverse.shape[1])
    index = columns.clamp(0, inverse.shape[1] - 1)
    inverse.scatter_(1, index, inverse.gather(1, index).masked_fill_(inside, 0.0))


def _rounding(x: Tensor) -> float:
    """The rounding error of a squared distance between unit vectors."""
    return 16 * torch.finfo(x.dtype).eps


# The loss for input that is already checked.
centroid_values = ValueAndGradient(
    "discriminative", "(Tensor x, Tensor labels, Tensor? centroids)", _value_and_gradient, bracket, by_row=True
)
