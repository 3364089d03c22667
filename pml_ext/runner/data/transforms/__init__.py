"""Image transforms in FastReID's order. Pictures stay bytes, and the model subtracts PIXEL_MEAN."""

from functools import partial

from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F
from yacs.config import CfgNode as CN

from pml_ext.runner.data.transforms.colour_jitter import ColourJitter
from pml_ext.runner.data.transforms.random_erasing import RandomErasing
from pml_ext.runner.data.transforms.random_patch import RandomPatch
from pml_ext.runner.data.transforms.shifts import PadAndCrop, RandomFlip
from pml_ext.runner.data.transforms.transform import Step, Transform


def build_transform(options: CN, *, training: bool) -> Transform:
    """uint8 (C, h, w) to uint8 (C, H, W); in training with the random steps, to SIZE_TRAIN and perhaps float32."""
    size = list(options.SIZE_TRAIN if training else options.SIZE_TEST)
    interpolation = InterpolationMode(options.INTERPOLATION)
    steps: list[Step] = []
    if training and options.AUTOAUG.ENABLED:
        steps.append(_sometimes(v2.AutoAugment(), options.AUTOAUG.PROB))
    if size[0] > 0:
        steps.append(partial(F.resize, size=size, interpolation=interpolation))
    if options.CROP.ENABLED:
        steps.append(_crop(options.CROP, interpolation, training))
    if training:
        steps += _random_steps(options, size)
    return Transform(steps)


def _random_steps(options: CN, size: list[int]) -> list[Step]:
    """The random steps after resizing."""
    steps = list[Step]()
    if options.PADDING.ENABLED:
        steps.append(PadAndCrop((size[0], size[-1]), options.PADDING.SIZE, options.PADDING.MODE))
    if options.FLIP.ENABLED:
        steps.append(RandomFlip(options.FLIP.PROB))
    if options.CJ.ENABLED:
        steps.append(ColourJitter(options.CJ))
    if options.AFFINE.ENABLED:
        steps.append(v2.RandomAffine(10, scale=(0.9, 1.1), shear=0.1))
    if options.AUGMIX.ENABLED:
        mix = v2.AugMix(severity=1, mixture_width=3, chain_depth=1, alpha=0.1, all_ops=False)
        steps.append(_sometimes(mix, options.AUGMIX.PROB))
    if options.REA.ENABLED:
        steps.append(RandomErasing(options.REA.PROB, list(options.REA.VALUE)))
    if options.RPT.ENABLED:
        steps.append(RandomPatch(options.RPT.PROB))
    return steps


def _crop(options: CN, interpolation: InterpolationMode, training: bool) -> v2.Transform:
    size = [options.SIZE[0], options.SIZE[-1]]
    if not training:
        return v2.CenterCrop(size)
    return v2.RandomResizedCrop(size, scale=options.SCALE, ratio=options.RATIO, interpolation=interpolation)


def _sometimes(transform: v2.Transform, probability: float) -> v2.Transform:
    return v2.RandomApply([transform], probability)
