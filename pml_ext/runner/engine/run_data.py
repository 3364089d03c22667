"""The training and test sets of a run, and this process's batches of them."""

from pathlib import Path

import lightning
from torch.utils.data import DataLoader
from yacs.config import CfgNode as CN

from pml_ext.reports.run_threshold import check_thresholds
from pml_ext.runner.data.datasets import ImageCheck, ImageSet, TestSet, load_test_sets, load_train_set
from pml_ext.runner.data.loaders import Sample, TrainingSample
from pml_ext.runner.data.loaders import evaluation_loader as ordered_loader
from pml_ext.runner.data.loaders import train_loader as shuffled_loader
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.evaluation.evaluate import check_test_sets


def training_and_evaluation_sets(cfg: CN, listing: Path | None) -> tuple[ImageSet, dict[str, TestSet]]:
    """DATASETS.NAMES and TESTS; listing: the file for the images that cannot be read, of all of them."""
    check = ImageCheck(cfg.DATASETS)
    train = load_train_set(cfg.DATASETS, grey=_is_grey(cfg.MODEL), check=check)
    return train, evaluation_sets(cfg, listing, check)


def evaluation_sets(cfg: CN, listing: Path | None, check: ImageCheck | None = None) -> dict[str, TestSet]:
    """DATASETS.TESTS, an error before any work where they cannot be measured as TEST asks."""
    check = check or ImageCheck(cfg.DATASETS)
    found = load_test_sets(cfg.DATASETS, grey=_is_grey(cfg.MODEL), check=check)
    check.conclude(listing)
    check_test_sets(cfg.TEST, found)
    check_thresholds(cfg.TEST.THRESHOLD, found)
    return found


def evaluation_loaders(
    cfg: CN, test_sets: dict[str, TestSet], trainer: lightning.Trainer | None = None
) -> list[DataLoader[Sample]]:
    """Of each part of each test set what this process embeds; without a trainer, all of it."""
    transform = build_transform(cfg.INPUT, training=False)
    rank, world_size = (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
    share = {"batch_size": cfg.TEST.IMS_PER_BATCH, "rank": rank, "world_size": world_size}
    parts = [part for data in test_sets.values() for part in data.parts]
    return [ordered_loader(cfg.DATALOADER, part, transform, **share) for part in parts]


def train_loader(cfg: CN, images: ImageSet, trainer: lightning.Trainer) -> DataLoader[TrainingSample]:
    return shuffled_loader(
        cfg.DATALOADER,
        images,
        build_transform(cfg.INPUT, training=True),
        batch_size=cfg.SOLVER.IMS_PER_BATCH,
        seed=cfg.SEED,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
    )


def train_set(cfg: CN) -> ImageSet:
    return load_train_set(cfg.DATASETS, grey=_is_grey(cfg.MODEL))


def _is_grey(model: CN) -> bool:
    return len(model.PIXEL_MEAN) == 1
