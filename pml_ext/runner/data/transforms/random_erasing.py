"""Random erasing (Zhong et al., AAAI 2020) of a batch, with the random numbers of torchvision's v2.RandomErasing."""

import math

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_in_range
from pml_ext.runner.data.transforms.transform import BatchStep

AREA = (0.02, 0.33)
"""Of the rectangle, as a share of the picture."""

HEIGHT_TO_WIDTH = (0.3, 3.3)

_ATTEMPTS = 10


class RandomErasing(BatchStep):
    """Fills a rectangle of a picture with one colour, with a probability; the batch becomes float32.

    value: of each channel, in 0–255; MODEL.PIXEL_MEAN, of which the network sees 0, is no whole number.
    """

    def __init__(self, probability: float, value: list[float]) -> None:
        check_in_range(probability, 0, 1, "PROB")
        self.probability, self.value = probability, value
        self._log_ratio = torch.log(torch.tensor(HEIGHT_TO_WIDTH)).tolist()

    def draw(self, picture: Tensor) -> np.ndarray:
        """top, bottom, left and right of the rectangle; zeros for none."""
        nothing = np.zeros(4, dtype=np.int64)
        if torch.rand(1) >= self.probability:
            return nothing
        rows, columns = picture.shape[-2:]
        for _ in range(_ATTEMPTS):
            area = rows * columns * torch.empty(1).uniform_(*AREA).item()
            ratio = torch.empty(1).uniform_(*self._log_ratio).exp().item()
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height < rows and width < columns:
                top = int(torch.randint(rows - height + 1, ()))
                left = int(torch.randint(columns - width + 1, ()))
                return np.array([top, top + height, left, left + width])
        return nothing

    def apply(self, pictures: Tensor, draws: np.ndarray) -> Tensor:
        erased = pictures.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        colour = torch.tensor(self.value)[:, None, None].to(erased.device, non_blocking=True)
        for row, (top, bottom, left, right) in enumerate(draws.tolist()):
            if bottom:
                erased[row, :, top:bottom, left:right] = colour
        return erased
