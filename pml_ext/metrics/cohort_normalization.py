"""Scores normalised by a cohort: cosines made comparable between samples, without training or labels."""

from typing import Literal

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_embeddings, check_finite, check_number, check_whole
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.precision import full_precision
from pml_ext._pml import BaseDistance
from pml_ext.functional.retrieval.cohort import cohort_offsets


class CohortNormalization:
    """Subtracts from each cosine how close its two samples are to a cohort.

    With m(x), the mean of the k highest cosines of x with the cohort,

        s'(a, b) = cos(a, b) − ½ strength (m(a) + m(b)).

    s' is the inner product of vectors with two more columns (`augment`), so every index that searches by inner
    product searches by it.

    The cohort decides: it must be of the kind that is compared at work (unlabelled gallery samples are), have more
    than a few dozen identities, and k should exceed the samples of one identity. A cohort of another kind does harm.
    Choose cohort, k and strength on validation classes.

    Args:
        cohort: (M, D), finite; normalised here. `fit` is the same, as a verb.
        k: how many of the cohort count, 1 to M.
        strength: 0 leaves cosines as they are, 1 subtracts the whole mean.
    Attributes:
        cohort: (M, D), of length 1.
    Raises:
        ValueError: fewer than k samples in the cohort; values out of range.
    Source: see `pml_ext.functional.cohort_offsets`. Paper (AS-norm): divides by the standard deviation too; here: not,
        which evens out the classes more.

    >>> generator = torch.Generator().manual_seed(0)
    >>> gallery, queries = torch.randn(100, 8, generator=generator), torch.randn(5, 8, generator=generator)
    >>> normalization = CohortNormalization.fit(gallery, k=10)
    >>> rows = torch.arange(100)  # the gallery is the cohort
    >>> indexed = normalization.augment(gallery, "gallery", rows=rows)
    >>> scores = normalization.scores(queries, gallery, rows_b=rows)
    >>> torch.allclose(normalization.augment(queries) @ indexed.T, scores, atol=1e-6)
    True
    """

    def __init__(self, cohort: Tensor, k: int = 10, strength: float = 1.0) -> None:
        check_embeddings(cohort, "cohort")
        check_finite(cohort, "cohort")
        check_whole(k, "k")
        if not 1 <= k <= len(cohort):
            raise ValueError(f"k must be from 1 to {len(cohort)}, the samples of the cohort; got {k}")
        check_number(strength, "strength")
        if not 0 <= strength <= 2:
            raise ValueError(f"strength must be in [0, 2]; got {strength!r}")
        self.cohort, self.k, self.strength = unit_rows(cohort), k, float(strength)

    @classmethod
    def fit(cls, cohort: Tensor, k: int = 10, strength: float = 1.0) -> "CohortNormalization":
        """Takes a cohort; nothing is trained."""
        return cls(cohort, k, strength)

    def offsets(self, embeddings: Tensor, *, rows: Tensor | None = None) -> Tensor:
        """m(x) of each sample.

        Args:
            embeddings: (N, D), finite; normalised here.
            rows: (N,) places of the samples themselves in the cohort, which leave themselves out; None: they are not
                in it.
        Returns:
            (N,), see `functional.cohort_offsets`.
        """
        return cohort_offsets(embeddings, self.cohort, self.k, rows=rows)

    def scores(self, a: Tensor, b: Tensor, *, rows_a: Tensor | None = None, rows_b: Tensor | None = None) -> Tensor:
        """Normalised scores of every pair.

        Args:
            a, b: (A, D) and (B, D).
            rows_a, rows_b: their places in the cohort, see `offsets`.
        Returns:
            (A, B), in [−1 − 2 strength, 1 + 2 strength].
        """
        query, gallery = self.augment(a, rows=rows_a), self.augment(b, "gallery", rows=rows_b)
        with full_precision(query.device):
            return query @ gallery.T

    def augment(
        self, embeddings: Tensor, side: Literal["query", "gallery"] = "query", *, rows: Tensor | None = None
    ) -> Tensor:
        """Vectors whose inner products, query with gallery, are the normalised scores.

        Args:
            embeddings: (N, D).
            side: "query" appends (−½ strength m, 1), "gallery" (1, −½ strength m).
            rows: see `offsets`.
        Returns:
            (N, D + 2). Search them by inner product; their cosines mean nothing.
        """
        check_choice(side, ("query", "gallery"), "side")
        offset = -0.5 * self.strength * self.offsets(embeddings, rows=rows)[:, None]
        parts = [offset, torch.ones_like(offset)]
        return torch.cat([unit_rows(embeddings).to(offset.dtype), *(parts if side == "query" else parts[::-1])], dim=1)

    def distance(self) -> "CohortSimilarity":
        """The normalised score as a similarity of pytorch-metric-learning, for its losses, miners and calculators."""
        return CohortSimilarity(self)


class CohortSimilarity(BaseDistance):
    """`CohortNormalization.scores` as a distance object of pytorch-metric-learning; larger is closer.

    Offsets have no gradient; the samples count as not being in the cohort.

    >>> similarity = CohortNormalization.fit(torch.eye(4), k=2, strength=0.0).distance()
    >>> similarity(torch.eye(4)[:2])
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, normalization: CohortNormalization) -> None:
        super().__init__(is_inverted=True)
        self.normalization = normalization

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor | None) -> Tensor:
        """(Q, R) normalised scores of normalised embeddings."""
        reference = query_emb if ref_emb is None else ref_emb
        offset, other = (self._half(points) for points in (query_emb, reference))
        return query_emb @ reference.T - offset[:, None] - other

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """(P,) normalised scores of row i with row i."""
        return (query_emb * ref_emb).sum(dim=1) - self._half(query_emb) - self._half(ref_emb)

    def _half(self, points: Tensor) -> Tensor:
        offsets = self.normalization.offsets(points.detach())
        return (0.5 * self.normalization.strength * offsets).to(points.dtype)
