"""The discriminative loss: a sample's distance to its class centroid minus a third of its mean distance to the others.

Fixed centroids on the unit sphere, the loss for any and for one-hot centroids, and its gap to the triplet sum.
"""

import math
import os
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import CustomGradient, to_sphere
from pml_ext._ops.numerics import row_blocks
from pml_ext._shared.checks import check_embeddings, check_floating, check_labels, check_labels_below, check_whole

_POINTS_PER_CLASS = 100  # reproduces the paper's pairwise distances; more points reduce their variance
_ITERATIONS = 25


def one_hot_centroids(num_classes: int) -> Tensor:
    """Returns (C, C) unit vectors e_m; all pairwise distances are sqrt(2).

    Raises:
        ValueError: fewer than 2 classes.
    Source: Do et al., CVPR 2019.

    >>> one_hot_centroids(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_num_classes(num_classes)
    check_memory(num_classes, num_classes)
    return torch.eye(num_classes, device="cpu")


def kmeans_centroids(num_classes: int, size: int, seed: int = 0) -> Tensor:
    """Returns (C, D) unit vectors spread over the sphere: the normalised centres of k-means on uniform points.

    Runs at most 25 iterations on 100 points per class. Uses faiss if it is installed, else scikit-learn; their
    centroids differ. Takes 400·C·D bytes and 5000·C²·D operations: half a minute at C = 1000, D = 512, an hour at
    C = 10 000. Simplex and one-hot centroids cost nothing.

    Args:
        num_classes: C, 2 or more.
        size: D, 2 or more.
        seed: seed of the points. The same seed gives the same centroids (up to rounding with scikit-learn).
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
    check_num_classes(num_classes)
    check_memory(num_classes, size * _POINTS_PER_CLASS)
    check_whole(seed, "seed", 0, 2**31 - 1)  # the range that both faiss and scikit-learn accept
    generator = torch.Generator().manual_seed(seed)
    points = to_sphere(torch.randn(num_classes * _POINTS_PER_CLASS, size, generator=generator, device="cpu"))
    return to_sphere(
        torch.as_tensor(_kmeans_centres(points.numpy(), num_classes, seed), dtype=torch.float32, device="cpu")
    )


def _kmeans_centres(points: Any, num_classes: int, seed: int) -> Any:
    """Returns the (C, D) array of cluster centres of (N, D) float32 points."""
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
    r"""Returns the (C, D) corners of the regular simplex: unit vectors with pairwise cosine −1/(C − 1).

    The corners are as far apart as C points on a sphere can be: all distances are $\sqrt{2 C / (C - 1)}$. One-hot
    vectors are $\sqrt{2}$ apart.

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
    check_num_classes(num_classes)
    check_memory(num_classes, size)
    if size < num_classes - 1:
        raise ValueError(
            f"size must be at least num_classes - 1 = {num_classes - 1}, the dimensions of a simplex with "
            f"{num_classes} corners; got {size}. Increase it, or use kmeans centroids"
        )
    # Helmert's basis of the hyperplane Σ = 0: column k is (1, …, 1, −k, 0, …)/sqrt(k(k + 1)) with k ones.
    k = torch.arange(1, num_classes, dtype=torch.float64, device="cpu")
    corners = torch.zeros(num_classes, size, dtype=torch.float64, device="cpu")
    corners[:-1, : num_classes - 1] = torch.ones(
        num_classes - 1, num_classes - 1, dtype=torch.float64, device="cpu"
    ).triu_()
    corners[1:, : num_classes - 1].diagonal().copy_(-k)
    corners[:, : num_classes - 1] *= (num_classes / ((num_classes - 1) * k * (k + 1))).sqrt()
    return corners.float()


def check_num_classes(num_classes: int) -> None:
    """Raise for fewer than 2 classes."""
    check_whole(num_classes, "num_classes")
    if num_classes < 2:
        raise ValueError(
            f"num_classes must be at least 2: the loss compares a class with the others; got {num_classes}"
        )


def check_memory(num_classes: int, size: int) -> None:
    """Raise unless num_classes × size float32 numbers fit in half the memory."""
    needed, there = 4 * num_classes * size, _memory() / 2
    if needed > there:
        raise ValueError(
            f"num_classes × columns must fit in half the memory, {there / 1e9:.0f} GB; got {num_classes} × {size}, "
            f"which take {needed / 1e9:.0f} GB. Use fewer classes or smaller centroids"
        )


def _memory() -> float:
    """Returns the machine's memory in bytes; inf if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # Windows; a system without these names
        return math.inf


