"""Metrics of person re-identification: CMC, mAP and mINP."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from pml_ext._shared.checks import check_choice
from pml_ext._shared.identities import JUNK
from pml_ext._shared.settings import CheckedSettings
from pml_ext.functional.retrieval.feature_distances import METRICS
from pml_ext.functional.retrieval.ranking import (
    Ranking,
    check_ranks,
    cumulative_matches,
    rank_matches,
    rank_matches_from_distances,
)
from pml_ext.functional.retrieval.reranking import expand_features, rerank_blocks
from pml_ext.metrics import keys
from pml_ext.metrics.undefined import warn_undefined


class ReIDEvaluator(CheckedSettings):
    """Computes CMC, mAP and mINP, ignoring gallery items with the query's identity and camera.

    Identity −1 is junk. Junk is ignored in the gallery and not evaluated as a query, but re-ranking and query expansion
    use it. Queries without a match are excluded from the means and counted separately. Ties are pessimistic, see
    `functional.rank_matches`.

    Args:
        ranks: CMC ranks to report.
        metric: "cosine" or "euclidean" distance of the features.
        rerank: options of `functional.rerank` (k1, k2, lambda_, definition), {} for its defaults; None: no re-ranking.
        query_expansion: options of `functional.expand_features` (k, alpha, times), {} for its defaults; None:
            no expansion. Applied before re-ranking.

    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.9, 0.4]])
    >>> ids = torch.tensor([0, 0, 1, 1])
    >>> cameras = torch.tensor([0, 1, 0, 1])
    >>> metrics = ReIDEvaluator(ranks=(1,))(x[:1], ids[:1], cameras[:1], x, ids, cameras)
    >>> metrics["rank_1"], metrics["mAP"]
    (0.0, 0.5)
    """

    def __init__(
        self,
        ranks: Sequence[int] = (1, 5, 10),
        *,
        metric: str = "cosine",
        rerank: Mapping[str, Any] | None = None,
        query_expansion: Mapping[str, Any] | None = None,
    ) -> None:
        check_ranks(ranks)
        check_choice(metric, METRICS, "metric")
        self.ranks, self.metric = tuple(ranks), metric
        if rerank is not None and not isinstance(rerank, Mapping):
            raise TypeError(f"rerank must be a mapping of k1, k2, lambda_ and definition; got {rerank!r}")
        self.rerank = None if rerank is None else dict(rerank)
        self.query_expansion = None if query_expansion is None else dict(query_expansion)

    def __call__(
        self,
        query: Tensor,
        query_ids: Tensor,
        query_cameras: Tensor | None,
        gallery: Tensor,
        gallery_ids: Tensor,
        gallery_cameras: Tensor | None,
    ) -> dict[str, float]:
        """Computes the metrics.

        Args:
            query, gallery: (Q, D) and (G, D) features, finite.
            query_ids, gallery_ids: (Q,) and (G,) integer identities.
            query_cameras, gallery_cameras: (Q,) and (G,) integers; None for both: no removal by camera.
        Returns:
            The `summary` of `per_query`.
        Raises:
            ValueError: see `functional.rank_matches`, `functional.rerank` and `functional.expand_features`.
        """
        ranking = self.per_query(query, query_ids, query_cameras, gallery, gallery_ids, gallery_cameras)
        return self.summary(ranking, query_ids)

    def per_query(
        self,
        query: Tensor,
        query_ids: Tensor,
        query_cameras: Tensor | None,
        gallery: Tensor,
        gallery_ids: Tensor,
        gallery_cameras: Tensor | None,
    ) -> Ranking:
        """Returns per-query values, (Q,). Arguments as in `__call__`."""
        if self.query_expansion is not None:
            query, gallery = expand_features(query, gallery, **self.query_expansion)
        if self.rerank is not None:
            blocks = rerank_blocks(query, gallery, metric=self.metric, **self.rerank)
            # Blocks lie on the device of the labels.
            ids = query_ids.to(query.device), gallery_ids.to(query.device)
            return rank_matches_from_distances(
                blocks, *ids, query_cameras=query_cameras, gallery_cameras=gallery_cameras
            )
        return rank_matches(
            query,
            query_ids,
            gallery,
            gallery_ids,
            metric=self.metric,
            query_cameras=query_cameras,
            gallery_cameras=gallery_cameras,
        )

    def per_query_from_distances(
        self,
        distances: Tensor | Iterable[Tensor],
        query_ids: Tensor,
        query_cameras: Tensor | None,
        gallery_ids: Tensor,
        gallery_cameras: Tensor | None,
    ) -> Ranking:
        """Returns per-query values from a (Q, G) distance matrix, or from blocks of its rows in order.

        Raises:
            ValueError: the evaluator re-ranks or expands queries, which needs features.
        """
        if self.rerank is not None or self.query_expansion is not None:
            raise ValueError("rerank and query_expansion need features, not distances. Leave both out")
        return rank_matches_from_distances(
            distances, query_ids, gallery_ids, query_cameras=query_cameras, gallery_cameras=gallery_cameras
        )

    def from_distances(
        self,
        distances: Tensor | Iterable[Tensor],
        query_ids: Tensor,
        query_cameras: Tensor | None,
        gallery_ids: Tensor,
        gallery_cameras: Tensor | None,
    ) -> dict[str, float]:
        """Returns the `summary` of `per_query_from_distances`."""
        ranking = self.per_query_from_distances(distances, query_ids, query_cameras, gallery_ids, gallery_cameras)
        return self.summary(ranking, query_ids)

    def summary(self, ranking: Ranking, query_ids: Tensor) -> dict[str, float]:
        """Returns the means over the queries with a match.

        Args:
            ranking: from `per_query` or `per_query_from_distances`.
            query_ids: (Q,) identities.
        Returns:
            Dict of rank_1, rank_5, … , mAP, mINP (fractions; nan, with a warning, if no query has a match), queries
            (number of queries that count) and queries_without_match.
        """
        counted = ranking.matches > 0
        if not bool(counted.any()):
            names = (*map(keys.rank, self.ranks), keys.MAP, keys.MINP)
            warn_undefined((name, keys.NO_MATCH) for name in names)
        shares = cumulative_matches(ranking, self.ranks)
        results = {keys.rank(rank): float(share) for rank, share in zip(self.ranks, shares, strict=True)}
        results[keys.MAP] = float(ranking.average_precision[counted].mean())
        results[keys.MINP] = float(ranking.inverse_negative_penalty[counted].mean())
        results[keys.QUERIES] = float(counted.sum())
        results[keys.QUERIES_WITHOUT_MATCH] = float((~counted & (query_ids.to(counted.device) != JUNK)).sum())
        return results
