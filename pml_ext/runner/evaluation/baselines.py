"""What a trained model is compared with: the pixels themselves, and the network as it was before training."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from pml_ext._ops.normalize import unit_rows
from pml_ext.runner.data.datasets import TestSet
from pml_ext.runner.data.loaders import Sample
from pml_ext.runner.evaluation.evaluate import Evaluation, Features

RAW_PIXELS, UNTRAINED, BEFORE = "raw pixels", "untrained", "before training"
"""The rows of the table; UNTRAINED where the weights are random, BEFORE where they come from elsewhere."""

_LARGEST_SIDE = 32

Loaders = Sequence[Iterable[Sample]]
"""A loader for each part of each test set: every image once, in order."""


class Embedder(Protocol):
    """A network, and what it is measured on."""

    evaluation: Evaluation
    test_sets: dict[str, TestSet]

    def standardise(self, images: Tensor) -> Tensor:
        """Images in 0–255 as the backbone gets them."""

    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) in 0–255 to embeddings (B, D) of unit norm."""


@dataclass(frozen=True)
class Measured:
    """Metrics and embeddings by test set."""

    results: dict[str, dict[str, float]]
    features: dict[str, Features]


def raw_pixels(images: Tensor) -> Tensor:
    """(B, C, H, W) images as the network gets them to (B, C·h·w) vectors of unit norm.

    Sides of more than 32 pixels are shrunk to 32 by averaging: a gallery of large pictures would not fit in memory,
    and finer detail tells more about where things lie in the picture than about what they are.
    """
    height, width = (min(side, _LARGEST_SIDE) for side in images.shape[-2:])
    return unit_rows(adaptive_avg_pool2d(images, (height, width)).flatten(1))


@torch.no_grad()
def measure_baselines(
    network: Embedder, loaders: Loaders, device: torch.device, *, pretrained: bool
) -> dict[str, Measured]:
    """The test sets measured by raw pixels and by the network as it is; one process measures all of it.

    The state of torch's random numbers is afterwards what it was before. The network is untrained, on the device and in
    evaluation mode; pretrained: its weights come from elsewhere. Returns the rows of the table by their names.
    """
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        RAW_PIXELS: lambda images: raw_pixels(network.standardise(images)),
        BEFORE if pretrained else UNTRAINED: network,
    }
    measured = {}
    with torch.random.fork_rng(devices=[]):
        for name, embed in ways.items():
            parts = iter(loaders)
            features = {
                key: [
                    torch.cat([embed(images.to(device)).float().cpu() for images, _, _ in next(parts)])
                    for _ in data.parts
                ]
                for key, data in network.test_sets.items()
            }
            results = {key: network.evaluation(data, features[key]) for key, data in network.test_sets.items()}
            measured[name] = Measured(results, features)
    return measured
