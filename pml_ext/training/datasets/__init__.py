"""The data sets that DATASETS.NAMES and DATASETS.TESTS know."""

from collections.abc import Callable
from pathlib import Path

from yacs.config import CfgNode as CN

from pml_ext.training.config import ConfigError, require
from pml_ext.training.datasets.digits import digits
from pml_ext.training.datasets.image_set import DataError, ImageSet, OpenSet
from pml_ext.training.datasets.omniglot import omniglot
from pml_ext.training.datasets.root import dataset_root

DATASETS: dict[str, Callable[[Path, bool], OpenSet]] = {"Digits": digits, "Omniglot": omniglot}

__all__ = ["DATASETS", "DataError", "ImageSet", "OpenSet", "load_test_sets", "load_train_set"]


def load_train_set(cfg: CN) -> ImageSet:
    """The training images of DATASETS.NAMES, joined; identities of different sets stay different."""
    return ImageSet.joined([data.train for data in _load(cfg, "NAMES")])


def load_test_sets(cfg: CN) -> dict[str, OpenSet]:
    """The test sets of DATASETS.TESTS by name."""
    return dict(zip(cfg.DATASETS.TESTS, _load(cfg, "TESTS"), strict=True))


def _load(cfg: CN, key: str) -> list[OpenSet]:
    names = cfg.DATASETS[key]
    if not names:
        raise ConfigError(f"DATASETS.{key} is empty; known: {', '.join(DATASETS)}")
    for name in names:
        require(name, DATASETS, f"DATASETS.{key}")
    grey = len(cfg.MODEL.PIXEL_MEAN) == 1
    return [DATASETS[name](dataset_root(cfg.DATASETS.ROOT), grey) for name in names]