def discriminative_loss(embeddings: Tensor, labels: Tensor, centroids: Tensor | None) -> Tensor:
    r"""Returns the distance of each sample to its class centroid, minus a third of its mean distance to the others.

    $$‖x_i - c_{y_i}‖ - \frac{1}{3 (C - 1)} \sum_{m ≠ y_i} ‖x_i - c_m‖$$

    A sample on a centroid gets no gradient from that centroid. Stores a few (B, C) tensors.

    Args:
        embeddings: (B, D) unit vectors.
        labels: (B,) integer class ids in [0, C).
        centroids: (C, D) unit vectors; None for the C = D one-hot vectors, which need no matrix product.
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
    return bracket(embeddings, labels, centroids)


def bracket(embeddings: Tensor, labels: Tensor, centroids: Tensor | None) -> Tensor:
    """Compute `discriminative_loss` of checked arguments."""
    target_class = labels.unsqueeze(1)
    if centroids is None:
        offset = embeddings.scatter_add(1, target_class, embeddings.new_full(target_class.shape, -1.0))
        squares = embeddings.square().sum(1, keepdim=True) + 1 - 2 * embeddings
    else:
        offset = embeddings - centroids[labels]
        squares = embeddings.square().sum(1, keepdim=True) + centroids.square().sum(1) - 2 * embeddings @ centroids.T
    target = torch.linalg.vector_norm(offset, dim=1)
    # For other classes only: near the target centroid the difference of squares loses all digits. On another centroid
    # the quotient is 0, without a gradient.
    rounding = 16 * torch.finfo(embeddings.dtype).eps  # of a squared distance between unit vectors
    distances = squares / squares.clamp(min=rounding).sqrt()
    others = distances.scatter(1, target_class, 0.0).sum(1)
    values: Tensor = target - others / (3 * (squares.shape[1] - 1))
    return values


_SHORTEST = 1e-12  # norm, as in torch.nn.functional.normalize


def one_hot_discriminative_loss(embeddings: Tensor, labels: Tensor) -> Tensor:
    r"""Compute `discriminative_loss(normalize(embeddings), labels, None)`, faster than a cross-entropy.

    $‖u - e_m‖ = \sqrt{2 - 2 u_m}$ for unit vectors u. The gradient, one (B, C) matrix, includes the normalisation. Only
    four numbers per sample are stored for it.

    Args:
        embeddings: (B, C), float32 or float64, 2 columns or more. A row of zeros stays zero and gives 2/3.
        labels: (B,) integer class ids in [0, C).
    Returns:
        (B,), each in [−2/3, 2].
    Source: Do et al., CVPR 2019, the bracket of eq. 8.

    >>> one_hot_discriminative_loss(torch.tensor([[3.0, 4.0], [0, 0]]), torch.tensor([0, 1]))
    tensor([0.6836, 0.6667])
    """
    check_floating(embeddings, "embeddings", "(B, C)")
    check_num_classes(embeddings.shape[1])
    labels = check_labels(labels, len(embeddings))
    check_labels_below(labels, embeddings.shape[1])
    return one_hot_values(embeddings, labels)


class OneHotSums:
    """The loss of samples from two sums over all other classes, of sqrt(n − x_m) and of its inverse.

    With n = ‖x‖ the distance is sqrt(2/n) sqrt(n − x_m): one factor per sample, no pass over x/n. Instead of clamping
    n − x_m, n is increased by a few roundings so that no x_m exceeds it: `longer`.
    target: x_y. rest: the length of the other entries; near the target centroid n − x_y loses all digits.
    """

    def __init__(self, target: Tensor, rest: Tensor, classes: Tensor | int) -> None:
        length = torch.hypot(rest, target)
        self.target, self.norm, self.share = target, length.clamp(min=_SHORTEST), 1 / (3 * (classes - 1))
        # (1 + ‖u‖²) n/2, which is n unless the sample is shorter than the shortest norm.
        self.longer = (self.norm + length.square() / self.norm) * (0.5 + 2 * torch.finfo(target.dtype).eps)
        self.distance = torch.hypot(rest, target - self.norm) / self.norm  # to the target centroid

    def losses(self, roots: Tensor) -> Tensor:
        return self.distance - self.share * (2 / self.norm).sqrt() * roots

    def factors(self, roots: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns factors of the gradient by x: by_others / sqrt(n − x_m), by_target for the target; minus along · x_m.

        They are 0 for a row of zeros, which has no direction.
        The gradient by u = x/n is share/‖u − e_m‖ and −1/‖u − e_y‖, plus a multiple of u that the projection removes.
        """
        has_direction = self.norm > _SHORTEST
        by_others = torch.where(has_direction, self.share / (2 * self.norm).sqrt(), 0)
        # A sample on a centroid gets no gradient from it.
        by_target = torch.where(has_direction & (self.distance > 0), -1 / (self.norm * self.distance), 0)
        # Σ x_m / sqrt(n − x_m) from the two sums, as x_m = n − (n − x_m).
        along = (by_others * (self.longer * inverses - roots) + by_target * self.target) / self.norm.square()
        return by_others, by_target, along


