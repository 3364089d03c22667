"""Base class of the miners: input checks, and the pairs to choose from."""

from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._ops.custom_gradient import no_autocast
from pml_ext._pml import BaseDistance, BaseMiner, is_similarity
from pml_ext.functional.tuples import same_and_different
from pml_ext.losses._base import EmbeddingModule, Labels, Reference, check_pml_arguments, checked_batch, is_empty


class PMLArguments(TypedDict, total=False):
    """Arguments of every miner of pytorch-metric-learning."""

    distance: BaseDistance | None
    collect_stats: bool | None


class EmbeddingMiner(EmbeddingModule, BaseMiner):
    """A PML miner that checks its input and computes in float32 or better. Subclasses define `_choose`."""

    pml_arguments = PMLArguments.__annotations__

    def __init__(self, **pml: Unpack[PMLArguments]) -> None:
        check_pml_arguments(type(self), pml)
        super().__init__(**pml)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Returns the pairs or triplets of a batch.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids.
            ref_emb, ref_labels: (R, D) and (R,): if given, positives and negatives come from here.
        Returns:
            (anchors, positives, negatives): anchors index embeddings; positives and negatives index ref_emb if given.
            Empty for an empty batch.
        """
        if is_empty(embeddings) or is_empty(ref_emb):
            return (torch.empty(0, dtype=torch.int64, device=embeddings.device),) * 3
        batch = batch_to_mine(embeddings, labels, ref_emb, ref_labels)
        with torch.no_grad(), no_autocast(embeddings.device):
            mined = self.mine(*batch)
        count_mined(self, mined)
        return mined

    if TYPE_CHECKING:
        __call__ = forward

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Reference, ref_labels: Labels) -> tuple[Tensor, ...]:
        """Returns the tuples of a checked batch; without ref_emb the batch is compared with itself."""
        matrix = self.distance(embeddings, ref_emb)
        same, different = same_and_different(labels, ref_labels, device=matrix.device)
        similarities = matrix if is_similarity(self.distance) else -matrix
        return self._choose(similarities, same, different, with_itself=ref_emb is None)

    def _choose(
        self, similarities: Tensor, same: Tensor, different: Tensor, *, with_itself: bool
    ) -> tuple[Tensor, ...]:
        """Returns tuples from (B, R) similarities (larger is closer) and masks of the positive and negative pairs."""
        raise NotImplementedError


def count_mined(miner: BaseMiner, mined: tuple[Tensor, ...]) -> None:
    """Sets the attributes of PML's miners that count the last batch's pairs or triplets."""
    if len(mined) == 3:
        miner.num_triplets = len(mined[0])
    else:
        miner.num_pos_pairs, miner.num_neg_pairs = len(mined[0]), len(mined[2])


def batch_to_mine(
    embeddings: Tensor, labels: Labels, ref_emb: Reference, ref_labels: Labels
) -> tuple[Tensor, Tensor, Reference, Labels]:
    """Checks and converts the input of a miner, which needs labels."""
    if labels is None or (ref_emb is not None and ref_labels is None):
        raise ValueError("labels, and ref_labels with ref_emb, must be tensors of class ids; got None")
    points, ids, ref_points, ref_ids = checked_batch(embeddings, labels, ref_emb, ref_labels)
    assert ids is not None
    return points, ids, ref_points, ref_ids
