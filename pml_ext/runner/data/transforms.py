"""Image transforms for training, in FastReID's order; the model subtracts PIXEL_MEAN.

Each is registered with its node below INPUT. The transforms of this file are applied in the order of their definition.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from timm.data import auto_augment
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F
from yacs.config import CfgNode as CN

from pml_ext._shared.checks import check_in_range, check_whole
from pml_ext._shared.errors import ArgumentError, UserError
from pml_ext.runner.config.part_keys import arguments_from, construct, node_of
from pml_ext.runner.registry import TRANSFORM_REGISTRY, Entry

Step = Callable[[Tensor], Tensor]


class Transform:
    """A sequence of steps, from an image (C, h, w) to another one."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    def __call__(self, image: Tensor) -> Tensor:
        for step in self.steps:
            image = step(image)
        return image


@TRANSFORM_REGISTRY.register(node="AUTOAUG")
class AutoAugment:
    """Applies AutoAugment with the ImageNet policy, with FastReID's strengths and grey fill, which are timm's."""

    def __init__(self, prob: float) -> None:
        check_in_range(prob, 0, 1, "prob")
        self.probability = prob

    def __call__(self, image: Tensor) -> Tensor:
        """image (C, H, W)."""
        if torch.rand(()) >= self.probability:
            return image
        options = {"translate_const": 57, "img_mean": (128,) * len(image)}
        policy = auto_augment.auto_augment_policy("original", options)  # type: ignore[no-untyped-call]
        augment = auto_augment.AutoAugment(policy)  # type: ignore[no-untyped-call]
        state = random.getstate()
        random.seed(int(torch.randint(2**31, ())))  # timm draws from Python's generator, and samples have torch's seed
        try:
            changed = augment(F.to_pil_image(image))
        finally:
            random.setstate(state)
        pixels: Tensor = F.pil_to_tensor(changed)
        return pixels


@TRANSFORM_REGISTRY.register(node="CROP")
class RandomResizedCrop(v2.RandomResizedCrop):
    """Crops and resizes at random; in tests a centre crop."""

    def __init__(
        self,
        size: Sequence[int],
        scale: Sequence[float],
        ratio: Sequence[float],
        resize_interpolation: InterpolationMode,
    ) -> None:
        super().__init__([size[0], size[-1]], scale, ratio, interpolation=resize_interpolation)


@TRANSFORM_REGISTRY.register(node="PADDING", keys={"SIZE": "padding"})
class PadAndCrop(v2.RandomCrop):
    """Pads every side, then crops to SIZE_TRAIN at random.

    size_train: [height, width]. mode: constant (black), edge, reflect or symmetric.
    """

    def __init__(self, size_train: Sequence[int], padding: int, mode: str) -> None:
        check_whole(padding, "padding", 0)
        size = [size_train[0], size_train[-1]]
        if min(size) <= 0:
            raise ValueError(f"crops to INPUT.SIZE_TRAIN, which must then be [height, width]; it is {size}")
        if mode in ("reflect", "symmetric") and min(size) <= padding:
            raise ArgumentError(
                "padding", f"must be below INPUT.SIZE_TRAIN {size}, which {mode} mirrors; got {padding}"
            )
        super().__init__(size, padding, padding_mode=mode)


@TRANSFORM_REGISTRY.register(node="FLIP")
class RandomFlip(v2.RandomHorizontalFlip):
    """Flips horizontally, like v2.RandomHorizontalFlip."""

    def __init__(self, prob: float) -> None:
        check_in_range(prob, 0, 1, "prob")
        super().__init__(prob)


@TRANSFORM_REGISTRY.register(node="CJ")
class ColourJitter(v2.RandomApply):
    """Changes brightness, contrast, saturation and hue in random order, like v2.ColorJitter."""

    def __init__(self, prob: float, brightness: float, contrast: float, saturation: float, hue: float) -> None:
        super().__init__([v2.ColorJitter(brightness, contrast, saturation, hue)], prob)


@TRANSFORM_REGISTRY.register(node="AFFINE")
class RandomAffine(v2.RandomAffine):
    """Rotates by up to 10°, scales by 0.9–1.1, shears by up to 0.1°."""

    def __init__(self) -> None:
        super().__init__(10, scale=(0.9, 1.1), shear=0.1)


@TRANSFORM_REGISTRY.register(node="AUGMIX")
class AugMix(v2.RandomApply):
    """Applies AugMix: three chains of one operation, severity 1."""

    def __init__(self, prob: float) -> None:
        mix = v2.AugMix(severity=1, mixture_width=3, chain_depth=1, alpha=0.1, all_ops=False)
        super().__init__([mix], prob)


