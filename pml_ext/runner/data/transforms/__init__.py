"""Image transforms with torchvision v2, in FastReID's order. Pixels stay 0–255; the model subtracts PIXEL_MEAN."""

import torch
from torch import nn
from torchvision.transforms import InterpolationMode, v2
from yacs.config import CfgNode as CN

from pml_ext.runner.data.transforms.random_patch import RandomPatch


def build_transform(options: CN, *, training: bool) -> v2.Compose:
    """uint8 (C, h, w) to float (C, H, W) in 0–255; in training with the random steps, to SIZE_TRAIN."""
    size = list(options.SIZE_TRAIN if training else options.SIZE_TEST)
    interpolation = InterpolationMode(options.INTERPOLATION)
    steps: list[nn.Module] = []
    if training and options.AUTOAUG.ENABLED:
        steps.append(_sometimes(v2.AutoAugment(), options.AUTOAUG.PROB))
    if size[0] > 0:
        steps.append(v2.Resize(size, interpolation=interpolation))
    if options.CROP.ENABLED:
        steps.append(_crop(options.CROP, interpolation, training))
    if training:
        steps += _spatial_and_colour(options, size)
    steps.append(v2.ToDtype(torch.float32, scale=False))
    if training and options.REA.ENABLED:
        steps.append(v2.RandomErasing(options.REA.PROB, value=list(options.REA.VALUE)))
    if training and options.RPT.ENABLED:
        steps.append(RandomPatch(options.RPT.PROB))
    return v2.Compose(steps)


def input_size(options: CN) -> list[int] | None:
    """[height, width] of the images that the model sees in training; None where they keep a side of their own."""
    if options.CROP.ENABLED:
        return [options.CROP.SIZE[0], options.CROP.SIZE[-1]]
    size = list(options.SIZE_TRAIN)
    return size if len(size) == 2 and size[0] > 0 else None


def _spatial_and_colour(options: CN, size: list[int]) -> list[nn.Module]:
    """The random steps between resizing and the conversion to float."""
    steps = list[nn.Module]()
    if options.PADDING.ENABLED:
        steps += [v2.Pad(options.PADDING.SIZE, padding_mode=options.PADDING.MODE), v2.RandomCrop([size[0], size[-1]])]
    if options.FLIP.ENABLED:
        steps.append(v2.RandomHorizontalFlip(options.FLIP.PROB))
    if options.CJ.ENABLED:
        node = options.CJ
        jitter = v2.ColorJitter(node.BRIGHTNESS, node.CONTRAST, node.SATURATION, node.HUE)
        steps.append(_sometimes(jitter, node.PROB))
    if options.AFFINE.ENABLED:
        steps.append(v2.RandomAffine(10, scale=(0.9, 1.1), shear=0.1))
    if options.AUGMIX.ENABLED:
        mix = v2.AugMix(severity=1, mixture_width=3, chain_depth=1, alpha=0.1, all_ops=False)
        steps.append(_sometimes(mix, options.AUGMIX.PROB))
    return steps


def _crop(options: CN, interpolation: InterpolationMode, training: bool) -> v2.Transform:
    size = [options.SIZE[0], options.SIZE[-1]]
    if not training:
        return v2.CenterCrop(size)
    return v2.RandomResizedCrop(size, scale=options.SCALE, ratio=options.RATIO, interpolation=interpolation)


def _sometimes(transform: nn.Module, probability: float) -> v2.Transform:
    return v2.RandomApply([transform], probability)
