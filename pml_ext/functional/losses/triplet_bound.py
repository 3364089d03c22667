"""The gap between the discriminative loss and the triplet sum that it bounds, on one batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_labels
from pml_ext.functional.losses.discriminative import discriminative_loss


class DiscriminativeTightness(NamedTuple):
    """Lemma 3.1 on a batch: 0 <= upper_bound − triplet_mean <= limit.

    Attributes:
        triplet_mean: L_t / H, the mean of ‖x_i − x_j‖ − ‖x_i − x_k‖ over all triplets (i, j, k), without a hinge.
        upper_bound: L_d / H, the discriminative loss of eq. 8 over the classes of the batch.
        epsilon: ε, twice the largest distance of a sample to its class centroid.
        kappa_min, kappa_max: smallest and largest distance between two centroids of the batch.
        triplets: H, the number of triplets.

    >>> round(DiscriminativeTightness(-1.2, -1.0, epsilon=0.1, kappa_min=1.4, kappa_max=1.5, triplets=24).limit, 3)
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
    """Both sides of Lemma 3.1 on a balanced batch, over the classes of the batch.

    Computed in float64 from the (N, N) distances and the (N, C) distances to the centroids; no triplet is formed.

    Args:
        embeddings: (N, D) unit vectors.
        labels: (N,) class ids, rows of `centroids`; all classes of the batch have the same size, 2 or more.
        centroids: (classes, D) unit vectors; None for the D one-hot vectors.
    Returns:
        a DiscriminativeTightness; both sides are divided by H, the number of triplets, to compare batches.
    Raises:
        ValueError: fewer than 2 classes, classes of 1 sample or of different sizes, class ids without a centroid.
    Source: Do et al., CVPR 2019, Lemma 3.1: H = (N/C − 1) N (N − N/C). Paper: a whole balanced training set; here: a
        batch.

    >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    >>> found = discriminative_tightness(x, torch.tensor([0, 0, 1, 1]))
    >>> round(found.triplet_mean, 3), round(found.upper_bound, 3), round(found.limit, 3)
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
    own = torch.eye(known, device=x.device, dtype=x.dtype) if centroids is None else centroids.to(x)
    own = own[present]
    size, each = len(x), int(counts[0])
    triplets = size * (each - 1) * (size - each)
    # A positive pair is in one triplet per negative of the anchor, a negative pair in one per positive.
    distances = _distances(x, x)
    same = classes[:, None] == classes
    triplet_sum = (size - each) * distances[same].sum() - (each - 1) * distances[~same].sum()
    # G = 3(C − 1)(N/C − 1)(N/C) is 3H/N.
    bound = discriminative_loss(x, classes, own).mean() * 3
    between = _distances(own, own)[torch.triu_indices(len(own), len(own), 1, device=x.device).unbind()]
    epsilon = 2 * torch.linalg.vector_norm(x - own[classes], dim=1).max()
    return DiscriminativeTightness(
        float(triplet_sum) / triplets,
        float(bound),
        float(epsilon),
        float(between.min()),
        float(between.max()),
        triplets,
    )


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """(N, M) distances from differences, so that equal points have distance 0."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
