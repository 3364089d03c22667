"""What one call of the accuracy calculator measures, with the work that several metrics share done once."""

import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pml_ext.functional.opis import TooFewClassesError, UtilityCurves, curves_of_pairs
from pml_ext.functional.pair_statistics import PairDistances
from pml_ext.functional.ranking import Ranking, rank_matches
from pml_ext.functional.verification import largest_count_within


@dataclass
class EvaluationSet:
    """Queries and references with classes numbered 0, 1, … in the order of their ids, junk already left out."""

    query: Tensor
    query_labels: Tensor
    reference: Tensor
    reference_labels: Tensor
    ref_includes_query: bool
    query_cameras: Tensor | None
    reference_cameras: Tensor | None
    k: int | str | None
    far_range: tuple[float, float]
    grid: int

    def _ranked(self, within: int | None) -> Ranking:
        return rank_matches(
            self.query,
            self.query_labels,
            self.reference,
            self.reference_labels,
            query_cameras=self.query_cameras,
            gallery_cameras=self.reference_cameras,
            gallery_includes_query=self.ref_includes_query,
            within=within,
        )

    @cached_property
    def ranking(self) -> Ranking:
        return self._ranked(None)

    @cached_property
    def ranking_within_k(self) -> Ranking:
        """As PML's k limits its neighbours."""
        return self.ranking if self.limit is None else self._ranked(self.limit)

    @cached_property
    def limit(self) -> int | None:
        """PML's k as a rank: "max_bin_count" is the largest number of matches of a query."""
        return max(1, int(self.ranking.matches.max())) if isinstance(self.k, str) else self.k

    @cached_property
    def pairs(self) -> PairDistances:
        """All pairs of the samples whose class has a query: a gallery's distractors are no class of their own."""
        if self.ref_includes_query:
            embeddings, labels = self.reference, self.reference_labels
        else:
            embeddings = torch.cat([self.query, self.reference.to(self.query.dtype)])
            labels = torch.cat([self.query_labels, self.reference_labels])
        wanted = torch.isin(labels, self.query_labels)
        return PairDistances(embeddings[wanted], labels[wanted])

    @cached_property
    def curves(self) -> UtilityCurves | None:
        """None, with a warning, where the set has too few classes to compare."""
        try:
            return curves_of_pairs(self.pairs, far_range=self.far_range, grid=self.grid)
        except TooFewClassesError as error:
            warnings.warn(f"opis and epsilon_opis are nan: {error}", UserWarning, stacklevel=2)
            return None

    def tar_at_far(self, far: float) -> float:
        """`functional.tar_at_far` over all pairs, from counts: the scores are never stored."""
        genuine, impostors = self.pairs.total_positive_pairs, self.pairs.total_negative_pairs
        allowed = largest_count_within(far, impostors)
        if not genuine or not allowed:
            return float("nan")
        if allowed == impostors:
            return 1.0
        # Accepted are the pairs strictly closer than the first impostor pair that is one too many.
        first_refused = self.pairs.negative_distances_at([allowed + 1])
        below = torch.nextafter(first_refused, torch.full_like(first_refused, -torch.inf))
        return int(self.pairs.accepted(below, positives_only=True)[0].sum()) / genuine
