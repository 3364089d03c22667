"""LoOp for miners: mine with the distances of the closest points of arcs."""

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_embeddings, check_labels
from pml_ext._pml import BaseMiner
from pml_ext.distances.injected import inject, run_with_distance
from pml_ext.distances.loop import check_loop_distance, loop_matrix
from pml_ext.losses._base import at_least_float32

# Miners that LoOp cannot serve, by class name, and why.
_REFUSED = {
    "AngularMiner": "it measures angles between embeddings, not pair distances",
    "EmbeddingsAlreadyPackagedAsTriplets": "it takes the triplets as they come",
}


class LoOpMiner(BaseMiner):
    """Runs a pair or triplet miner with the negative distances replaced by LoOp's.

    Args:
        miner: a PML miner (or one of ours) that reads its pairs through `self.distance`: cosine similarity, or
            LpDistance(p=2) with power 1 or 2. Its statistics are its own, and num_triplets and such here too.
        pairing, geometry: as in LoOp.
    Raises:
        TypeError: a miner that does not read pair distances, or a distance without a LoOp form.
    Source: Vasudeva et al., "LoOp: Looking for Optimal Hard Negative Embeddings", ICCV 2021.

    >>> from pml_ext.miners import TripletMarginMiner
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> [len(miner(x, labels)[0]) for miner in (TripletMarginMiner(), LoOpMiner(TripletMarginMiner()))]
    [2, 8]
    """

    def __init__(self, miner: BaseMiner, *, pairing: str = "consecutive", geometry: str = "arc") -> None:
        check_choice(pairing, ("consecutive", "all"), "pairing")
        check_choice(geometry, ("arc", "segment"), "geometry")
        name = type(miner).__name__
        if not isinstance(miner, BaseMiner):
            raise TypeError(f"miner must be a miner with a `distance` (BaseMiner); got {name}")
        if isinstance(miner, LoOpMiner):
            raise TypeError("LoOpMiner cannot wrap LoOpMiner: the distances are replaced already")
        for kind in type(miner).__mro__:
            if kind.__name__ in _REFUSED:
                raise TypeError(f"LoOpMiner cannot wrap {name}: {_REFUSED[kind.__name__]}")
        check_loop_distance(miner.distance, geometry)
        super().__init__(distance=miner.distance)
        self.miner = miner
        self.pairing = pairing
        self.geometry = geometry

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
        """The wrapped miner's pairs or triplets."""
        check_embeddings(embeddings)
        check_labels(labels, len(embeddings))
        check_labels(ref_labels, len(ref_emb), "ref_labels")
        is_self = ref_emb is embeddings
        embeddings = at_least_float32(embeddings)
        # Miners tell a batch against itself by identity, so the conversion must keep the two the same object.
        other, other_labels = (None, None) if is_self else (at_least_float32(ref_emb), ref_labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            matrix, _ = loop_matrix(
                self.distance, embeddings, labels, other, other_labels, pairing=self.pairing, geometry=self.geometry
            )
            injected = inject(self.distance, matrix, two_sets=other is not None)
            mined: tuple[Tensor, ...] = run_with_distance(self.miner, injected, embeddings, labels, other, other_labels)
        return mined
