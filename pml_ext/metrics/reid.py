"""The numbers a person re-identification paper prints."""

from collections.abc import Sequence

from torch import Tensor

from pml_ext.functional.ranking import JUNK, cumulative_matches, rank_matches


class ReIDEvaluator:
    """CMC, mAP and mINP of a query set against a gallery, gallery items of the query's identity and camera removed.

    Identity −1 is junk: ignored in the gallery, not evaluated as a query. Queries left without a match are not
    counted in the means, their number is reported. Ties are pessimistic, see `functional.rank_matches`.

    Args:
        ranks: the CMC ranks to report.
    """

    def __init__(self, ranks: Sequence[int] = (1, 5, 10)) -> None:
        if not ranks or any(rank < 1 for rank in ranks):
            raise ValueError(f"ranks must be one or more ranks from 1; got {ranks!r}")
        self.ranks = tuple(ranks)

    def __call__(
        self,
        query: Tensor,
        query_ids: Tensor,
        query_cameras: Tensor | None,
        gallery: Tensor,
        gallery_ids: Tensor,
        gallery_cameras: Tensor | None,
    ) -> dict[str, float]:
        """Evaluate.

        Args:
            query, gallery: (Q, D) and (G, D) features, finite; compared by cosine.
            query_ids, gallery_ids: (Q,) and (G,) integer identities.
            query_cameras, gallery_cameras: (Q,) and (G,) integers; None for both: nothing is removed by camera.
        Returns:
            rank_1, rank_5, … , mAP, mINP (fractions, nan where no query has a match), and how many queries count
            (queries) and how many had no match left (queries_without_match).
        Raises:
            ValueError: see `functional.rank_matches`.
        """
        ranking = rank_matches(
            query,
            query_ids,
            gallery,
            gallery_ids,
            query_cameras=query_cameras,
            gallery_cameras=gallery_cameras,
        )
        counted = ranking.matches > 0
        results = {
            f"rank_{rank}": float(share)
            for rank, share in zip(self.ranks, cumulative_matches(ranking, self.ranks), strict=True)
        }
        results["mAP"] = float(ranking.average_precision[counted].mean())
        results["mINP"] = float(ranking.inverse_negative_penalty[counted].mean())
        results["queries"] = float(counted.sum())
        results["queries_without_match"] = float((~counted & (query_ids != JUNK)).sum())
        return results
