"""What the miners of this package share: checked input, float32 arithmetic, named arguments only."""

import inspect
from typing import Any

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_labels
from pml_ext._pml import BaseMiner
from pml_ext.losses._base import at_least_float32

PML_ARGUMENTS = ("distance", "collect_stats")


class EmbeddingMiner(BaseMiner):
    """A PML miner that checks its input before any work and computes in float32 or better.

    Raises:
        TypeError: an argument that neither the miner nor PML knows.
        ValueError: embeddings that are not (N, D) floating, an empty batch, labels of another length or of
            floating type, ref_emb without ref_labels.
    """

    def __init__(self, **pml: Any) -> None:
        unknown = sorted(set(pml) - set(PML_ARGUMENTS))
        if unknown:
            own = [name for name, p in inspect.signature(type(self)).parameters.items() if p.kind is not p.VAR_KEYWORD]
            raise TypeError(
                f"{type(self).__name__} got unknown argument {', '.join(map(repr, unknown))}; "
                f"known: {', '.join([*own, *PML_ARGUMENTS])}"
            )
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
            (anchors, positives, negatives), indices into embeddings and, the last two, into ref_emb.
        """
        check_embeddings(embeddings)
        check_labels(labels, len(embeddings))
        if ref_emb is not None:
            check_embeddings(ref_emb, "ref_emb")
            if ref_labels is None:
                raise ValueError(f"ref_labels must have shape ({len(ref_emb)},) where ref_emb is given; got None")
            check_labels(ref_labels, len(ref_emb), "ref_labels")
            ref_emb = at_least_float32(ref_emb)
        with torch.autocast(embeddings.device.type, enabled=False):
            mined: tuple[Tensor, ...] = super().forward(at_least_float32(embeddings), labels, ref_emb, ref_labels)
        return mined
