"""Networks of other libraries that the configs here name: what has to fit them, known without loading the library."""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from yacs.config import CfgNode as CN

from pml_ext.runner.modeling.image_sizes import ImageSizes

_SIDES = (32, 1024)
"""Pixels of a side: a network without a size of its own makes a map of any image between them."""


class Known(NamedTuple):
    """What a network gives and takes.

    Attributes:
        features: of its map, which FEAT_DIM says.
        side: of the square images that it takes; 0: any.
        tokens: whether it pools by itself.
    """

    features: int
    side: int = 0
    tokens: bool = False


TORCHVISIONS = {"torchvision:googlenet": Known(1024), "torchvision:vgg16": Known(512)}
TIMMS = {
    "timm:tf_efficientnet_lite0": Known(1280),
    "timm:vit_small_patch16_224": Known(384, 224, tokens=True),
    "timm:vit_base_patch16_224": Known(768, 224, tokens=True),
    "timm:vit_large_patch16_224": Known(1024, 224, tokens=True),
    "timm:vit_base_patch16_clip_224": Known(768, 224, tokens=True),
    "timm:vit_base_patch14_dinov2": Known(768, 518, tokens=True),
}
# Whatever comes after 1 may name them otherwise; then, and where there is no timm, the network is built to find out.
_TIMM_RELEASES = "1."


def fits_a_known_network(backbone: CN, *, channels: int, sizes: ImageSizes) -> bool:
    """Whether the config's backbone is in the tables, with its features, for such images.

    Args:
        backbone: the config's MODEL.BACKBONE.
        channels: of the images.
        sizes: of the images.
    """
    known = TORCHVISIONS.get(backbone.NAME)
    if known is not None:
        return bool(known.features == backbone.FEAT_DIM) and channels == 3
    known = TIMMS.get(backbone.NAME)
    if known is None or known.features != backbone.FEAT_DIM or not _is_timm_as_known():
        return False
    if known.side:
        return sizes.train == sizes.test == [known.side, known.side]
    return all(_SIDES[0] <= side <= _SIDES[1] for size in sizes for side in size)


def makes_tokens(name: str) -> bool:
    """Whether a known network pools by itself, so that POOL_LAYER Identity fits it."""
    return name in TIMMS and TIMMS[name].tokens


def _is_timm_as_known() -> bool:
    try:
        return version("timm").startswith(_TIMM_RELEASES)
    except PackageNotFoundError:
        return False
