"""Image transforms with torchvision v2, in FastReID's order. Pixels stay 0–255; the model subtracts PIXEL_MEAN."""

import torch
from torchvision.transforms import v2
from yacs.config import CfgNode as CN

from pml_ext.training.config import ConfigError, require


def build_transform(cfg: CN, training: bool) -> v2.Compose:
    """uint8 (C, h, w) to float (C, H, W) in 0–255: resize; in training also flip and pad-and-crop."""
    size = cfg.INPUT.SIZE_TRAIN if training else cfg.INPUT.SIZE_TEST
    key = f"INPUT.SIZE_{'TRAIN' if training else 'TEST'}"
    if len(size) not in (1, 2) or any(not isinstance(s, int) or s < 0 for s in size):
        raise ConfigError(f"{key} must be [height, width], or [0] to keep the image's size; got {list(size)}")
    steps: list[torch.nn.Module] = []
    if size[0] > 0:
        steps.append(v2.Resize([size[0], size[-1]], antialias=True))
    if training and cfg.INPUT.FLIP.ENABLED:
        steps.append(v2.RandomHorizontalFlip(cfg.INPUT.FLIP.PROB))
    if training and cfg.INPUT.PADDING.ENABLED:
        require(cfg.INPUT.PADDING.MODE, ["constant", "edge", "reflect", "symmetric"], "INPUT.PADDING.MODE")
        if size[0] <= 0:
            raise ConfigError(f"INPUT.PADDING crops to {key}, which must then be [height, width]; got {list(size)}")
        steps += [
            v2.Pad(cfg.INPUT.PADDING.SIZE, padding_mode=cfg.INPUT.PADDING.MODE),
            v2.RandomCrop([size[0], size[-1]]),
        ]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=False)])
