"""Data loaders of a run."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError
from pml_ext.training.data.datasets import ImageSet
from pml_ext.training.data.samplers import build_sampler
from pml_ext.training.data.transforms import build_transform


class LabelledImages(Dataset[tuple[Tensor, int, int]]):
    """(image, class id, row) of an image set."""

    def __init__(self, images: ImageSet, transform: v2.Compose) -> None:
        self.images, self.labels, self.transform = images, images.labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int, int]:
        return self.transform(self.images.images[row]), int(self.labels[row]), row


def train_loader(cfg: CN, images: ImageSet, rank: int, world_size: int) -> DataLoader:
    """This rank's part of every joint batch."""
    sampler = build_sampler(cfg, images.labels, images.cameras, rank, world_size)
    workers = _workers(cfg)
    return DataLoader(
        LabelledImages(images, build_transform(cfg, training=True)),
        batch_sampler=sampler,
        num_workers=workers,
        generator=sampler.generator,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def test_loader(cfg: CN, images: ImageSet, rank: int, world_size: int) -> DataLoader:
    """Every world_size-th image, from this rank's on: no image twice, none left out."""
    if cfg.TEST.IMS_PER_BATCH < 1:
        raise ConfigError(f"TEST.IMS_PER_BATCH must be 1 or more; got {cfg.TEST.IMS_PER_BATCH}")
    return DataLoader(
        LabelledImages(images, build_transform(cfg, training=False)),
        batch_size=cfg.TEST.IMS_PER_BATCH,
        sampler=np.arange(rank, len(images), world_size).tolist(),
        num_workers=_workers(cfg),
        pin_memory=torch.cuda.is_available(),
    )


def _workers(cfg: CN) -> int:
    if cfg.DATALOADER.NUM_WORKERS < 0:
        raise ConfigError(f"DATALOADER.NUM_WORKERS must be 0 or more; got {cfg.DATALOADER.NUM_WORKERS}")
    return int(cfg.DATALOADER.NUM_WORKERS)
