"""Hard positive, hard negative."""

from torch import Tensor

from pml_ext.functional.tuples import hardest_triplets
from pml_ext.miners._base import EmbeddingMiner


class HPHNMiner(EmbeddingMiner):
    """One triplet for each sample: the pair with its farthest positive, and the nearest negative of either end.

    Where the positive has the nearer negative, the two change places, so that anchor and negative are that pair.
    With ref_emb the nearest negative is the anchor's own, as PML's BatchHardMiner takes it always. Of equals the
    first is taken. A sample without a positive, or a batch of one class, gives no triplet.

    Args:
        **pml: distance (any; LpDistance is PML's default), collect_stats.
    Source: as HPHNTripletLoss, which is the mean triplet loss of these.

    >>> import torch
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> [indices.tolist() for indices in HPHNMiner()(x, labels)]
    [[1, 1, 2, 2], [0, 0, 3, 3], [2, 2, 1, 1]]
    """

    def _choose(
        self, similarities: Tensor, same: Tensor, different: Tensor, *, with_itself: bool
    ) -> tuple[Tensor, ...]:
        """The triplets, in the order of the samples that they are for."""
        return hardest_triplets(-similarities, same, different, among_themselves=with_itself)
