"""Mirror images and shifted crops, on bytes, with the random numbers of torchvision's transforms of these names."""

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from pml_ext._checks import check_in_range


class RandomFlip:
    """Mirrors a picture (C, H, W) with a probability; v2's class takes three times as long."""

    def __init__(self, probability: float) -> None:
        check_in_range(probability, 0, 1, "PROB")
        self.probability = probability

    def __call__(self, picture: Tensor) -> Tensor:
        return picture if torch.rand(1) >= self.probability else picture.flip(-1)


class PadAndCrop:
    """Pads every side of a picture (C, h, w), then cuts out a part of `size` (height, width), as v2.Pad and RandomCrop.

    mode: constant (black), edge, reflect or symmetric. Black is padded here because v2 takes six times as long for
    pictures that lie in memory as (h, w, C), as those of decoders do.
    """

    def __init__(self, size: tuple[int, int], padding: int, mode: str) -> None:
        self.size, self.padding, self.mode = size, padding, mode

    def __call__(self, picture: Tensor) -> Tensor:
        padded = self._pad(picture)
        spare = [side - wanted for side, wanted in zip(padded.shape[-2:], self.size, strict=True)]
        if min(spare) < 0:
            raise ValueError(
                f"INPUT.PADDING crops to INPUT.SIZE_TRAIN {[*self.size]}; a padded picture has {[*padded.shape[-2:]]}"
            )
        top, left = (int(torch.randint(places + 1, ())) if places else 0 for places in spare)
        return padded[..., top : top + self.size[0], left : left + self.size[1]]

    def _pad(self, picture: Tensor) -> Tensor:
        if self.mode != "constant":
            padded: Tensor = F.pad(picture, [self.padding], padding_mode=self.mode)
            return padded
        (channels, height, width), border = picture.shape, self.padding
        black = picture.new_zeros(height + 2 * border, width + 2 * border, channels).permute(2, 0, 1)
        black[:, border : border + height, border : border + width] = picture
        return black