def _values_and_factors(x: Tensor, labels: Tensor, *, needs_gradient: bool) -> tuple[Tensor | None, ...]:
    """Returns the values, and four factors per sample that the gradient needs."""
    values, factors = x.new_empty(len(x)), x.new_empty(4, len(x), 1)
    for rows in row_blocks(len(x), x.shape[1], x.device):
        some, target_class = x[rows], labels[rows].unsqueeze(1)
        target, part = some.gather(1, target_class), some.scatter(1, target_class, 0)
        sums = OneHotSums(target, torch.linalg.vector_norm(part, dim=1, keepdim=True), x.shape[1])
        of_target = sums.longer.sqrt()  # the target class's share of the sums, for x_y = 0
        roots = torch.sub(sums.longer, part, out=part).sqrt_().sum(1, keepdim=True) - of_target
        values[rows] = sums.losses(roots)[:, 0]
        if needs_gradient:
            inverses = part.reciprocal_().sum(1, keepdim=True) - 1 / of_target
            torch.stack([sums.longer, *sums.factors(roots, inverses)], out=factors[:, rows])
    return values, factors


def _one_hot_gradient(by_value: Tensor, saved: tuple[Tensor, ...], x: Tensor, labels: Tensor) -> Tensor:
    (factors,) = saved
    gradient = torch.empty_like(x, memory_format=torch.contiguous_format)
    scaled = factors[1:] * by_value.unsqueeze(1)
    for rows in row_blocks(len(x), x.shape[1], x.device):
        some, (by_others, by_target, along) = x[rows], scaled[:, rows]
        part = torch.sub(factors[0, rows], some, out=gradient[rows]).rsqrt_().mul_(by_others)
        part.scatter_(1, labels[rows].unsqueeze(1), by_target).addcmul_(some, along, value=-1)
    return gradient


def _plain(x: Tensor, labels: Tensor) -> Tensor:
    return bracket(to_sphere(x), labels, None)


# Expects checked input.
one_hot_values = CustomGradient(_values_and_factors, _plain, _one_hot_gradient)


