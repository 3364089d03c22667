"""What the miners of this package share: checks of the input, and the pairs that they choose from."""

from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from pml_ext._checks import check_embeddings
from pml_ext._ops.precision import no_autocast
from pml_ext._pml import BaseDistance, BaseMiner
from pml_ext.functional.tuples.pairs import same_and_different
from pml_ext.losses._base import check_pml_arguments, is_empty
from pml_ext.losses._batch import Batch, checked_batch, is_with_itself
from pml_ext.losses._settings import ShowsArguments


class PMLArguments(TypedDict, total=False):
    """What every miner of pytorch-metric-learning takes."""

    distance: BaseDistance | None
    collect_stats: bool | None


class EmbeddingMiner(ShowsArguments, BaseMiner):
    """A PML miner that checks its input first and computes in float32 or better. A subclass defines `_choose`."""

    def __init__(self, **pml: Unpack[PMLArguments]) -> None:
        check_pml_arguments(type(self), pml, PMLArguments.__annotations__)
        super().__init__(**pml)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The pairs or triplets of a batch.

        Args:
            embeddings: (B, D), need not be normalised.
            labels: (B,) integer class ids.
            ref_emb, ref_labels: (R, D) and (R,): positives and negatives are taken from here instead.
        Returns:
            (anchors, positives, negatives), indices into embeddings and, the last two, into ref_emb; empty for an
            empty batch.
        """
        if is_empty(embeddings) or is_empty(ref_emb):
            return (torch.empty(0, dtype=torch.int64, device=embeddings.device),) * 3
        batch = batch_to_mine(embeddings, labels, ref_emb, ref_labels)
        with no_autocast(embeddings.device):
            mined: tuple[Tensor, ...] = super().forward(*batch[:4])
        return mined

    if TYPE_CHECKING:
        __call__ = forward

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
        """The tuples, for PML's `forward`."""
        with_itself = is_with_itself(embeddings, labels, ref_emb, ref_labels)
        same, different = same_and_different(labels, None if with_itself else ref_labels)
        matrix = self.distance(embeddings, ref_emb)
        similarities = matrix if self.distance.is_inverted else -matrix
        return self._choose(similarities, same, different, with_itself=with_itself)

    def _choose(
        self, similarities: Tensor, same: Tensor, different: Tensor, *, with_itself: bool
    ) -> tuple[Tensor, ...]:
        """The tuples of (B, R) similarities, larger = more alike, and masks of the positive and the negative pairs."""
        raise NotImplementedError


def batch_to_mine(
    embeddings: Tensor, labels: Tensor | None, ref_emb: Tensor | None, ref_labels: Tensor | None
) -> Batch:
    """Checks and converts the input of a miner, which needs labels."""
    check_embeddings(embeddings)
    if labels is None:
        raise ValueError(f"labels must have shape ({len(embeddings)},), one label per embedding; got None")
    if ref_emb is not None and ref_labels is None:
        check_embeddings(ref_emb, "ref_emb")
        raise ValueError(f"ref_labels must have shape ({len(ref_emb)},) where ref_emb is given; got None")
    return checked_batch(embeddings, labels, ref_emb, ref_labels)
