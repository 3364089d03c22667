"""Fixed class centroids on the unit sphere, and the discriminative loss that pulls samples to them."""

import warnings
from typing import Any

import torch
from torch import Tensor

from pml_ext._ops.normalize import to_sphere

_POINTS_PER_CLASS = 100  # gives the paper's statistics of the pairwise distances; more points narrow them
_ITERATIONS = 25
_BLOCK_ELEMENTS = {"cpu": 2**18}  # one block of distances stays in the cache
_BLOCK_ELEMENTS_DEVICE = 2**22


def one_hot_centroids(num_classes: int) -> Tensor:
    """(C, C) unit vectors e_m; all pairwise distances are sqrt(2).

    Raises:
        ValueError: fewer than 2 classes.
    Source: Do et al., CVPR 2019.
    """
    _check_num_classes(num_classes)
    return torch.eye(num_classes)


def kmeans_centroids(num_classes: int, size: int, seed: int = 0) -> Tensor:
    """(C, D) unit vectors spread over the sphere: the normalised centres of k-means on uniform points.

    100 points a class and at most 25 iterations, by faiss where it is installed, else by scikit-learn (the two
    find different centroids). Takes 400·C·D bytes and 5000·C²·D operations: half a minute at C = 1000, D = 512, an hour
    at C = 10 000, where simplex or one-hot centroids cost nothing.

    Args:
        num_classes: C, 2 or more.
        size: D, 2 or more.
        seed: the same seed gives the same centroids.
    Returns:
        (C, D) float32 on the CPU.
    Raises:
        ValueError: fewer than 2 classes or dimensions.
        ImportError: neither faiss nor scikit-learn is installed.
    Source: Do et al., CVPR 2019. Paper: in R^C; here: in any dimension.
    """
    _check_num_classes(num_classes)
    if size < 2:
        raise ValueError(f"size must be at least 2, the dimension of the k-means centroids; got {size}")
    generator = torch.Generator().manual_seed(seed)
    points = to_sphere(torch.randn(num_classes * _POINTS_PER_CLASS, size, generator=generator))
    return to_sphere(torch.as_tensor(_kmeans_centres(points.numpy(), num_classes, seed), dtype=torch.float32))


