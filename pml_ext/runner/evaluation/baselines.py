"""What a trained model is compared with: the pixels themselves, and the network before training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from yacs.config import CfgNode as CN

from pml_ext._ops.normalize import unit_rows
from pml_ext.runner.data.datasets import TestSet
from pml_ext.runner.data.loaders import Sample
from pml_ext.runner.evaluation.evaluate import Evaluation, Features

RAW_PIXELS, UNTRAINED, BEFORE = "raw pixels", "untrained", "before training"
"""The rows of the table; UNTRAINED where the weights are random, BEFORE where they come from elsewhere."""

_LARGEST_SIDE = 32

Loaders = Sequence[Iterable[Sample]]
"""A loader for each part of each test set: every image once, in order."""


@dataclass(frozen=True)
class Measured:
    """Metrics and embeddings by test set."""

    results: dict[str, dict[str, float]]
    features: dict[str, Features]


def raw_pixels(images: Tensor) -> Tensor:
    """(B, C, H, W) images as the network gets them to (B, C·h·w) vectors of unit norm.

    Sides of more than 32 pixels are shrunk to 32 by averaging: a gallery of large images would not fit in memory,
    and finer detail tells more about where things lie in the image than about what they are.
    """
    height, width = (min(side, _LARGEST_SIDE) for side in images.shape[-2:])
    return unit_rows(adaptive_avg_pool2d(images, (height, width)).flatten(1))


@torch.no_grad()
def measure_raw_pixels(
    options: CN, evaluation: Evaluation, test_sets: dict[str, TestSet], loaders: Loaders
) -> Measured:
    """The test sets measured by `raw_pixels` of the images, standardised as the config's MODEL says, in one process."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (options.PIXEL_MEAN, options.PIXEL_STD))
    parts, features = iter(loaders), dict[str, Features]()
    for name, data in test_sets.items():
        features[name] = []
        for _ in data.parts:
            rows = [raw_pixels((batch["images"] - mean) / std) for batch in next(parts)]
            features[name].append(torch.cat(rows))
    return Measured({name: evaluation(data, features[name]) for name, data in test_sets.items()}, features)
