"""Batches for several ranks: every rank draws the same joint batch and takes its own part of it."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.utils.data import Sampler

from pml_ext.training.config.load import ConfigError

Draw = Callable[[np.random.Generator], Iterator[list[int]]]
"""Joint batches of rows without end, from nothing but the generator."""


class JointBatchSampler(Sampler[list[int]]):
    """Batches of an epoch, a function of (seed, epoch) alone, split among ranks in order.

    Concatenating the ranks' batches in rank order gives the batch that one process would draw.

    Args:
        draw: gives the joint batches of an epoch.
        steps: batches of an epoch.
        batch_size: of the joint batch.
        instances: images of one identity that must stay on one rank; 1 where a draw knows no identities.
    """

    def __init__(
        self,
        draw: Draw,
        steps: int,
        batch_size: int,
        *,
        instances: int = 1,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        per_rank, rest = divmod(batch_size, world_size)
        if rest or per_rank % instances:
            raise ConfigError(
                f"SOLVER.IMS_PER_BATCH must be a multiple of DATALOADER.NUM_INSTANCE × processes = "
                f"{instances} × {world_size}; got {batch_size}"
            )
        self.draw, self.steps, self.seed = draw, steps, seed
        self.share, self.rank, self.epoch = per_rank, rank, 0
        # The loader draws its workers' seeds from here, so that they too follow from (seed, epoch).
        self.generator = torch.Generator()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.generator.manual_seed(int(np.random.SeedSequence([self.seed, epoch, self.rank]).generate_state(1)[0]))

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.draw(np.random.default_rng([self.seed, self.epoch]))
        for _ in range(self.steps):
            yield next(batches)[self.rank * self.share : (self.rank + 1) * self.share]


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Joint batches of an epoch: whole ones only, but at least one."""
    return max(1, images // batch_size)