@TRANSFORM_REGISTRY.register(node="REA")
class RandomErasing(v2.RandomErasing):
    """Fills a rectangle with one colour (random erasing).

    Images become float32, because MODEL.PIXEL_MEAN (0 for the network) is not an integer. Source: Zhong et al., AAAI
    2020. value: fill value of each channel, in 0–255.
    """

    def __init__(self, prob: float, value: Sequence[float]) -> None:
        check_in_range(prob, 0, 1, "prob")
        super().__init__(prob, value=list(value), inplace=True)

    def forward(self, image: Tensor) -> Tensor:
        """image (C, H, W)."""
        erased: Tensor = super().forward(image.float())
        return erased


@TRANSFORM_REGISTRY.register(node="RPT", after="REA")
class RandomPatch:
    """Pastes parts of earlier images, half of them mirrored (random patch).

    Each loader process has a separate pool, which checkpoints do not contain: a resumed run starts with an empty one,
    so it does not repeat an uninterrupted run exactly. Source: Zhou et al., ICCV 2019.
    """

    POOL = 50_000  # largest number of patches; the newest are kept
    ENOUGH = 100  # number of patches in the pool before the first is pasted
    AREA = (0.01, 0.5)  # area of a patch, as a share of the image
    HEIGHT_TO_WIDTH = (0.1, 10.0)

    def __init__(self, prob: float) -> None:
        check_in_range(prob, 0, 1, "prob")
        self.probability = prob
        self.pool: deque[Tensor] = deque(maxlen=self.POOL)

    def __call__(self, image: Tensor) -> Tensor:
        """image (C, H, W)."""
        if (patch := self._cut(image)) is not None:
            self.pool.append(patch)
        if len(self.pool) < self.ENOUGH or torch.rand(()) >= self.probability:
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

    def _cut(self, image: Tensor) -> Tensor | None:
        """Returns a random patch; None if the image is too small."""
        for _ in range(100):
            area = torch.empty(()).uniform_(*self.AREA).item()
            ratio = torch.empty(()).uniform_(*self.HEIGHT_TO_WIDTH).item()
            pixels = image.shape[-2] * image.shape[-1] * area
            height, width = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
            if 0 < height < image.shape[-2] and 0 < width < image.shape[-1]:
                top, left = _corner(image, height, width)
                return image[..., top : top + height, left : left + width].clone()
        return None


def _corner(image: Tensor, height: int, width: int) -> tuple[int, int]:
    rows, columns = image.shape[-2:]
    return int(torch.randint(rows - height + 1, ())), int(torch.randint(columns - width + 1, ()))


def build_step(options: CN, entry: Entry) -> Step:
    """Builds a transform from its node; converts its constructor's errors to UserError. options: the config's INPUT."""
    interpolation = InterpolationMode(options.INTERPOLATION)
    supplied = {"size_train": list(options.SIZE_TRAIN), "resize_interpolation": interpolation}
    arguments = arguments_from(options, entry, supplied)
    if not isinstance(entry.part, type):
        return partial(entry.part, **arguments)
    step: Step = construct(entry, f"INPUT.{entry.node}", **arguments)
    return step


def require_image(options: CN, entry: Entry, channels: int) -> None:
    """Raises a UserError if a user's transform that is on does not map an image of SIZE_TRAIN to a uint8 image."""
    if not node_of(options, entry).get("ENABLED"):
        return
    step = build_step(options, entry)
    if entry.is_ours:
        return
    side = [side or 256 for side in options.SIZE_TRAIN]
    image = torch.zeros(channels, side[0], side[-1], dtype=torch.uint8)
    with torch.random.fork_rng(devices=[]):
        changed = construct(replace(entry, part=step), f"INPUT.{entry.node}", image)
    kind = getattr(changed, "dtype", type(changed).__name__)
    shape = tuple(getattr(changed, "shape", ()))
    if kind != torch.uint8 or len(shape) != 3 or shape[0] != channels:
        raise UserError(
            f"INPUT.{entry.node}: {entry.name} of {entry.module} must map a uint8 image ({channels}, H, W) to "
            f"another one; it returned {kind} {shape}"
        )


def build_transform(options: CN, *, training: bool) -> Transform:
    """Returns the transform of uint8 (C, h, w) to uint8 (C, H, W); in training random steps may return float32."""
    size = list(options.SIZE_TRAIN if training else options.SIZE_TEST)
    resize = partial(F.resize, size=size, interpolation=InterpolationMode(options.INTERPOLATION))
    steps: list[Step] = []
    for entry in map(TRANSFORM_REGISTRY.entry, TRANSFORM_REGISTRY):
        if entry.node == "CROP" and size[0] > 0:
            steps.append(resize)
        if training and node_of(options, entry).get("ENABLED"):
            steps.append(build_step(options, entry))
    if not training and options.CROP.ENABLED:
        steps.append(v2.CenterCrop([options.CROP.SIZE[0], options.CROP.SIZE[-1]]))
    return Transform(steps)


def build_transforms(cfg: CN, is_train: bool = True) -> Transform:
    """Returns the transform of a config's INPUT, for training or for tests (FastReID's function)."""
    return build_transform(cfg.INPUT, training=is_train)
