"""The score of each sample with each identity, in blocks, without an N × N matrix."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pml_ext._checks import check_choice, check_embeddings, check_finite, check_labels
from pml_ext._ops.blocks import row_blocks
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.precision import full_precision
from pml_ext.functional.pairwise.offset_scores import both_sides, check_offsets

Template = Literal["best", "mean"]


class ProbeBlock(NamedTuple):
    """Scores of a block of probes; −inf where there is none."""

    probes: Tensor  # (P,) rows of the embeddings
    own: Tensor  # (P,) with another sample of its identity
    others: Tensor  # (P, M) with each of M identities; −inf for its own


class _Memory(NamedTuple):
    """Reused from block to block."""

    best: Tensor  # (P, M)
    cosines: Tensor  # (P, L) with the k-th samples of L identities
    enrolled: Tensor  # (L, D) these samples


class BestScores:
    """Scores of each sample with each identity (M = `identities`), never with itself; `label`: (N,) its own, from 0.

    The score of an identity is the best cosine with its samples, or that with their normalised mean (`template`). With
    `cameras`, samples of the probe's own identity and camera are not enrolled; those of others are. (N,) `offsets` of
    both samples are subtracted from each cosine.
    """

    def __init__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        cameras: Tensor | None = None,
        template: Template = "best",
        *,
        offsets: Tensor | None = None,
    ) -> None:
        check_embeddings(embeddings)
        count, device = len(embeddings), embeddings.device
        labels = check_labels(labels, count).to(device)
        check_finite(embeddings)
        check_choice(template, ("best", "mean"), "template")
        # A sample is not compared with its own identity's samples of the same number here.
        apart = torch.arange(count, device=device)
        self._apart = apart if cameras is None else check_labels(cameras, count, "cameras").to(device)
        if offsets is not None and template == "mean":
            raise ValueError('template must be "best" for normalised scores, which means do not have; got "mean"')
        check_offsets(offsets, count)
        self._unit, self._enrolled = both_sides(unit_rows(embeddings), None if offsets is None else offsets.to(device))
        self.samples, self.device = count, device
        _, index, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        self.identities = len(sizes)
        if self.identities < 2:
            raise ValueError(f"labels must name at least two identities; got {self.identities}")
        # Identities by falling size: the k-th samples of all that have as many are a prefix of the identities.
        by_size = sizes.argsort(descending=True, stable=True)
        place = torch.empty_like(by_size)
        place[by_size] = torch.arange(len(sizes), device=device)
        self.label = place[index]
        self._mean = None
        if template == "mean":
            self._mean, self._own_mean = self._templates()
            return
        order = self.label.argsort(stable=True)
        first = sizes[by_size].cumsum(0) - sizes[by_size]
        self._layers = [
            order[first[: int((sizes > k).sum())] + k] for k in range(int(sizes.max()))
        ]  # layer k: the k-th sample of every identity with more than k

    def blocks(self, probes: Tensor | None = None, *, entries: int = 2**23) -> Iterator[ProbeBlock]:
        """Scores of the (P,) rows `probes` (None: all), in blocks of `entries` numbers (32 MB by default).

        The next block overwrites `others`.
        """
        chosen = torch.arange(self.samples, device=self.device) if probes is None else probes
        # Blocks of their own, between what is kept of them, left 500 MB with the C library for 20,000 probes.
        memory = _Memory(*(self._unit.new_empty(0) for _ in range(3)))
        for part in row_blocks(len(chosen), self.identities, self.device, entries=entries):
            rows = chosen[part]
            here = torch.arange(len(rows), device=self.device)
            with full_precision(self.device):
                if self._mean is None:
                    best = self._best(rows, here, memory)
                else:
                    best = torch.mm(self._unit[rows], self._mean.T, out=memory.best.resize_(0))
            own = best[here, self.label[rows]] if self._mean is None else self._own_mean[rows]
            best[here, self.label[rows]] = -torch.inf
            yield ProbeBlock(rows, own, best)

    def _best(self, rows: Tensor, here: Tensor, memory: "_Memory") -> Tensor:
        unit, identity, best = self._unit[rows], self.label[rows], memory.best
        for k, layer in enumerate(self._layers):
            enrolled = torch.index_select(self._enrolled, 0, layer, out=memory.enrolled.resize_(0))
            cosines = torch.mm(unit, enrolled.T, out=(memory.cosines if k else best).resize_(0))
            has = identity < len(layer)
            hidden = here[has][self._apart[layer[identity[has]]] == self._apart[rows[has]]]
            cosines[hidden, identity[hidden]] = -torch.inf
            if k:
                shared = best[:, : len(layer)]
                torch.maximum(shared, cosines, out=shared)
        return best

    def _templates(self) -> tuple[Tensor, Tensor]:
        """(M, D) means, normalised, and (N,) each sample's cosine with the mean of what is enrolled of its identity."""
        sums = self._unit.new_zeros(self.identities, self._unit.shape[1]).index_add_(0, self.label, self._unit)
        both = torch.stack([self.label, self._apart])
        groups, group, sizes = torch.unique(both, dim=1, return_inverse=True, return_counts=True)
        hidden = self._unit.new_zeros(groups.shape[1], sums.shape[1]).index_add_(0, group, self._unit)
        own = (self._unit * unit_rows(sums[self.label] - hidden[group])).sum(dim=1)
        alone = sizes[group] == torch.bincount(self.label)[self.label]
        return unit_rows(sums), own.masked_fill(alone, -torch.inf)
