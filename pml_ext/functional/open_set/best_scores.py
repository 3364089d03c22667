"""The best score of each sample with each identity, in blocks, without an N × N matrix."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_embeddings, check_finite, check_labels
from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.precision import full_precision


class ProbeBlock(NamedTuple):
    """Best cosines of a block of probes; −inf where there is none."""

    probes: Tensor  # (P,) rows of the embeddings
    own: Tensor  # (P,) with another sample of its identity
    others: Tensor  # (P, M) with each of M identities; −inf for its own


class BestScores:
    """Best cosines of each sample with the samples of each identity (M = `identities`), never with itself."""

    def __init__(self, embeddings: Tensor, labels: Tensor) -> None:
        check_embeddings(embeddings)
        labels = check_labels(labels, len(embeddings)).to(embeddings.device)
        check_finite(embeddings)
        self._unit = unit_rows(embeddings)
        self.samples, self.device = len(embeddings), embeddings.device
        _, index, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        self.identities = len(sizes)
        if self.identities < 2:
            raise ValueError(f"labels must name at least two identities; got {self.identities}")
        # Identities by falling size: the k-th samples of all that have as many are a prefix of the identities.
        by_size = sizes.argsort(descending=True, stable=True)
        place = torch.empty_like(by_size)
        place[by_size] = torch.arange(len(sizes), device=place.device)
        self._identity = place[index]
        order = self._identity.argsort(stable=True)
        first = sizes[by_size].cumsum(0) - sizes[by_size]
        nth = torch.empty_like(order)  # which of its identity's samples a sample is
        nth[order] = torch.arange(len(order), device=order.device) - first[self._identity[order]]
        self._layers = [
            order[first[: int((sizes > k).sum())] + k] for k in range(int(sizes.max()))
        ]  # layer k: the k-th sample of every identity with more than k
        self._nth = nth

    def blocks(self, probes: Tensor | None = None, *, entries: int = 2**23) -> Iterator[ProbeBlock]:
        """Scores of the (P,) rows `probes` (None: all), in blocks of `entries` numbers (32 MB by default)."""
        unit, device = self._unit, self._unit.device
        chosen = torch.arange(len(unit), device=device) if probes is None else probes
        for part in row_blocks(len(chosen), self.identities, device, entries=entries):
            rows = chosen[part]
            identity, nth = self._identity[rows], self._nth[rows]
            here = torch.arange(len(rows), device=device)
            best = unit.new_empty(0)
            with full_precision(device):
                for k, layer in enumerate(self._layers):
                    cosines = unit[rows] @ unit[layer].T
                    itself = nth == k
                    cosines[here[itself], identity[itself]] = -torch.inf
                    if k == 0:
                        best = cosines
                    else:
                        shared = best[:, : len(layer)]
                        torch.maximum(shared, cosines, out=shared)
            own = best[here, identity]
            best[here, identity] = -torch.inf
            yield ProbeBlock(rows, own, best)
