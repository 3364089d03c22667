"""Batch samplers for several ranks: every rank draws the same joint batch and takes its own part of it."""

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Sampler
from yacs.config import CfgNode as CN

from pml_ext.training.config import ConfigError, require


class JointBatchSampler(Sampler[list[int]]):
    """Batches of an epoch, a function of (seed, epoch) alone, split among ranks in order.

    Concatenating the ranks' batches in rank order gives the batch that one process would draw.

    Args:
        labels: (N,) contiguous class ids.
        batch_size: of the joint batch.
        instances: images per identity (P×K batches); 0 shuffles images without regard to identity.
    """

    def __init__(
        self, labels: np.ndarray, batch_size: int, instances: int, *, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.batch_size, self.instances, self.seed = batch_size, instances, seed
        self.rank, self.world_size, self.epoch = rank, world_size, 0
        self.count = len(labels)
        self.members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        # The loader draws its workers' seeds from here, so that they too follow from (seed, epoch).
        self.generator = torch.Generator()
        _check(self)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.generator.manual_seed(int(np.random.SeedSequence([self.seed, epoch, self.rank]).generate_state(1)[0]))

    def __len__(self) -> int:
        return steps_per_epoch(self.count, self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        share = self.batch_size // self.world_size
        batches = self._identity_batches(random) if self.instances else self._image_batches(random)
        for batch in batches:
            yield batch[self.rank * share : (self.rank + 1) * share]

    def _image_batches(self, random: np.random.Generator) -> Iterator[list[int]]:
        order = random.permutation(self.count)
        for i in range(len(self)):
            # take wraps around, so a set smaller than one batch still fills it
            yield order.take(range(i * self.batch_size, (i + 1) * self.batch_size), mode="wrap").tolist()

    def _identity_batches(self, random: np.random.Generator) -> Iterator[list[int]]:
        """P different identities a batch, K images each, different ones where the identity has K.

        An identity's images come in rounds, each round a new shuffle; fewer than K left over are skipped.
        """
        decks: dict[int, list[int]] = {}
        identities = self.batch_size // self.instances
        for _ in range(len(self)):
            batch: list[int] = []
            for c in random.choice(len(self.members), identities, replace=False):
                deck = decks.get(c, [])
                if len(deck) < self.instances:
                    deck = random.permutation(self.members[c]).tolist()
                    deck *= -(-self.instances // len(deck))  # repeated where there are fewer than K
                batch += deck[: self.instances]
                decks[c] = deck[self.instances :]
            yield batch


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Joint batches of an epoch: whole ones only, but at least one."""
    return max(1, images // batch_size)


def _check(sampler: JointBatchSampler) -> None:
    per_rank, rest = divmod(sampler.batch_size, sampler.world_size)
    if rest or (sampler.instances and per_rank % sampler.instances):
        raise ConfigError(
            f"SOLVER.IMS_PER_BATCH must be a multiple of DATALOADER.NUM_INSTANCE × processes = "
            f"{max(1, sampler.instances)} × {sampler.world_size}; got {sampler.batch_size}"
        )
    if sampler.instances and sampler.batch_size // sampler.instances > len(sampler.members):
        raise ConfigError(
            f"a batch needs SOLVER.IMS_PER_BATCH / DATALOADER.NUM_INSTANCE = "
            f"{sampler.batch_size // sampler.instances} identities; the training set has {len(sampler.members)}"
        )


def build_sampler(cfg: CN, labels: np.ndarray, rank: int, world_size: int) -> JointBatchSampler:
    """The sampler named by DATALOADER.SAMPLER_TRAIN."""
    require(cfg.DATALOADER.SAMPLER_TRAIN, ["TrainingSampler", "NaiveIdentitySampler"], "DATALOADER.SAMPLER_TRAIN")
    instances = cfg.DATALOADER.NUM_INSTANCE if cfg.DATALOADER.SAMPLER_TRAIN == "NaiveIdentitySampler" else 0
    if cfg.SOLVER.IMS_PER_BATCH < 1 or (instances < 1 and cfg.DATALOADER.SAMPLER_TRAIN == "NaiveIdentitySampler"):
        raise ConfigError("SOLVER.IMS_PER_BATCH and DATALOADER.NUM_INSTANCE must be 1 or more")
    return JointBatchSampler(
        labels, cfg.SOLVER.IMS_PER_BATCH, instances, seed=cfg.SEED, rank=rank, world_size=world_size
    )
