"""Average query expansion of retrieval features."""

import torch
from torch import Tensor

from pml_ext._checks import check_number, check_whole
from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.normalize import unit_rows
from pml_ext.functional.retrieval.feature_distances import check_features
from pml_ext.functional.retrieval.neighbors import nearest_rows

_MOST_TIMES = 100


def expand_features(
    query: Tensor, gallery: Tensor, *, k: int = 5, alpha: float = 3.0, times: int = 1
) -> tuple[Tensor, Tensor]:
    """Replace each feature by (1/k) Σ_j cosine_j^alpha · feature_j over its k nearest features, itself included.

    Neighbours come from queries and gallery together, without a (Q + G)² matrix. Like FastReID it divides the sum by k,
    not by the weights, which changes the length of a feature but not its direction.

    Args:
        query, gallery: (Q, D) and (G, D), finite; compared by cosine, averaged without normalisation.
        k: neighbours averaged, itself included; at most Q + G.
        alpha: 0 (plain average) or more.
        times: how often to expand.
    Returns:
        (Q, D) and (G, D) in float32 or better, not normalised.
    Raises:
        ValueError: features of different widths or not finite; an option outside its range.
    Source: Chum et al., ICCV 2007; Radenović et al., TPAMI 2018 (alpha). FastReID raises negative cosines to alpha,
        which gives nan or a negative weight; here: they count as cosine 0.

    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6], [-1.0, 0.0]])
    >>> expanded, _ = expand_features(query, gallery, k=2, alpha=0)
    >>> [round(value, 3) for value in expanded[0].tolist()]
    [0.9, 0.3]
    """
    check_features(query, gallery, "cosine")
    total = len(query) + len(gallery)
    check_whole(k, "k")
    if not 1 <= k <= total:
        raise ValueError(f"k must be from 1 to the {total} queries and gallery items; got {k!r}")
    check_number(alpha, "alpha")
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha must be finite and at least 0; got {alpha!r}")
    check_whole(times, "times")
    if times > _MOST_TIMES:
        raise ValueError(f"times must be at most {_MOST_TIMES}: each searches all features; got {times!r}")
    if times < 1:
        raise ValueError(f"times must be 1 or more; got {times!r}")
    dtype = torch.promote_types(torch.promote_types(query.dtype, gallery.dtype), torch.float32)
    features = torch.cat([query.detach().to(dtype), gallery.detach().to(dtype)])
    for _ in range(times):
        features = average_with_neighbors(features, k, alpha)
    return features[: len(query)], features[len(query) :]


def average_with_neighbors(features: Tensor, k: int, alpha: float, *, entries: int | None = None) -> Tensor:
    """Expand all features once; entries: see `rows_at_once`."""
    places, distances, _ = nearest_rows(unit_rows(features), k, "cosine", entries=entries)
    weights = (1 - distances).clamp_min(0).pow(alpha)
    mean = torch.empty_like(features)
    for block in row_blocks(len(features), features.shape[1], features.device, entries=entries):
        some = features.new_zeros(block.stop - block.start, features.shape[1])
        for j in range(k):  # one neighbour at a time avoids an (N, k, D) tensor
            some.addcmul_(features[places[block, j]], weights[block, j : j + 1])
        mean[block] = some.div_(k)
    return mean
