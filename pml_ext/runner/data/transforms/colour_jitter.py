"""Colour jitter of a batch, with the random numbers of torchvision's v2.ColorJitter."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from yacs.config import CfgNode as CN

from pml_ext._checks import check_in_range
from pml_ext.runner.data.transforms.transform import BatchStep

Factor: TypeAlias = Tensor | float

_GREY = (0.2989, 0.587, 0.114)
_HUE_SCALE = 255.999 / 255  # v2 turns [0, 1] into bytes by rounding 255.999 times the value down


class ColourJitter(BatchStep):
    """Changes brightness, contrast, saturation and hue of a picture in random order, with a probability.

    The batch becomes float32, of whole numbers. v2 computes the same ones from bytes, but for 1 of 255 where
    saturation or hue round the other way: fewer than 1 in 1,000 values. Grey pictures keep saturation and hue.
    """

    def __init__(self, options: CN) -> None:
        """options: the config's INPUT.CJ. ValueError: a range that v2 refuses, a probability outside of [0, 1]."""
        check_in_range(options.PROB, 0, 1, "PROB")
        self.probability = options.PROB
        ranges = v2.ColorJitter(options.BRIGHTNESS, options.CONTRAST, options.SATURATION, options.HUE)
        self.ranges = (ranges.brightness, ranges.contrast, ranges.saturation, ranges.hue)

    def __call__(self, picture: Tensor) -> Tensor:
        """As bytes where they were bytes: AugMix, which comes after it, takes floats for 0–1."""
        return super().__call__(picture).to(picture.dtype)

    def draw(self, picture: Tensor) -> np.ndarray:
        """The numbers of the four changes in their order, −1 for none, then the factor of each change."""
        drawn = np.full(8, -1.0)
        if torch.rand(1) >= self.probability:
            return drawn
        order = torch.randperm(4).tolist()
        for change, between in enumerate(self.ranges):
            if between is not None:
                drawn[order.index(change)] = change
                drawn[4 + change] = torch.empty(1).uniform_(*between).item()
        return drawn

    def apply(self, pictures: Tensor, draws: np.ndarray) -> Tensor:
        jittered = pictures.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        (change_each if jittered.is_cpu else change_in_groups)(jittered, draws)
        return jittered


def change_each(pictures: Tensor, draws: np.ndarray) -> None:
    """Jitter float32 pictures in place, one after the other: each stays in the processor's cache."""
    changes = _changes_of(pictures)
    for row in np.flatnonzero((draws[:, :4] >= 0).any(axis=1)).tolist():
        for number in map(int, draws[row, :4]):
            if 0 <= number < len(changes):
                changes[number](pictures[row : row + 1], float(draws[row, 4 + number]))


def change_in_groups(pictures: Tensor, draws: np.ndarray) -> None:
    """The same by 16 groups of pictures whose next change is the same: a GPU starts few kernels."""
    factors = torch.from_numpy(draws[:, 4:]).to(pictures, non_blocking=True)
    for place in range(4):
        for number, change in enumerate(_changes_of(pictures)):
            rows = np.flatnonzero(draws[:, place] == number)
            if len(rows):
                chosen = torch.from_numpy(rows).to(pictures.device, non_blocking=True)
                part = pictures[chosen]
                change(part, factors[chosen, number].view(-1, 1, 1, 1))
                pictures[chosen] = part


def _changes_of(pictures: Tensor) -> list[Callable[[Tensor, Factor], None]]:
    """By their numbers; grey pictures have no colour to change."""
    return [_brighten, _contrast, *([_saturate, _turn_hue] if pictures.shape[1] == 3 else [])]


# Each changes float32 pictures (n, C, H, W) of whole numbers in 0–255 in place, by a factor or (n, 1, 1, 1) of them.


def _brighten(pictures: Tensor, factor: Factor) -> None:
    pictures.mul_(factor).clamp_(max=255).floor_()


def _contrast(pictures: Tensor, factor: Factor) -> None:
    _blend(pictures, _grey(pictures).mean((-2, -1), keepdim=True), factor)


def _saturate(pictures: Tensor, factor: Factor) -> None:
    _blend(pictures, _grey(pictures), factor)


def _blend(pictures: Tensor, others: Tensor, factor: Factor) -> None:
    pictures.mul_(factor).add_(others * (1 - factor)).clamp_(0, 255).floor_()


def _grey(pictures: Tensor) -> Tensor:
    if pictures.shape[1] == 1:
        return pictures
    red, green, blue = pictures.split(1, dim=1)
    grey: Tensor = red.mul(_GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2]).floor_()
    return grey


def _turn_hue(pictures: Tensor, turn: Factor) -> None:
    """Add `turn`, in circles, to the hue of RGB pictures; the largest channel and the range of the three stay.

    Masks are 0.0 and 1.0: torch.where takes ten times as long on a CPU.
    """
    red, green, blue = pictures.split(1, dim=1)
    largest = torch.maximum(red, green).clamp_(min=blue)
    span = largest - torch.minimum(red, green).clamp_(max=blue)
    is_red = torch.eq(largest, red, out=torch.empty_like(red))
    is_green = torch.eq(largest, green, out=torch.empty_like(red)).mul_(1 - is_red)
    is_blue = 1 - is_red - is_green
    # The hue in sixths of a circle: red is 0, green 2, blue 4.
    hue = is_red.mul_(green - blue).addcmul_(is_green, blue - red).addcmul_(is_blue, red - green)
    hue.div_(span.clamp(min=1)).add_(is_green, alpha=2).add_(is_blue, alpha=4).add_(turn, alpha=6)
    hue.sub_(hue.div(6).floor_(), alpha=6)
    # A channel is `largest` within a sixth of its own hue, and lacks all of `span` from two sixths on.
    lacks = ((red, 2 - (hue - 3).abs_()), (green, (hue - 2).abs_() - 1), (blue, (hue - 4).abs_() - 1))
    for channel, lacking in lacks:
        torch.sub(largest, lacking.clamp_(0, 1).mul_(span), out=channel).mul_(_HUE_SCALE).floor_()
