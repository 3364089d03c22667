"""Fixed class centroids on the unit sphere, for the discriminative loss."""

import math
import os
import warnings
from typing import Any

import torch
from torch import Tensor

from pml_ext._checks import check_whole
from pml_ext._ops.normalize import to_sphere

_POINTS_PER_CLASS = 100  # reproduces the paper's pairwise distances; more points narrow their spread
_ITERATIONS = 25


def one_hot_centroids(num_classes: int) -> Tensor:
    """(C, C) unit vectors e_m; all pairwise distances are sqrt(2).

    Raises:
        ValueError: fewer than 2 classes.
    Source: Do et al., CVPR 2019.

    >>> one_hot_centroids(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_whole(num_classes, "num_classes")
    check_num_classes(num_classes, num_classes)
    return torch.eye(num_classes)


def kmeans_centroids(num_classes: int, size: int, seed: int = 0) -> Tensor:
    """(C, D) unit vectors spread over the sphere: the normalised centres of k-means on uniform points.

    Runs at most 25 iterations on 100 points per class, with faiss if it is installed, else with scikit-learn (their
    centroids differ). Takes 400·C·D bytes and 5000·C²·D operations: half a minute at C = 1000, D = 512, an hour at
    C = 10 000. Simplex and one-hot centroids cost nothing.

    Args:
        num_classes: C, 2 or more.
        size: D, 2 or more.
        seed: the same seed gives the same centroids; with scikit-learn up to rounding, as its threads add in any order.
    Returns:
        (C, D) float32 on the CPU.
    Raises:
        ValueError: fewer than 2 classes or dimensions.
        ImportError: neither faiss nor scikit-learn is installed.
    Source: Do et al., CVPR 2019. Paper: in R^C, number of points not stated; here: any dimension, 100 per class.

    >>> kmeans_centroids(num_classes=3, size=2).norm(dim=1)
    tensor([1., 1., 1.])
    """
    check_whole(size, "size", 2)
    check_num_classes(num_classes, size * _POINTS_PER_CLASS)
    check_whole(seed, "seed", 0, 2**31 - 1)  # the range that faiss and scikit-learn share
    generator = torch.Generator().manual_seed(seed)
    points = to_sphere(torch.randn(num_classes * _POINTS_PER_CLASS, size, generator=generator))
    return to_sphere(torch.as_tensor(_kmeans_centres(points.numpy(), num_classes, seed), dtype=torch.float32))


def _kmeans_centres(points: Any, num_classes: int, seed: int) -> Any:
    """(C, D) array of cluster centres of (N, D) float32 points."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # faiss's SWIG bindings raise one on import
            from faiss import Kmeans
    except ModuleNotFoundError:
        try:
            from sklearn.cluster import KMeans
        except ModuleNotFoundError:
            raise ImportError(
                "k-means centroids need faiss or scikit-learn; neither is installed. Run `pip install faiss-cpu`, or "
                "use simplex or one_hot centroids"
            ) from None
        return KMeans(num_classes, n_init=1, max_iter=_ITERATIONS, random_state=seed).fit(points).cluster_centers_
    kmeans = Kmeans(
        points.shape[1], num_classes, niter=_ITERATIONS, seed=seed, max_points_per_centroid=_POINTS_PER_CLASS
    )
    kmeans.train(points)
    return kmeans.centroids


def simplex_centroids(num_classes: int, size: int) -> Tensor:
    """(C, D) corners of the regular simplex: unit vectors with pairwise cosine −1/(C − 1).

    No C points on a sphere lie further apart: all distances are sqrt(2C/(C − 1)); one-hot's are sqrt(2).

    Args:
        num_classes: C, 2 or more.
        size: D, C − 1 or more; dimensions beyond C − 1 are zero.
    Returns:
        (C, D) float32 on the CPU.
    Raises:
        ValueError: fewer than 2 classes, or fewer than C − 1 dimensions.
    Source: the optimum of Do et al., CVPR 2019, eq. 9. Paper: approximated by k-means; here: exact.

    >>> corners = simplex_centroids(num_classes=3, size=2)
    >>> round((corners[0] @ corners[1]).item(), 3)
    -0.5
    """
    check_whole(size, "size", 1)
    check_num_classes(num_classes, size)
    if size < num_classes - 1:
        raise ValueError(
            f"size must be at least num_classes - 1 = {num_classes - 1}, the dimensions of a simplex with "
            f"{num_classes} corners; got {size}. Increase it, or use kmeans centroids"
        )
    # Helmert's basis of the hyperplane Σ = 0: column k is (1, …, 1, −k, 0, …)/sqrt(k(k + 1)) with k ones.
    k = torch.arange(1, num_classes, dtype=torch.float64)
    corners = torch.zeros(num_classes, size, dtype=torch.float64)
    corners[:-1, : num_classes - 1] = torch.ones(num_classes - 1, num_classes - 1, dtype=torch.float64).triu_()
    corners[1:, : num_classes - 1].diagonal().copy_(-k)
    corners[:, : num_classes - 1] *= (num_classes / ((num_classes - 1) * k * (k + 1))).sqrt()
    return corners.float()


def check_num_classes(num_classes: int, size: int = 1) -> None:
    """Raise unless there are at least 2 classes, and num_classes × size float32 numbers fit in half the memory."""
    check_whole(num_classes, "num_classes")
    needed, there = 4 * num_classes * size, _memory() / 2
    if needed > there:
        raise ValueError(
            f"num_classes × columns must fit in half the memory, {there / 1e9:.0f} GB; got {num_classes} × {size}, "
            f"which take {needed / 1e9:.0f} GB. Use fewer classes or smaller centroids"
        )
    if num_classes < 2:
        raise ValueError(
            f"num_classes must be at least 2: the loss compares a class with the others; got {num_classes}"
        )


def _memory() -> float:
    """The machine's bytes of memory; unlimited where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # Windows; a system without these names
        return math.inf
