"""Data loaders of a run."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from yacs.config import CfgNode as CN

from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.data.samplers import build_sampler
from pml_ext.runner.data.samplers.joint import Drawn

Sample = tuple[Tensor, int, int]
"""(image, class id, row)."""


class LabelledImages(Dataset[Sample]):
    """(image, class id, row) of an image set."""

    def __init__(self, images: ImageSet, transform: v2.Compose) -> None:
        self.images, self.labels, self.transform = images, images.labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Sample:
        return self.transform(self.images.images[row]), int(self.labels[row]), row


class SeededImages(Dataset[Sample]):
    """(image, class id, row) of what a sampler drew; its seed decides the transforms' random numbers."""

    def __init__(self, images: LabelledImages) -> None:
        self.images = images

    def __getitem__(self, drawn: Drawn) -> Sample:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(drawn.seed)  # torch.manual_seed would set the GPUs' too
            return self.images[drawn.row]


def train_loader(
    options: CN, images: ImageSet, transform: v2.Compose, *, batch_size: int, seed: int, rank: int, world_size: int
) -> DataLoader[Sample]:
    """This rank's part of every joint batch, of batch_size images; the same for any number of workers."""
    sampler = build_sampler(
        options, images.labels, images.cameras, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size
    )
    return DataLoader(
        SeededImages(LabelledImages(images, transform)),
        batch_sampler=sampler,
        num_workers=options.NUM_WORKERS,
        generator=sampler.generator,
        persistent_workers=options.NUM_WORKERS > 0,
        pin_memory=torch.cuda.is_available(),
    )


def evaluation_loader(
    options: CN, images: ImageSet, transform: v2.Compose, *, batch_size: int, rank: int, world_size: int
) -> DataLoader[Sample]:
    """Every world_size-th image, from this rank's on: no image twice, none left out. batch_size is of one rank."""
    return DataLoader(
        LabelledImages(images, transform),
        batch_size=batch_size,
        sampler=np.arange(rank, len(images), world_size).tolist(),
        num_workers=options.NUM_WORKERS,
        pin_memory=torch.cuda.is_available(),
    )
