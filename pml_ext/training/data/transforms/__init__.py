"""Image transforms with torchvision v2, in FastReID's order. Pixels stay 0–255; the model subtracts PIXEL_MEAN."""

import torch
from torch import nn
from torchvision.transforms import InterpolationMode, v2
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError, require
from pml_ext.training.data.transforms.random_patch import RandomPatch

TRANSFORMS = {
    "AUTOAUG": "AutoAugment, the ImageNet policy (torchvision's; its ranges of rotation and colour are the paper's)",
    "CROP": "random resized crop; a centre crop in tests",
    "PADDING": "pad, then crop at random",
    "FLIP": "horizontal flip",
    "CJ": "colour jitter",
    "AFFINE": "rotation by up to 10°, scale 0.9–1.1, shear by up to 0.1°",
    "AUGMIX": "AugMix: three chains of one operation, severity 1",
    "REA": "random erasing",
    "RPT": "random patch: parts of other images pasted in",
}
"""Switches under INPUT, each {ENABLED, …}, in the order in which they act (CROP before PADDING)."""

_INTERPOLATIONS = ("bicubic", "bilinear", "nearest")


def build_transform(options: CN, *, training: bool, channels: int) -> v2.Compose:
    """uint8 (C, h, w) to float (C, H, W) in 0–255.

    Args:
        options: the config's INPUT.
        training: with the random steps, to SIZE_TRAIN.
        channels: of the images, as many as MODEL.PIXEL_MEAN has values.
    """
    key = f"INPUT.SIZE_{'TRAIN' if training else 'TEST'}"
    size = _size(options.SIZE_TRAIN if training else options.SIZE_TEST, key)
    require(options.INTERPOLATION, _INTERPOLATIONS, "INPUT.INTERPOLATION")
    interpolation = InterpolationMode(options.INTERPOLATION)
    steps: list[nn.Module] = []
    if training and options.AUTOAUG.ENABLED:
        steps.append(_sometimes(v2.AutoAugment(), options.AUTOAUG.PROB, "INPUT.AUTOAUG"))
    if size[0] > 0:
        steps.append(v2.Resize(size, interpolation=interpolation))
    if options.CROP.ENABLED:
        steps.append(_crop(options.CROP, interpolation, training))
    if training:
        steps += _spatial_and_colour(options, size, key)
    steps.append(v2.ToDtype(torch.float32, scale=False))
    if training and options.REA.ENABLED:
        value = list(options.REA.VALUE)
        if len(value) != channels:
            raise ConfigError(
                f"INPUT.REA.VALUE must have one value for each of the {channels} channels of MODEL.PIXEL_MEAN; "
                f"got {value}"
            )
        steps.append(v2.RandomErasing(_chance(options.REA.PROB, "INPUT.REA"), value=value))
    if training and options.RPT.ENABLED:
        steps.append(RandomPatch(_chance(options.RPT.PROB, "INPUT.RPT")))
    return v2.Compose(steps)


def input_size(options: CN) -> list[int] | None:
    """[height, width] of the images that the model sees in training; None where they keep a side of their own.

    Args:
        options: the config's INPUT.

    Raises:
        ConfigError: sizes of another form.
    """
    size = _size(options.CROP.SIZE, "INPUT.CROP.SIZE") if options.CROP.ENABLED else None
    if size is not None:
        return [size[0], size[-1]]
    size = _size(options.SIZE_TRAIN, "INPUT.SIZE_TRAIN")
    return size if len(size) == 2 and size[0] > 0 else None


def _spatial_and_colour(options: CN, size: list[int], key: str) -> list[nn.Module]:
    """The random steps between resizing and the conversion to float."""
    steps = list[nn.Module]()
    if options.PADDING.ENABLED:
        require(options.PADDING.MODE, ["constant", "edge", "reflect", "symmetric"], "INPUT.PADDING.MODE")
        if size[0] <= 0:
            raise ConfigError(f"INPUT.PADDING crops to {key}, which must then be [height, width]; got {size}")
        if options.PADDING.MODE in ("reflect", "symmetric") and min(size) <= options.PADDING.SIZE:
            raise ConfigError(
                f"INPUT.PADDING.SIZE {options.PADDING.SIZE} must be below {key} {size}, which {options.PADDING.MODE} "
                "mirrors"
            )
        steps += [v2.Pad(options.PADDING.SIZE, padding_mode=options.PADDING.MODE), v2.RandomCrop([size[0], size[-1]])]
    if options.FLIP.ENABLED:
        steps.append(v2.RandomHorizontalFlip(_chance(options.FLIP.PROB, "INPUT.FLIP")))
    if options.CJ.ENABLED:
        node = options.CJ
        try:
            jitter = v2.ColorJitter(node.BRIGHTNESS, node.CONTRAST, node.SATURATION, node.HUE)
        except ValueError as error:
            raise ConfigError(f"INPUT.CJ: {error}") from error
        steps.append(_sometimes(jitter, node.PROB, "INPUT.CJ"))
    if options.AFFINE.ENABLED:
        steps.append(v2.RandomAffine(10, scale=(0.9, 1.1), shear=0.1))
    if options.AUGMIX.ENABLED:
        mix = v2.AugMix(severity=1, mixture_width=3, chain_depth=1, alpha=0.1, all_ops=False)
        steps.append(_sometimes(mix, options.AUGMIX.PROB, "INPUT.AUGMIX"))
    return steps


def _crop(options: CN, interpolation: InterpolationMode, training: bool) -> v2.Transform:
    size = _size(options.SIZE, "INPUT.CROP.SIZE")
    if size[0] <= 0:
        raise ConfigError(f"INPUT.CROP.SIZE must be [height, width] or [side]; got {size}")
    size = [size[0], size[-1]]
    if not training:
        return v2.CenterCrop(size)
    for name in ("SCALE", "RATIO"):
        given = list(options[name])
        if len(given) != 2 or not 0 < given[0] <= given[1]:
            raise ConfigError(f"INPUT.CROP.{name} must be two ascending numbers above 0; got {given}")
    return v2.RandomResizedCrop(size, scale=options.SCALE, ratio=options.RATIO, interpolation=interpolation)


def _size(value: list[int], key: str) -> list[int]:
    if len(value) not in (1, 2) or any(not isinstance(side, int) or side < 0 for side in value):
        raise ConfigError(
            f"{key} must be [height, width], [side] for the shorter side, or [0] to keep the image's size; "
            f"got {list(value)}"
        )
    return list(value)


def _sometimes(transform: nn.Module, probability: float, key: str) -> v2.Transform:
    return v2.RandomApply([transform], _chance(probability, key))


def _chance(probability: float, key: str) -> float:
    if not 0 <= probability <= 1:
        raise ConfigError(f"{key}.PROB must be in [0, 1]; got {probability}")
    return float(probability)
