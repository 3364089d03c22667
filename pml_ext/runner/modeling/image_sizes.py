"""The sizes of the images that a network sees."""

from typing import NamedTuple

from yacs.config import CfgNode as CN


class ImageSizes(NamedTuple):
    """Height and width in pixels, for training and for tests; one number: the shorter side; 0: as they are."""

    train: list[int]
    test: list[int]

    @classmethod
    def of(cls, options: CN) -> "ImageSizes":
        """From the config's INPUT; CROP's size if CROP is enabled."""
        if options.CROP.ENABLED:
            size = [options.CROP.SIZE[0], options.CROP.SIZE[-1]]
            return cls(size, size)
        return cls(list(options.SIZE_TRAIN), list(options.SIZE_TEST))
