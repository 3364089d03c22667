"""Triplets by concordance."""

from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_choice, check_in_range
from pml_ext._pml import CosineSimilarity
from pml_ext.functional.tuples import KINDS, count_triplet_kinds, triplets_of_kind
from pml_ext.miners._base import EmbeddingMiner, PMLArguments


class ConcordanceMiner(EmbeddingMiner):
    """All triplets of one kind: discordant ones, whose negative is the more similar one to the anchor, or others.

    By the gap g = S_ap − S_an (with a distance d_an − d_ap): "discordant" is g < 0; "hard" g ≤ 0, so with the ties;
    "semihard" 0 < g ≤ margin; "easy" g > margin. Hard, semi-hard and easy make up all triplets, and are those of
    PML's TripletMarginMiner, here without a tensor of B³ entries.

    Args:
        type_of_triplets: "discordant", "hard", "semihard" or "easy".
        margin: >= 0, in the measure of the distance; says where semi-hard ends.
        **pml: distance (any; CosineSimilarity is the default), collect_stats.
    Attributes:
        num_discordant, num_hard, num_semihard, num_easy: with collect_stats, how many triplets of each kind the last
            batch had, whichever were asked for. The concordance index is
            1 − (num_discordant + num_hard) / (2 (num_hard + num_semihard + num_easy)).
    Raises:
        ValueError: an unknown type, a negative margin.
    Source: "Triplet Similarity Learning on Concordance Constraint", Fig. 1a. Ties are ours.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> [indices.tolist() for indices in ConcordanceMiner()(x, labels)]
    [[1], [0], [2]]
    """

    default_distance = CosineSimilarity

    def __init__(
        self, *, type_of_triplets: str = "discordant", margin: float = 0.2, **pml: Unpack[PMLArguments]
    ) -> None:
        check_choice(type_of_triplets, KINDS, "type_of_triplets")
        check_in_range(margin, 0, float("inf"), "margin")
        super().__init__(**pml)
        self.type_of_triplets = type_of_triplets
        self.margin = margin
        self._record("margin")
        self._record(*(f"num_{kind}" for kind in KINDS), is_stat=True)

    def _choose(
        self, similarities: Tensor, same: Tensor, different: Tensor, *, with_itself: bool
    ) -> tuple[Tensor, ...]:
        """The triplets, ordered by anchor, then positive, then negative."""
        if self.collect_stats:
            for kind, count in count_triplet_kinds(similarities, same, different, self.margin).items():
                setattr(self, f"num_{kind}", count)
        return triplets_of_kind(similarities, same, different, self.type_of_triplets, self.margin)
