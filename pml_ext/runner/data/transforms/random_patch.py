"""Random patch: parts of earlier images pasted into later ones."""

import math
from collections import deque

import torch
from torch import Tensor, nn

from pml_ext._checks import check_in_range

POOL = 50_000
"""Patches that are kept, the newest."""

ENOUGH = 100
"""Patches to have seen before the first is pasted."""

AREA = (0.01, 0.5)
"""Of a patch, as a share of the image."""

HEIGHT_TO_WIDTH = (0.1, 10.0)


class RandomPatch(nn.Module):
    """Cuts a patch of every image into a pool, pastes one (half of them mirrored) with a probability (Zhou, ICCV 2019).

    Each process that loads data has its own pool. The pool is no part of a checkpoint: a resumed run starts with an
    empty one, so it does not repeat an uninterrupted run exactly.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        check_in_range(probability, 0, 1, "PROB")
        self.probability = probability
        self.pool: deque[Tensor] = deque(maxlen=POOL)

    def forward(self, image: Tensor) -> Tensor:
        """image (C, H, W)."""
        if (patch := _cut(image)) is not None:
            self.pool.append(patch)
        if len(self.pool) < ENOUGH or torch.rand(()) >= self.probability:
            return image
        patch = self.pool[int(torch.randint(len(self.pool), ()))]
        if torch.rand(()) < 0.5:
            patch = patch.flip(-1)
        height, width = patch.shape[-2:]
        if height > image.shape[-2] or width > image.shape[-1]:  # images of different sizes
            return image
        top, left = _corner(image, height, width)
        image = image.clone()
        image[..., top : top + height, left : left + width] = patch
        return image


def _cut(image: Tensor) -> Tensor | None:
    """A random patch; None where the image is too small for one."""
    rows, columns = image.shape[-2:]
    for _ in range(100):
        area = rows * columns * float(torch.empty(()).uniform_(*AREA))
        ratio = float(torch.empty(()).uniform_(*HEIGHT_TO_WIDTH))
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < height < rows and 0 < width < columns:
            top, left = _corner(image, height, width)
            return image[..., top : top + height, left : left + width].clone()
    return None


def _corner(image: Tensor, height: int, width: int) -> tuple[int, int]:
    rows, columns = image.shape[-2:]
    return int(torch.randint(rows - height + 1, ())), int(torch.randint(columns - width + 1, ()))
