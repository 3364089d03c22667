"""LoOp for miners: mining by the distances between the closest points of arcs."""

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._pml import BaseMiner
from pml_ext._shared.checks import check_choice, check_object
from pml_ext.functional.loop.partners import GEOMETRIES, PAIRINGS, Curve, Pairing
from pml_ext.losses._base import SettingsOfTheWrapped, is_empty, labels_for
from pml_ext.losses.injected_distance import inject, run_with_distance
from pml_ext.losses.loop_distance import check_loop_distance, loop_matrix
from pml_ext.miners._base import batch_to_mine, count_mined

# Reasons why LoOp does not support a miner, by class name.
_REFUSED = {
    "AngularMiner": "it measures angles between embeddings, not pair distances",
    "EmbeddingsAlreadyPackagedAsTriplets": "it does not compare distances",
}


class LoOpMiner(SettingsOfTheWrapped, BaseMiner):
    """Runs a pair or triplet miner on LoOp's distances for negative pairs.

    A pair miner selects only its negative pairs by LoOp's distances; its positive pairs are the same as without LoOp.
    The loss still computes plain distances.

    Args:
        miner: a miner of PML or this package that computes its pairs by `self.distance`: cosine similarity, or
            LpDistance(p=2) with power 1 or 2. It keeps its statistics; num_triplets etc. are also set on this object.
        pairing, geometry: see LoOp.
    Attributes:
        distance: the wrapped miner's distance, also when set.
    Raises:
        TypeError: a miner that does not use pair distances, or a distance without a LoOp form.
    Source: Vasudeva et al., "LoOp: Looking for Optimal Hard Negative Embeddings", ICCV 2021. The paper's
        multi-similarity loss with LoOp is MultiSimilarityLoss with LoOpMiner(MultiSimilarityMiner(epsilon=-0.02)),
        with ε of Fig. 3d; Table 2 does not state it. Paper: that miner; here: any miner.

    >>> import torch
    >>> from pml_ext.miners import TripletMarginMiner
    >>> x, labels = torch.tensor([[1, 0.0], [0.6, 0.8], [0, 1], [-0.6, 0.8]]), torch.tensor([0, 0, 1, 1])
    >>> [len(miner(x, labels)[0]) for miner in (TripletMarginMiner(), LoOpMiner(TripletMarginMiner()))]
    [2, 8]
    """

    WRAPPED = "miner"

    def __init__(self, miner: BaseMiner, *, pairing: Pairing = "consecutive", geometry: Curve = "arc") -> None:
        check_choice(pairing, PAIRINGS, "pairing")
        check_choice(geometry, GEOMETRIES, "geometry")
        check_object(miner, BaseMiner, "miner", "a miner with a `distance` (BaseMiner)")
        name = type(miner).__name__
        if isinstance(miner, LoOpMiner):
            raise TypeError("LoOpMiner cannot wrap LoOpMiner: the distances are replaced already")
        for kind in type(miner).__mro__:
            if kind.__name__ in _REFUSED:
                raise TypeError(f"LoOpMiner cannot wrap {name}: {_REFUSED[kind.__name__]}")
        check_loop_distance(miner.distance, geometry)
        super().__init__(distance=miner.distance)
        self.pairing = pairing
        self.geometry = geometry
        self._wrap(miner)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Returns the wrapped miner's pairs or triplets; shapes as in the miners of this package."""
        if is_empty(embeddings) or is_empty(ref_emb):
            # One sample, because some of PML's miners fail without any.
            embeddings, labels = embeddings.new_zeros(1, embeddings.shape[1]), labels.new_zeros(1)
            none: tuple[Tensor, ...] = self.miner(embeddings, labels)
            return none
        embeddings, labels, ref_emb, ref_labels = batch_to_mine(embeddings, labels, ref_emb, ref_labels)
        check_loop_distance(self.distance, self.geometry)  # the miner may have changed
        cpu_ids, ref_cpu_ids = labels.cpu(), None if ref_labels is None else ref_labels.cpu()
        with torch.no_grad(), no_autocast(embeddings.device):
            matrix, _ = loop_matrix(
                self.distance, embeddings, cpu_ids, ref_emb, ref_cpu_ids, pairing=self.pairing, geometry=self.geometry
            )
            injected = inject(self.distance, matrix, two_sets=ref_emb is not None)
            ids, ref_ids = (labels_for(self.miner, each, embeddings) for each in (labels, ref_labels))
            mined: tuple[Tensor, ...] = run_with_distance(self.miner, injected, embeddings, ids, ref_emb, ref_ids)
            if len(mined) == 4:
                plain = copy.copy(self.miner)(embeddings, ids, ref_emb, ref_ids)  # a copy, as it counts
                mined = *plain[:2], *mined[2:]
        count_mined(self, mined)
        return mined

    if TYPE_CHECKING:
        __call__ = forward
