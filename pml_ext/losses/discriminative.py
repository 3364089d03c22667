"""The discriminative loss: classification by distances to fixed class centroids."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import Unpack

from pml_ext._ops.custom_gradient import no_autocast, to_sphere
from pml_ext._pml import LpDistance, reducers, term
from pml_ext._shared.checks import (
    check_choice,
    check_embeddings,
    check_labels_below,
    check_seed,
    check_switch,
    check_whole,
)
from pml_ext.functional.losses.discriminative import (
    DiscriminativeTightness,
    bracket,
    check_memory,
    discriminative_tightness,
    kmeans_centroids,
    one_hot_values,
    simplex_centroids,
)
from pml_ext.functional.tuples import Tuples, weights_of
from pml_ext.losses._base import EmbeddingLoss, Labels, PMLArguments, Reference, Terms, at_least_float32
from pml_ext.losses._facts import LossFacts
from pml_ext.losses.injected_distance import describe_distance, is_on_sphere

_NORM_TOLERANCE = 1e-3  # covers the rounding of a unit vector to 16 bits


def make_centroids(
    centroids: str | Tensor, num_classes: int, embedding_size: int, size: int | None, seed: int
) -> Tensor | None:
    """Returns the (C, size) centroids, or None for one-hot ones."""
    if isinstance(centroids, Tensor):
        shape = tuple(centroids.shape)
        if centroids.ndim != 2 or shape[0] != num_classes or size not in (None, shape[1]):
            expected = f"({num_classes}, {'centroid_size' if size is None else size})"
            raise ValueError(f"centroids must have shape {expected}, one row per class; got {shape}")
        if not centroids.is_floating_point():
            raise ValueError(f"centroids must be of floating type; got {centroids.dtype}")
        norms = torch.linalg.vector_norm(centroids.double(), dim=1)
        if not (norms - 1).abs().max() <= _NORM_TOLERANCE:
            raise ValueError(
                f"centroids must be finite unit vectors; got norms from {norms.min():.4g} to {norms.max():.4g}. "
                "Normalise with torch.nn.functional.normalize(centroids)"
            )
        return centroids.detach().clone()
    check_choice(centroids, ("one_hot", "kmeans", "simplex"), "centroids")
    if centroids == "kmeans":
        return kmeans_centroids(num_classes, size or num_classes, seed)
    if centroids == "simplex":
        return simplex_centroids(num_classes, size or max(embedding_size, num_classes - 1))
    if size not in (None, num_classes):
        raise ValueError(f"centroid_size of one_hot centroids is num_classes={num_classes}; got {size}")
    return None


class DiscriminativeLoss(EmbeddingLoss):
    r"""Discriminative loss: distances to fixed class centroids; an upper bound of the triplet loss in linear time.

    $$L = \frac{1}{B} \sum_i (‖x_i - c_{y_i}‖ - \frac{1}{3 (C - 1)} \sum_{m ≠ y_i} ‖x_i - c_m‖)$$

    x_i is a sample of the batch on the unit sphere, y_i its class, c_m the centroid of class m.

    This is a classification loss: labels are class ids, and it does not accept ref_emb. Its values are negative near
    the optimum.

    If embeddings and centroids differ in size, the loss has `projection`, a learnable linear map without bias, between
    them. Pass the loss's parameters to an optimizer, and use the embeddings before the projection at test time.

    An indices_tuple weights each sample by how often it occurs, as in PML's classification losses; an empty one gives
    equal weights.

    On several ranks, with embeddings from a differentiable all_gather and averaged gradients, the projection gets the
    gradient of a single process. PML's DistributedLossWrapper multiplies the loss by the world size, which corrects for
    its plain all_gather. The projection has seen the complete batch and needs no correction. Undo it before you wrap
    the loss in DistributedDataParallel:

        for p in loss.parameters():
            p.register_hook(lambda grad: grad / torch.distributed.get_world_size())

    For very many classes, `PartialFC(margin="discriminative")` shards the projection to one-hot centroids over ranks.
    Other centroids are stored completely on every rank, in 4·C·D bytes without gradient or optimizer state. k-means
    needs a hundred times as much memory to compute them. A simplex needs C − 1 dimensions or more and is then almost
    one-hot (cosines of −1/(C − 1) instead of 0).

    Args:
        num_classes: C, 2 or more; labels lie in [0, C).
        embedding_size: dimension of the embeddings, which need not be normalised.
        centroids: "one_hot"; "kmeans", spread over the sphere; "simplex", the regular simplex, which needs
            centroid_size ≥ C − 1; or a (C, centroid_size) tensor of unit vectors. They are never trained; state_dict
            contains them unless they are one-hot.
        centroid_size: dimension of the centroids. None: C for one_hot and kmeans, as in the paper; the larger of
            embedding_size and C − 1 for simplex; the tensor's size for a tensor. With fewer dimensions, k-means
            centroids are close to each other. With thousands of classes, k-means in C dimensions is slow: pass a
            size, or use one_hot.
        paper_scale: True computes eq. 8 literally, G Σ_i, and needs batches of more than C samples. False computes the
            batch mean.
        seed: seed of the k-means centroids.
        pml: reducer (default: MeanReducer, with paper_scale SumReducer; none that selects by value),
            embedding_regularizer, embedding_reg_weight, collect_stats; distance must be LpDistance(p=2), the default.
    Raises:
        TypeError: unknown arguments, or a distance that is not LpDistance(p=2) on normalised embeddings.
        ValueError: inconsistent sizes, or centroids that are not finite unit vectors. When called: a wrong embedding
            size, class ids outside [0, C), no labels, ref_emb, or a batch too small for paper_scale.
    Source: Do et al., CVPR 2019, eq. 8. Paper: scaled by G = 3(C − 1)(N/C − 1)(N/C), last layer normalised;
        here: G is dropped, and the last layer is the projection. We added "simplex", the optimum of eq. 9.
        Paper: two new layers, of sizes 256 and C, biases not stated; here: only the layer to C, without bias.

    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> loss = DiscriminativeLoss(num_classes=2, embedding_size=2)
    >>> round(loss(x, labels).item(), 3), loss.get_logits(x).argmax(dim=1).tolist()
    (-0.056, [0, 1, 1, 1])

    The same, step by step; the centroids are one-hot:

    >>> distances = torch.cdist(torch.nn.functional.normalize(x), torch.eye(2))
    >>> target, other = distances[torch.arange(4), labels], distances[torch.arange(4), 1 - labels]
    >>> round((target - other / 3).mean().item(), 3)
    -0.056
    """

    facts = LossFacts(compares="class vectors", reads_distance=False)
    fixed = ("num_classes", "embedding_size", "centroids", "centroid_size", "distance", "paper_scale", "seed")
    has_gradient_below_0 = True
    labels_because = "DiscriminativeLoss needs labels: it compares each sample with the centroid of its class"

    def __init__(
        self, num_classes: int, embedding_size: int, *, centroids: str | Tensor = "one_hot",
        centroid_size: int | None = None, paper_scale: bool = False, seed: int = 0, **pml: Unpack[PMLArguments],
    ) -> None:  # fmt: skip
        check_switch(paper_scale, "paper_scale")
        self.paper_scale = paper_scale  # first, as the default reducer depends on it
        super().__init__(**pml)
        if not is_on_sphere(self.distance, LpDistance):
            raise TypeError(
                "distance of DiscriminativeLoss must be LpDistance(p=2, power=1, normalize_embeddings=True), the "
                f"Euclidean distance on the sphere in eq. 8; got {describe_distance(self.distance)}. Omit it"
            )
        check_whole(embedding_size, "embedding_size", 1)
        if centroid_size is not None:
            check_whole(centroid_size, "centroid_size", 1)
        check_whole(num_classes, "num_classes", 2)
        check_memory(num_classes, max(embedding_size, centroid_size or 1))
        check_seed(seed)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.seed = seed
        self._record("num_classes", "embedding_size")

        self.centroids: Tensor | None
        self.register_buffer("centroids", make_centroids(centroids, num_classes, embedding_size, centroid_size, seed))
        self._kind = centroids if isinstance(centroids, str) else "given"
        size = num_classes if self.centroids is None else self.centroids.shape[1]
        self.centroid_size = size
        self.projection = nn.Linear(embedding_size, size, bias=False) if size != embedding_size else None

    def __setattr__(self, name: str, value: Any) -> None:
        present = self.__dict__.get("_buffers", {}).get(name)
        is_restored = isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and present is not None
        if is_restored and (present.shape, present.dtype) == (value.shape, value.dtype):
            nn.Module.__setattr__(self, name, value)  # as load_state_dict(assign=True) does
        else:
            super().__setattr__(name, value)

    def get_default_reducer(self) -> reducers.BaseReducer:
        """Returns the default reducer; the name is PML 2's."""
        return reducers.SumReducer() if self.paper_scale else reducers.MeanReducer()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, centroids={self._kind!r}"

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Tuples | None, ref_emb: Reference, ref_labels: Labels
    ) -> Terms:
        if ref_emb is not None:
            raise ValueError(
                "DiscriminativeLoss is a classification loss: it compares embeddings with centroids, and "
                "ref_emb must be None. Concatenate the two batches to train on both"
            )
        self._check_size(embeddings)
        check_labels_below(labels, self.num_classes)
        if self.paper_scale and len(labels) <= self.num_classes:
            raise ValueError(
                f"paper_scale=True needs more samples than classes (eq. 8: G > 0 only for N > C); got a batch of "
                f"{len(labels)} for {self.num_classes} classes. Use paper_scale=False for small batches"
            )
        fixed = self.centroids if self.projection is None else self.projection.weight
        if fixed is not None and fixed.device != embeddings.device:
            self.to(embeddings.device)  # as PML's classification losses follow their input
        embeddings = self._projected(embeddings)
        ids = labels.to(embeddings.device, non_blocking=True)
        if self.centroids is None:
            values = one_hot_values(embeddings, ids)
        else:
            values = bracket(to_sphere(embeddings), ids, self.centroids.to(embeddings.dtype))
        if self.paper_scale:
            per_class = len(labels) / self.num_classes
            values = values * (3 * (self.num_classes - 1) * (per_class - 1) * per_class)
        weights = weights_of(indices_tuple, ids, values)
        return {"loss": term(values * weights, torch.arange(len(ids), device=ids.device))}

    def tightness(self, embeddings: Tensor, labels: Tensor) -> DiscriminativeTightness:
        """Returns both sides of Lemma 3.1 on a balanced batch; see functional.discriminative_tightness.

        Args:
            embeddings: (N, embedding_size), need not be normalised; the projection is applied.
            labels: (N,) class ids, every class equally often, twice or more.
        """
        with torch.no_grad(), no_autocast(embeddings.device):
            return discriminative_tightness(self._unit(embeddings), labels, self.centroids)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Returns (B, C) logits, the negative distances to the class centroids, like PML's classification losses.

        Args:
            embeddings: (B, embedding_size), need not be normalised.
        """
        with no_autocast(embeddings.device):
            unit = self._unit(embeddings)
            cosines = unit if self.centroids is None else unit @ self.centroids.to(unit.dtype).T
            # The distance has no derivative at 0, so keep it above a rounding error.
            return -(2 - 2 * cosines).clamp(min=torch.finfo(unit.dtype).eps).sqrt()

    def _unit(self, embeddings: Tensor) -> Tensor:
        """Checks embeddings and returns their (B, centroid_size) points on the sphere."""
        check_embeddings(embeddings)
        self._check_size(embeddings)
        return to_sphere(self._projected(at_least_float32(embeddings)))

    def _projected(self, embeddings: Tensor) -> Tensor:
        if self.projection is None:
            return embeddings
        return linear(embeddings, self.projection.weight.to(embeddings.dtype))

    def _check_size(self, embeddings: Tensor) -> None:
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"embeddings must have {self.embedding_size} columns (embedding_size={self.embedding_size}); "
                f"got {embeddings.shape[1]}"
            )
