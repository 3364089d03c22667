"""Normalised scores as a similarity of pytorch-metric-learning."""

from collections.abc import Callable

from torch import Tensor

from pml_ext._pml import BaseDistance


class CohortSimilarity(BaseDistance):
    """`CohortNormalization.scores` as a distance object of pytorch-metric-learning; larger is closer.

    Offsets have no gradient; the samples count as not being in the cohort.

    offsets: (N, D) to m(x) of each row, (N,).

    >>> import torch
    >>> from pml_ext.metrics import CohortNormalization
    >>> similarity = CohortNormalization.fit(torch.eye(4), k=2, strength=0.0).distance()
    >>> similarity(torch.eye(4)[:2])
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, offsets: Callable[[Tensor], Tensor], strength: float) -> None:
        super().__init__(is_inverted=True)
        self.offsets, self.strength = offsets, strength

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor | None) -> Tensor:
        """(Q, R) normalised scores of normalised embeddings."""
        reference = query_emb if ref_emb is None else ref_emb
        offset, other = (self._half(points) for points in (query_emb, reference))
        return query_emb @ reference.T - offset[:, None] - other

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """(P,) normalised scores of row i with row i."""
        return (query_emb * ref_emb).sum(dim=1) - self._half(query_emb) - self._half(ref_emb)

    def _half(self, points: Tensor) -> Tensor:
        return (0.5 * self.strength * self.offsets(points.detach())).to(points.dtype)