class DiscriminativeTightness(NamedTuple):
    """Lemma 3.1 on a batch: 0 <= upper_bound − triplet_mean <= limit.

    Attributes:
        triplet_mean: L_t / H, the mean of ‖x_i − x_j‖ − ‖x_i − x_k‖ over all triplets (i, j, k), without a hinge.
        upper_bound: L_d / H, the discriminative loss of eq. 8 over the classes of the batch.
        epsilon: ε, twice the largest distance of a sample to its class centroid.
        kappa_min, kappa_max: smallest and largest distance between two centroids of the batch.
        triplets: H, the number of triplets.

    >>> sides = DiscriminativeTightness(-1.2, -1, epsilon=0.1, kappa_min=1.4, kappa_max=1.5, triplets=24)
    >>> round(sides.limit, 3)
    0.4
    """

    triplet_mean: float
    upper_bound: float
    epsilon: float
    kappa_min: float
    kappa_max: float
    triplets: int

    @property
    def limit(self) -> float:
        """κ_max − κ_min + 3ε, the largest possible gap."""
        return self.kappa_max - self.kappa_min + 3 * self.epsilon


@torch.no_grad()
def discriminative_tightness(
    embeddings: Tensor, labels: Tensor, centroids: Tensor | None = None
) -> DiscriminativeTightness:
    """Compute both sides of Lemma 3.1 on a balanced batch, over the classes of the batch.

    Computed in float64 from the (N, N) distances and the (N, C) distances to the centroids; no triplet is formed.

    Args:
        embeddings: (N, D) unit vectors.
        labels: (N,) class ids, rows of `centroids`; all classes of the batch have the same size, 2 or more.
        centroids: (classes, D) unit vectors; None for the D one-hot vectors.
    Returns:
        DiscriminativeTightness; both sides are divided by H, the number of triplets, to compare batches.
    Raises:
        ValueError: fewer than 2 classes, classes of 1 sample or of different sizes, class ids without a centroid.
    Source: Do et al., CVPR 2019, Lemma 3.1: H = (N/C − 1) N (N − N/C). Paper: a complete balanced training set; here: a
        batch.

    >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    >>> tightness = discriminative_tightness(x, torch.tensor([0, 0, 1, 1]))
    >>> round(tightness.triplet_mean, 3), round(tightness.upper_bound, 3), round(tightness.limit, 3)
    (-0.239, -0.206, 3.795)
    """
    check_embeddings(embeddings)
    labels = check_labels(labels, len(embeddings)).to(embeddings.device)
    present, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    known = embeddings.shape[1] if centroids is None else len(centroids)
    if len(present) < 2 or counts.min() < 2 or (counts != counts[0]).any():
        raise ValueError(
            "Lemma 3.1 needs at least 2 classes, all with the same number of samples, at least 2; got classes of "
            f"{sorted(set(counts.tolist()))} samples"
        )
    if present[0] < 0 or present[-1] >= known:
        raise ValueError(f"labels must be in [0, {known}), the rows of the centroids; got up to {int(present[-1])}")
    x = embeddings.double()
    targets = torch.eye(known, device=x.device, dtype=x.dtype) if centroids is None else centroids.to(x)
    targets = targets[present]
    size, each = len(x), int(counts[0])
    triplets = size * (each - 1) * (size - each)
    # A positive pair is in one triplet per negative of the anchor, a negative pair in one per positive.
    distances = _distances(x, x)
    same = classes[:, None] == classes
    triplet_sum = (size - each) * distances[same].sum() - (each - 1) * distances[~same].sum()
    # G = 3(C − 1)(N/C − 1)(N/C) is 3H/N.
    bound = discriminative_loss(x, classes, targets).mean() * 3
    between = torch.pdist(targets)
    epsilon = 2 * torch.linalg.vector_norm(x - targets[classes], dim=1).max()
    return DiscriminativeTightness(
        float(triplet_sum) / triplets,
        float(bound),
        float(epsilon),
        float(between.min()),
        float(between.max()),
        triplets,
    )


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """Returns (N, M) distances, from differences so that equal points have distance 0."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
