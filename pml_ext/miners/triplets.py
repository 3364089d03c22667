"""Triplet miners: by kind (discordant, semi-hard, …), hardest, and disjoint."""

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._pml import CosineSimilarity
from pml_ext._shared.checks import check_choice, check_in_range, check_seed
from pml_ext.functional.tuples import KINDS, count_triplet_kinds, hardest_triplets, triplets_of_kind
from pml_ext.losses._base import Labels, Reference
from pml_ext.miners._base import EmbeddingMiner, PMLArguments


class ConcordanceMiner(EmbeddingMiner):
    """Selects all triplets of one kind, by default the discordant ones: the negative is closer than the positive.

    The kind depends on the gap $g = S_{ap} - S_{an}$ (d_an − d_ap for distances):

    - discordant: $g < 0$
    - hard: $g ≤ 0$, including ties
    - semihard: $0 < g ≤$ margin
    - easy: $g >$ margin

    Hard, semi-hard and easy triplets are those of PML's TripletMarginMiner, without a tensor of B³ entries. Together
    they are all triplets.

    Args:
        type_of_triplets: "discordant", "hard", "semihard" or "easy".
        margin: >= 0, in the measure of the distance; the upper end of semi-hard.
        **pml: distance (any; CosineSimilarity is the default), collect_stats.
    Attributes:
        num_discordant, num_hard, num_semihard, num_easy: with collect_stats, the number of triplets of each kind in
            the last batch. The concordance index is
            `1 − (num_discordant + num_hard) / (2 (num_hard + num_semihard + num_easy))`.
    Raises:
        ValueError: an unknown type, a negative margin.
    Source: "Triplet Similarity Learning on Concordance Constraint", Fig. 1a. The paper does not define ties.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.5, 0.9]]), torch.tensor([0, 0, 1, 1])
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
        """Returns the triplets, ordered by anchor, then positive, then negative."""
        if self.collect_stats:
            for kind, count in count_triplet_kinds(similarities, same, different, self.margin).items():
                setattr(self, f"num_{kind}", count)
        return triplets_of_kind(similarities, same, different, self.type_of_triplets, self.margin)


class HPHNMiner(EmbeddingMiner):
    """Hard-positive hard-negative (HPHN) miner: each sample's farthest positive, and the nearest negative of the two.

    If the nearest negative is closer to the positive than to the sample, the positive becomes the anchor. With ref_emb,
    the negative is the one nearest to the sample, as in PML's BatchHardMiner. Ties select the first. A sample without
    a positive, or a batch of one class, gives no triplet.

    Args:
        **pml: distance (any; LpDistance is PML's default), collect_stats.
    Source: see HPHNTripletLoss, the mean triplet loss over these triplets.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.5, 0.9]]), torch.tensor([0, 0, 1, 1])
    >>> [indices.tolist() for indices in HPHNMiner()(x, labels)]
    [[1, 1, 2, 2], [0, 0, 3, 3], [2, 2, 1, 1]]
    """

    def _choose(
        self, similarities: Tensor, same: Tensor, different: Tensor, *, with_itself: bool
    ) -> tuple[Tensor, ...]:
        """Returns the triplets, one per sample in batch order."""
        return hardest_triplets(-similarities, same, different, among_themselves=with_itself)


class DisjointTripletMiner(EmbeddingMiner):
    """Random (anchor, positive, negative) triplets; each sample of the batch is in at most one.

    Random pairs of a class become anchors and positives. Negatives are remaining samples of other classes; if none is
    left, a pair is split up. With balanced classes nearly all samples are used.

    Args:
        seed: None draws from torch's global generator at every call. With an integer, the same labels always give the
            same triplets.
        **pml: distance (ignored), collect_stats.
            With ref_emb, anchors come from the batch, positives and negatives from ref_emb, each at most once.
    Source: "Rand-disjoint" in Vasudeva et al., "LoOp", ICCV 2021, Table 3: the sampler of its triplet baseline.
        Paper: the drawing is not described; here: as above.

    >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> triplets = torch.stack(DisjointTripletMiner(seed=0)(torch.randn(6, 2), labels))
    >>> triplets.shape, sorted(triplets.flatten().tolist())
    (torch.Size([3, 2]), [0, 1, 2, 3, 4, 5])
    """

    def __init__(self, *, seed: int | None = None, **pml: Unpack[PMLArguments]) -> None:
        if seed is not None:
            check_seed(seed)
        super().__init__(**pml)
        self.seed = seed

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Reference, ref_labels: Labels) -> tuple[Tensor, ...]:
        """Returns the triplets in random order."""
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        ids = labels.tolist()
        order = torch.randperm(len(ids), generator=generator, device="cpu").tolist()
        if ref_labels is None:
            triplets = _with_negatives(*_random_pairs(order, ids), ids)
        else:
            ref_ids = ref_labels.tolist()
            ref_order = torch.randperm(len(ref_ids), generator=generator, device="cpu").tolist()
            triplets = _with_references(order, ids, ref_order, ref_ids)
        return (
            torch.tensor(triplets, dtype=torch.long, device="cpu")
            .to(embeddings.device, non_blocking=True)
            .view(-1, 3)
            .unbind(1)
        )


def _random_pairs(order: list[int], ids: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Returns same-class pairs, in order of completion, and the remaining samples."""
    waiting: dict[int, int] = {}
    pairs = []
    for sample in order:
        partner = waiting.pop(ids[sample], None)
        if partner is None:
            waiting[ids[sample]] = sample
        else:
            pairs.append((partner, sample))
    return pairs, list(waiting.values())


def _with_negatives(pairs: list[tuple[int, int]], single: list[int], ids: list[int]) -> list[tuple[int, int, int]]:
    """Adds a negative to each pair: a single sample, or one of the last pair, of another class; else drops the pair."""
    triplets = []
    while pairs:
        anchor, positive = pairs.pop(0)
        others = [sample for sample in single if ids[sample] != ids[anchor]]
        if not others:
            last = next((pair for pair in reversed(pairs) if ids[pair[0]] != ids[anchor]), None)
            if last is None:
                continue
            pairs.remove(last)
            single += last
            others = [last[0]]
        single.remove(others[0])
        triplets.append((anchor, positive, others[0]))
    return triplets


def _with_references(
    order: list[int], ids: list[int], free: list[int], ref_ids: list[int]
) -> list[tuple[int, int, int]]:
    """Assign the first free positive and negative to each anchor, if both exist."""
    triplets = []
    for anchor in order:
        positive = next((sample for sample in free if ref_ids[sample] == ids[anchor]), None)
        negative = next((sample for sample in free if ref_ids[sample] != ids[anchor]), None)
        if positive is not None and negative is not None:
            free = [sample for sample in free if sample not in (positive, negative)]
            triplets.append((anchor, positive, negative))
    return triplets
