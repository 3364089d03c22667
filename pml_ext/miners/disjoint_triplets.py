"""Random triplets of which no two share a sample."""

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_seed
from pml_ext.losses._batch import Labels, Reference
from pml_ext.miners._base import EmbeddingMiner, PMLArguments


class DisjointTripletMiner(EmbeddingMiner):
    """Random (anchor, positive, negative) triplets; each sample of the batch is in at most one.

    Random pairs of a class become anchors and positives. Negatives are the samples of other classes that are left, and
    those of pairs that are broken up for them. Where classes are balanced nearly all samples are used.

    Args:
        seed: None: drawn from torch's own generator, anew at every call. A number: the same labels give the same
            triplets at every call.
        **pml: distance (ignored), collect_stats.
            With ref_emb the anchors are of the batch, positives and negatives of ref_emb, each at most once.
    Source: "Rand-disjoint" in Vasudeva et al., "LoOp", ICCV 2021, Table 3: the sampler of its triplet baseline.
        Paper: how they are drawn is not stated; here: as above.

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
        """The triplets, in random order."""
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        ids = labels.tolist()
        order = torch.randperm(len(ids), generator=generator).tolist()
        if ref_labels is None:
            triplets = _with_negatives(*_random_pairs(order, ids), ids)
        else:
            ref_ids = ref_labels.tolist()
            ref_order = torch.randperm(len(ref_ids), generator=generator).tolist()
            triplets = _with_references(order, ids, ref_order, ref_ids)
        return torch.tensor(triplets, dtype=torch.long).to(labels.device, non_blocking=True).view(-1, 3).unbind(1)


def _random_pairs(order: list[int], ids: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Pairs of one class, in the order in which they are complete, and the samples left over."""
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
    """Each anchor takes the first positive and the first negative that are free, where there are both."""
    triplets = []
    for anchor in order:
        positive = next((sample for sample in free if ref_ids[sample] == ids[anchor]), None)
        negative = next((sample for sample in free if ref_ids[sample] != ids[anchor]), None)
        if positive is not None and negative is not None:
            free = [sample for sample in free if sample not in (positive, negative)]
            triplets.append((anchor, positive, negative))
    return triplets
