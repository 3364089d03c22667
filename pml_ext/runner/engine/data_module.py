"""The data of a config as a LightningDataModule: training and test sets, and this process's batches."""

import logging
from pathlib import Path
from typing import Any, cast

import lightning
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode as CN

from pml_ext._shared.identities import check_matches
from pml_ext.runner.config.network_keys import is_grey
from pml_ext.runner.data.datasets import ImageCheck, ImageSet, OpenSet, TestSet, load_test_sets, load_train_set
from pml_ext.runner.data.datasets.image_check import find_copies_of_images
from pml_ext.runner.data.loaders import ImageColumns, SeededImages, collate, evaluation_loader, train_loader
from pml_ext.runner.data.samplers import Drawn, JointBatchSampler
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.evaluation.run_metrics import check_sizes
from pml_ext.runner.evaluation.selected_metrics import replaces_metrics
from pml_ext.runner.launch import is_first
from pml_ext.runner.modeling.interfaces import as_float

log = logging.getLogger("pml_ext")


class DataModule(lightning.LightningDataModule):
    """The images of DATASETS.NAMES and DATASETS.TESTS, in batches.

    A batch is a dict: `images` (B, C, H, W) in 0–255, converted to float32 on the device; `targets` (B,), in training
    classes from 0, in tests identities of the image set; `camids` (B,), `img_paths`, `rows` (B,) of the image set, and
    the data set's further columns.

    Args:
        cfg: config from `load_config`.
        training: whether to read the training set.
        unreadable: file for the list of unreadable images; None: no file.
    Raises:
        UserError: data are missing, or do not support the metrics of TEST.
    """

    def __init__(self, cfg: CN, *, training: bool = True, unreadable: Path | None = None) -> None:
        super().__init__()
        self.cfg = cfg
        check = ImageCheck(cfg.DATASETS)
        read: dict[str, Any] = {"grey": is_grey(cfg), "check": check, "cfg": cfg}
        self.train_set: ImageSet | None = load_train_set(cfg.DATASETS, **read) if training else None
        self.test_sets: dict[str, TestSet] = load_test_sets(cfg.DATASETS, **read)
        check.conclude(unreadable)
        searched = {name: data for name, data in self.test_sets.items() if isinstance(data, OpenSet)}
        self.notes: list[str] = []
        """Sentences about copies of images and queries without a match."""
        if not replaces_metrics(cfg.TEST):
            for name, data in searched.items():
                check_sizes(cfg.TEST, name, data)
                self.notes += check_matches(name, *((part.identities, part.cameras) for part in data.parts))
        if cfg.DATASETS.CHECK_IMAGES and is_first():
            if cfg.DATASETS.COMBINEALL:  # the tests are part of the training
                self.notes += find_copies_of_images(self.train_set, {}) + find_copies_of_images(None, searched)
            else:
                self.notes += find_copies_of_images(self.train_set, searched)
        for sentence in self.notes if is_first() else ():
            log.warning("%s", sentence)
        self.transform = build_transform(cfg.INPUT, training=True)
        self.first = (0, 0)
        """First epoch and step of the training."""

    def train_dataloader(self) -> DataLoader[ImageColumns]:
        """Returns this process's part of every joint batch of the training set."""
        assert self.train_set is not None
        loader = self.loader_of(self.train_set)
        epoch, step = self.first
        # Lightning starts loading the first epoch before it sets the sampler's epoch.
        cast(JointBatchSampler, loader.batch_sampler).set_epoch(epoch, first=step)
        return loader

    def loader_of(self, images: ImageSet) -> DataLoader[ImageColumns]:
        """Returns batches of images, such as a part of `train_set`, with the training transforms and sampler."""
        rank, world_size = self._rank_and_ranks
        return train_loader(
            self.cfg.DATALOADER,
            images,
            self.transform,
            batch_size=self.cfg.SOLVER.IMS_PER_BATCH,
            seed=self.cfg.SEED,
            rank=rank,
            world_size=world_size,
        )

    def val_dataloader(self) -> list[DataLoader[ImageColumns]]:
        """Returns a loader for this process's share of each part of each test set."""
        return self.evaluation_loaders(*self._rank_and_ranks)

    def evaluation_loaders(self, rank: int = 0, world_size: int = 1) -> list[DataLoader[ImageColumns]]:
        """Returns a loader for one process's share of each part of each test set."""
        parts = [part for data in self.test_sets.values() for part in data.parts]
        return [self.test_loader_of(part, rank, world_size) for part in parts]

    def test_loader_of(self, images: ImageSet, rank: int = 0, world_size: int = 1) -> DataLoader[ImageColumns]:
        """Returns one process's share of any images, such as `train_set`, in order, with the test transforms."""
        return evaluation_loader(
            self.cfg.DATALOADER,
            images,
            build_transform(self.cfg.INPUT, training=False),
            batch_size=self.cfg.TEST.IMS_PER_BATCH,
            rank=rank,
            world_size=world_size,
        )

    def on_after_batch_transfer(self, batch: dict[str, Any], dataloader_idx: int) -> dict[str, Any]:
        """Convert images to float32."""
        return {**batch, "images": as_float(batch["images"])}

    def example(self) -> dict[str, Any]:
        """Returns a batch of 2 × NUM_INSTANCE training images."""
        assert self.train_set is not None
        images = SeededImages(self.train_set, self.transform)
        rows = torch.arange(2 * max(self.cfg.DATALOADER.NUM_INSTANCE, 1)) % len(self.train_set)
        batch = collate([images[Drawn(row, seed=0)] for row in rows.tolist()])
        return self.on_after_batch_transfer(batch, 0)

    @property
    def _rank_and_ranks(self) -> tuple[int, int]:
        trainer = self.trainer
        return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
