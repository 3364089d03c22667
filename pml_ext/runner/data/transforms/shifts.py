"""Mirror images and shifted crops, on bytes, with the random numbers of torchvision's transforms of these names."""

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from pml_ext._checks import check_in_range
from pml_ext.runner.data.transforms.transform import BatchStep


class RandomFlip(BatchStep):
    """Mirrors a picture with a probability, as v2.RandomHorizontalFlip."""

    def __init__(self, probability: float) -> None:
        check_in_range(probability, 0, 1, "PROB")
        self.probability = probability

    def draw(self, picture: Tensor) -> np.ndarray:
        """Whether to mirror it."""
        return np.array([torch.rand(1).item() < self.probability])

    def apply(self, pictures: Tensor, draws: np.ndarray) -> Tensor:
        mirrored = pictures.clone()
        for row in np.flatnonzero(draws).tolist():
            mirrored[row] = pictures[row].flip(-1)
        return mirrored


class PadAndCrop:
    """Pads every side of a picture (C, h, w), then cuts out a part of `size` (height, width), as v2.Pad and RandomCrop.

    mode: constant (black), edge, reflect or symmetric.
    """

    def __init__(self, size: tuple[int, int], padding: int, mode: str) -> None:
        if min(size) <= 0:
            raise ValueError(f"crops to INPUT.SIZE_TRAIN, which must then be [height, width]; it is {[*size]}")
        if mode in ("reflect", "symmetric") and min(size) <= padding:
            raise ValueError(f"SIZE must be below INPUT.SIZE_TRAIN {[*size]}, which {mode} mirrors; got {padding}")
        self.size, self.padding, self.mode = size, padding, mode

    def __call__(self, picture: Tensor) -> Tensor:
        sides = [side + 2 * self.padding for side in picture.shape[-2:]]
        spare = [side - wanted for side, wanted in zip(sides, self.size, strict=True)]
        if min(spare) < 0:
            raise ValueError(f"INPUT.PADDING crops to INPUT.SIZE_TRAIN {[*self.size]}; a padded picture has {sides}")
        top, left = (int(torch.randint(places + 1, ())) if places else 0 for places in spare)
        if self.mode == "constant":
            return self._on_black(picture, top - self.padding, left - self.padding)
        padded: Tensor = F.pad(picture, [self.padding], padding_mode=self.mode)
        return padded[..., top : top + self.size[0], left : left + self.size[1]]

    def _on_black(self, picture: Tensor, top: int, left: int) -> Tensor:
        """The part of `size` from (top, left) on, black outside of the picture.

        Without a padded picture in between, and in the layout of decoders, it takes a fraction of the time.
        """
        channels, height, width = picture.shape
        part = picture.new_zeros(*self.size, channels).permute(2, 0, 1)
        rows = slice(max(top, 0), max(min(top + self.size[0], height), 0))
        columns = slice(max(left, 0), max(min(left + self.size[1], width), 0))
        inside = picture[:, rows, columns]
        y, x = rows.start - top, columns.start - left
        part[:, y : y + inside.shape[1], x : x + inside.shape[2]] = inside
        return part
