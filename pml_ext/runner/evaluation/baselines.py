"""Baselines of a trained model: raw pixels, and the network before training."""

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
"""Row names in the results table; UNTRAINED for random weights, BEFORE for pretrained weights."""

_LARGEST_SIDE = 32

Loaders = Sequence[Iterable[Sample]]
"""One loader per part of each test set, with every image once, in order."""


@dataclass(frozen=True)
class Measured:
    """Metrics and embeddings by test set."""

    results: dict[str, dict[str, float]]
    features: dict[str, Features]


def raw_pixels(images: Tensor) -> Tensor:
    """Returns (B, C·h·w) unit vectors of (B, C, H, W) network inputs.

    Sides of more than 32 pixels are reduced to 32 by averaging: a gallery of large images would not fit in memory,
    and finer detail depends more on alignment than on content.
    """
    height, width = (min(side, _LARGEST_SIDE) for side in images.shape[-2:])
    return unit_rows(adaptive_avg_pool2d(images, (height, width)).flatten(1))


@torch.no_grad()
def measure_raw_pixels(
    options: CN, evaluation: Evaluation, test_sets: dict[str, TestSet], loaders: Loaders
) -> Measured:
    """Evaluate `raw_pixels` on the test sets, standardised by the config's MODEL keys, in one process."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (options.PIXEL_MEAN, options.PIXEL_STD))
    parts, features = iter(loaders), dict[str, Features]()
    for name, data in test_sets.items():
        features[name] = []
        for _ in data.parts:
            rows = [raw_pixels((batch["images"] - mean) / std) for batch in next(parts)]
            features[name].append(torch.cat(rows))
    return Measured({name: evaluation(data, features[name]) for name, data in test_sets.items()}, features)
