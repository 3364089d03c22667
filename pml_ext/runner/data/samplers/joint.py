"""Batches for several ranks: every rank draws the same joint batch and takes its own part of it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler

Draw = Callable[[np.random.Generator], Iterator[list[int]]]
"""Joint batches of rows without end, from nothing but the generator."""


class Drawn(NamedTuple):
    """One sample of a batch: a row of the image set, and the seed of all that is random about it."""

    row: int
    seed: int


class JointBatchSampler(Sampler[list[Drawn]]):
    """Batches of an epoch, a function of (seed, epoch) alone, split among ranks in order.

    Concatenating the ranks' batches in rank order gives the batch that one process would draw. Every sample brings
    its own seed, so that its transforms come out the same in whichever process it is loaded and after whichever others.
    An epoch has `steps` batches; batch_size is of the joint batch.
    """

    def __init__(
        self, draw: Draw, steps: int, batch_size: int, *, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.draw, self.steps, self.seed = draw, steps, seed
        self.share, self.rank, self.epoch, self.first = batch_size // world_size, rank, 0, 0
        # The loader takes a number from here each time it begins, instead of one of the model's.
        self.generator = torch.Generator()

    def set_epoch(self, epoch: int, *, first: int = 0) -> None:
        """Draw the batches of an epoch from the first-th on; those before are drawn too, but not given out."""
        self.epoch, self.first = epoch, first

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[Drawn]]:
        batches = self.draw(np.random.default_rng([self.seed, self.epoch]))
        seeds = np.random.default_rng([self.seed, self.epoch, 1])
        for step in range(self.steps):
            batch = next(batches)
            joint = list(map(Drawn, batch, seeds.integers(2**63, size=len(batch)).tolist()))
            if step >= self.first:
                yield joint[self.rank * self.share : (self.rank + 1) * self.share]


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Joint batches of an epoch: whole ones only, but at least one."""
    return max(1, images // batch_size)
