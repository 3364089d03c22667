"""The fixed centroids of DiscriminativeLoss: made, and checked when they are loaded."""

import torch
from torch import Tensor

from pml_ext._checks import check_choice
from pml_ext.functional.losses.discriminative import kmeans_centroids, simplex_centroids

KINDS = ("one_hot", "kmeans", "simplex", "given")  # a kind's position is stored in state_dict: append only
_NORM_TOLERANCE = 1e-3  # what rounding to 16 bits does to a unit vector


def make_centroids(
    centroids: str | Tensor, num_classes: int, embedding_size: int, size: int | None, seed: int
) -> tuple[Tensor | None, list[int]]:
    """(C, size) values, None for one-hot centroids, and the layout that state_dict records: kind, C and size."""
    values = None
    if isinstance(centroids, Tensor):
        given = tuple(centroids.shape)
        if centroids.ndim != 2 or given[0] != num_classes or size not in (None, given[1]):
            expected = f"({num_classes}, {'centroid_size' if size is None else size})"
            raise ValueError(f"centroids must have shape {expected}, one row per class; got {given}")
        if not centroids.is_floating_point():
            raise ValueError(f"centroids must be of floating type; got {centroids.dtype}")
        _check_unit_vectors(centroids, "centroids")
        kind, values = "given", centroids.detach().clone()
    else:
        check_choice(centroids, KINDS[:-1], "centroids")
        kind = centroids
        if kind == "kmeans":
            values = kmeans_centroids(num_classes, num_classes if size is None else size, seed)
        elif kind == "simplex":
            values = simplex_centroids(num_classes, max(embedding_size, num_classes - 1) if size is None else size)
        elif size not in (None, num_classes):
            raise ValueError(f"centroid_size of one_hot centroids is num_classes={num_classes}; got {size}")
    return values, [KINDS.index(kind), num_classes, num_classes if values is None else values.shape[1]]


def problem_with_saved(own: list[int], layout: Tensor | None, centroids: Tensor | None) -> str | None:
    """Why the layout or the centroids of a state_dict do not fit a loss with its own layout."""
    if layout is not None and layout.tolist() != own:
        return f"{_describe(layout.tolist())} in state_dict do not fit a DiscriminativeLoss with {_describe(own)}"
    if centroids is not None:
        try:
            _check_unit_vectors(centroids, "centroids in state_dict")
        except ValueError as error:
            return str(error)
    return None


def _describe(layout: list[int]) -> str:
    kind, num_classes, size = layout
    return f"{KINDS[kind]} centroids of shape ({num_classes}, {size})"


def _check_unit_vectors(centroids: Tensor, name: str) -> None:
    if not centroids.isfinite().all():
        raise ValueError(f"{name} must be finite; got nan or infinite values")
    norms = torch.linalg.vector_norm(centroids.double(), dim=1)
    if (norms - 1).abs().max() > _NORM_TOLERANCE:
        raise ValueError(
            f"{name} must be unit vectors; got norms from {norms.min():.4g} to {norms.max():.4g}. "
            "Normalise with torch.nn.functional.normalize(centroids)"
        )
