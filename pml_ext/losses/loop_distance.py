"""The matrix that LoOp injects into a loss or miner: its distances, with those of negative pairs replaced."""

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import to_sphere
from pml_ext._ops.numerics import inner_products
from pml_ext._pml import BaseDistance, CosineSimilarity, DotProductSimilarity, LpDistance, is_similarity, normalized
from pml_ext.functional.loop.arcs import safe_sqrt, two_plus
from pml_ext.functional.loop.pair_matrix import loop_pairs
from pml_ext.functional.loop.partners import Curve, Pairing
from pml_ext.losses.injected_distance import describe_distance, settings_of

_ACCEPTED = {
    "arc": "CosineSimilarity(), DotProductSimilarity() that normalises, LpDistance(p=2, power=1 or 2) that normalises",
    "segment": "LpDistance(normalize_embeddings=False, p=2, power=1 or 2)",
}


_PLAIN = (CosineSimilarity, DotProductSimilarity, LpDistance)


def check_loop_distance(distance: BaseDistance, geometry: str) -> None:
    """Raises a TypeError unless LoOp's distances can be expressed in the measure of this distance.

    >>> check_loop_distance(CosineSimilarity(), "arc")
    """
    if distance._forward_pre_hooks:
        raise TypeError(
            f"{type(distance).__name__} has a forward pre-hook, which could change the embeddings after LoOp has read "
            "them; remove it, or use a forward hook"
        )
    normalizes, order, power = settings_of(distance)
    is_lp = isinstance(distance, LpDistance) and power in (1, 2)
    is_cosine = isinstance(distance, (CosineSimilarity, DotProductSimilarity)) and power == 1
    accepted = {"arc": normalizes and (is_lp or is_cosine), "segment": normalizes is False and is_lp}
    if order != 2 or not accepted[geometry]:
        raise TypeError(
            f"LoOp with geometry={geometry!r} needs one of the distances {_ACCEPTED[geometry]}; got "
            f"{describe_distance(distance)}"
        )


def loop_matrix(
    distance: BaseDistance, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None, *, pairing: Pairing, geometry: Curve,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the matrix of the distance with LoOp's distances for negative pairs, and the negative mask.

    Args:
        distance: a distance that check_loop_distance accepts.
        embeddings, labels: (B, D) and (B,).
        ref_emb, ref_labels: (R, D) and (R,); None: the batch itself.
        pairing, geometry: see `functional.loop_pairs`, also for labels on the CPU.
    Returns:
        (B, R) in the distance's measure and power, and a (B, R) mask.

    >>> x = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.8, 0, 0.6], [0, 0.8, 0.6]])
    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> options = {"pairing": "consecutive", "geometry": "arc"}
    >>> matrix, is_negative = loop_matrix(CosineSimilarity(), x, labels, **options)
    >>> matrix[0].round(decimals=3), is_negative[0]
    (tensor([1.0000, 0.0000, 0.8000, 0.8000]), tensor([False, False,  True,  True]))
    """
    ids = ref_ids = labels.to(embeddings.device, non_blocking=True)
    if ref_emb is not None and ref_labels is not None:
        ref_ids = ref_labels.to(embeddings.device, non_blocking=True)
    is_negative = ids.unsqueeze(1) != ref_ids
    points = ref_points = None
    if ref_emb is not None:
        points, ref_points = normalized(distance, embeddings), normalized(distance, ref_emb)
    is_on_arcs = ref_emb is None and geometry == "arc" and type(distance) in _PLAIN and not distance.collect_stats
    # `loop_pairs` expects cosines for arcs and squared distances for segments: these are its `entries`.
    if is_on_arcs:
        entries = inner_products(to_sphere(embeddings))
    else:
        # Calls `forward` to skip hooks, which run when the loss calls the injected distance.
        pairs = distance.forward(embeddings, ref_emb)
        squares = pairs.square() if not is_similarity(distance) and distance.power == 1 else pairs
        entries = 1 - squares / 2 if geometry == "arc" and not is_similarity(distance) else squares
    closest = loop_pairs(
        entries,
        labels,
        ref_labels if ref_emb is not None else None,
        points=points,
        ref_points=ref_points,
        pairing=pairing,
        geometry=geometry,
    )
    if is_on_arcs:
        return _measured(distance, torch.where(is_negative, closest, entries), geometry), is_negative
    return torch.where(is_negative, _measured(distance, closest, geometry), pairs), is_negative


def _measured(distance: BaseDistance, entries: Tensor, geometry: Curve) -> Tensor:
    """Returns cosines (of arcs) or squared distances (of segments) in the measure and power of the distance."""
    if is_similarity(distance):
        return entries
    squares = two_plus(entries, -2) if geometry == "arc" else entries
    return safe_sqrt(squares) if distance.power == 1 else squares.clamp_min(0)