def _kmeans_centres(points: Any, num_classes: int, seed: int) -> Any:
    """(C, D) array of cluster centres of (N, D) float32 points."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of faiss's SWIG bindings while loading
            from faiss import Kmeans
    except ModuleNotFoundError:
        try:
            from sklearn.cluster import KMeans
        except ModuleNotFoundError:
            raise ImportError(
                "k-means centroids need faiss or scikit-learn, and neither is installed: pip install faiss-cpu, "
                "or use simplex or one_hot centroids"
            ) from None
        return KMeans(num_classes, n_init=1, max_iter=_ITERATIONS, random_state=seed).fit(points).cluster_centers_
    kmeans = Kmeans(
        points.shape[1], num_classes, niter=_ITERATIONS, seed=seed, max_points_per_centroid=_POINTS_PER_CLASS
    )
    kmeans.train(points)
    return kmeans.centroids


def simplex_centroids(num_classes: int, size: int) -> Tensor:
    """(C, D) corners of the regular simplex: unit vectors with pairwise cosine −1/(C − 1).

    No C points on a sphere lie further apart: all distances are sqrt(2C/(C − 1)), more than one-hot's sqrt(2).

    Args:
        num_classes: C, 2 or more.
        size: D, C − 1 or more; dimensions beyond C − 1 are zero.
    Returns:
        (C, D) float32 on the CPU.
    Raises:
        ValueError: fewer than 2 classes, or too few dimensions for their simplex.
    Source: the optimum of Do et al., CVPR 2019, eq. 9. Paper: approximated by k-means; here: exact.
    """
    _check_num_classes(num_classes)
    if size < num_classes - 1:
        raise ValueError(
            f"size must be at least num_classes - 1 = {num_classes - 1}: a simplex of {num_classes} corners does not "
            f"fit into fewer dimensions; got {size}. Use kmeans centroids, or centroids of a larger size"
        )
    # Helmert's basis of the hyperplane Σ = 0: column k is (1, …, 1, −k, 0, …)/sqrt(k(k + 1)) with k ones.
    k = torch.arange(1, num_classes, dtype=torch.float64)
    corners = torch.zeros(num_classes, size, dtype=torch.float64)
    corners[:-1, : num_classes - 1] = torch.ones(num_classes - 1, num_classes - 1, dtype=torch.float64).triu_()
    corners[1:, : num_classes - 1].diagonal().copy_(-k)
    corners[:, : num_classes - 1] *= (num_classes / ((num_classes - 1) * k * (k + 1))).sqrt()
    return corners.float()


def discriminative_loss(embeddings: Tensor, labels: Tensor, centroids: Tensor | None) -> Tensor:
    """‖x_i − c_{y_i}‖ − 1/(3(C − 1)) Σ_{m≠y_i} ‖x_i − c_m‖ for every sample.

    The distances to the other classes run in blocks over C: memory does not grow with B·C (for one-hot centroids
    beyond the embeddings themselves). Their gradient is computed beside the value: no double backward.
    A sample on a centroid, its own or another's, gets no gradient from that centroid.

    Args:
        embeddings: (B, D) unit vectors.
        labels: (B,) integer class ids in [0, C).
        centroids: (C, D) unit vectors; None for the C = D one-hot vectors, which takes no matrix product.
    Returns:
        (B,), each in [−2/3, 2].
    Raises:
        ValueError: fewer than 2 centroids, or centroids that require a gradient (they are fixed by definition).
    Source: Do et al., CVPR 2019, the bracket of eq. 8.
    """
    _check_num_classes(embeddings.shape[1] if centroids is None else len(centroids))
    if centroids is not None and centroids.requires_grad:
        raise ValueError("centroids must be fixed; got a tensor that requires a gradient. Use centroids.detach()")
    # Inside of the Function grad mode is always off: say here whether a gradient can be asked for.
    x = embeddings if torch.is_grad_enabled() else embeddings.detach()
    values: Tensor = _Bracket.apply(x, labels.long()[:, None], centroids)
    return values


class _Bracket(torch.autograd.Function):
    """The values and their gradient in one pass over blocks of classes.

    The distance to the own class comes from differences: inner products lose its digits near the centroid. To the
    others it is squared/sqrt(max(squared, rounding)), whose gradient goes to 0 on the centroid.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, centroids: Tensor | None) -> Tensor:
        num_classes = x.shape[1] if centroids is None else len(centroids)
        share = 1 / (3 * (num_classes - 1))
        width = max(1, _BLOCK_ELEMENTS.get(x.device.type, _BLOCK_ELEMENTS_DEVICE) // len(x))
        rounding = 16 * torch.finfo(x.dtype).eps  # of a squared distance
        if centroids is None:
            offset = x.scatter_add(1, labels, x.new_full(labels.shape, -1.0))
        else:
            offset = x - centroids[labels[:, 0]]
        own = torch.linalg.vector_norm(offset, dim=1, keepdim=True)
        squares = torch.linalg.vector_norm(x, dim=1, keepdim=True).square()
        others = x.new_zeros(len(x))
        inverses = torch.zeros_like(own)
        gradient = offset.mul_((own > 0) / own.clamp(min=torch.finfo(x.dtype).tiny))
        with torch.autocast(x.device.type, enabled=False):
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
                if not ctx.needs_input_grad[0]:
                    continue
                inverses += inverse.sum(1, keepdim=True)
                if centroids is None:
                    gradient[:, start : start + width].add_(inverse, alpha=share)
                else:
                    gradient.addmm_(inverse, block, alpha=share)
        ctx.save_for_backward(gradient.addcmul_(x, inverses, value=-share))
        return own[:, 0] - share * others

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_values: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_values[:, None], None, None


def _zero_own_class(inverse: Tensor, columns: Tensor) -> None:
    """Zero entry (i, columns[i]) where that column is in the block, without waiting for the device."""
    inside = (columns >= 0) & (columns < inverse.shape[1])
    index = columns.clamp(0, inverse.shape[1] - 1)
    inverse.scatter_(1, index, inverse.gather(1, index).masked_fill_(inside, 0.0))


def _check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(
            f"num_classes must be at least 2: the loss compares a class with the others; got {num_classes}"
        )
