"""Small copies of pictures, from files and from tensors."""

import base64
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from pml_ext._errors import UserError

if TYPE_CHECKING:
    from pml_ext.runner.data.datasets.image_set import ImageSet

_SIDE = 112


def shrink(image: Tensor, side: int) -> np.ndarray:
    """(1 or 3, h, w) uint8 to (h', w', 3) uint8 with no side above `side`."""
    from PIL import Image

    small = Image.fromarray(image.permute(1, 2, 0).expand(-1, -1, 3).contiguous().numpy())
    small.thumbnail((side, side))
    return np.asarray(small)


def why_no_pictures(images: "ImageSet") -> str | None:
    """Why a set has embeddings only; None for one with pictures."""
    try:
        _ = images.images[0]
    except UserError as error:
        return str(error)
    return None


def data_uri(content: bytes, kind: str = "png") -> str:
    """The content of a picture file as the source of an <img>."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail(picture: str | Path | Tensor | None) -> str | None:
    """A picture of at most 112 pixels a side as the source of an <img>; None where it cannot be read.

    A file (regular, up to Pillow's own limit of pixels) or (1 or 3, h, w) uint8 pixels.
    """
    if picture is None or (not isinstance(picture, Tensor) and not os.path.isfile(picture)):
        return None
    from PIL import Image, ImageOps

    content = io.BytesIO()
    try:
        if isinstance(picture, Tensor):
            small = Image.fromarray(shrink(picture, _SIDE))
        else:
            with Image.open(picture) as image:
                image.draft("RGB", (_SIDE, _SIDE))
                small = ImageOps.exif_transpose(image).convert("RGB")
                small.thumbnail((_SIDE, _SIDE))
        small.save(content, "JPEG", quality=85)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return data_uri(content.getvalue(), "jpeg")
