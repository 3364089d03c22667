"""Pairs of a set whose cameras are known: genuine pairs of one camera are easier, and are counted apart."""

from copy import copy

import torch
from torch import Tensor

from pml_ext._checks import check_labels
from pml_ext.functional.pairwise.pair_blocks import Block
from pml_ext.functional.pairwise.pair_distances import PairDistances


class CameraPairs(PairDistances):
    """`PairDistances` whose positive pairs are of two cameras each, by (N,) integers; its negative pairs are all."""

    def __init__(self, embeddings: Tensor, labels: Tensor, cameras: Tensor, *, offsets: Tensor | None = None) -> None:
        super().__init__(embeddings, labels, offsets=offsets)
        cameras = check_labels(cameras, len(embeddings), "cameras")
        order = torch.argsort(labels.to(self.unit.device), stable=True)  # as the samples are sorted
        self._camera = cameras.to(self.unit.device)[order]
        groups, sizes = torch.unique(torch.stack([self.index, self._camera]), dim=1, return_counts=True)
        within = torch.zeros_like(self.positive_pairs)
        self._within = within.index_add_(0, groups[0], sizes * (sizes - 1) // 2)
        self._across = self.positive_pairs - self._within
        self.positive_pairs = self._across
        self._one_camera = False

    def of_one_camera(self) -> "CameraPairs":
        """The same set, whose positive pairs are those of one camera."""
        other = copy(self)
        other.positive_pairs, other._one_camera = self._within, True
        return other

    # Every count of positive pairs takes them from here.
    def _positive_places(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        flat, row, column = super()._positive_places(block)
        same = self._camera[block.rows][row] == self._camera[block.columns][column]
        kept = same if self._one_camera else ~same
        return flat[kept], row[kept], column[kept]


def pairs_across_cameras(
    embeddings: Tensor, labels: Tensor, cameras: Tensor | None, *, offsets: Tensor | None = None
) -> PairDistances:
    """The pairs that a deployed matcher sees: all, or where cameras are known, genuine ones of two cameras alone."""
    if cameras is None:
        return PairDistances(embeddings, labels, offsets=offsets)
    return CameraPairs(embeddings, labels, cameras, offsets=offsets)
