"""JPEG files as most data sets have them, read by libjpeg-turbo without Pillow."""

from struct import unpack_from
from typing import TYPE_CHECKING

import simplejpeg
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

ORIENTATION = 0x0112  # of Exif; 1 is upright
_START, _EXIF_OR_XMP, _SCAN = b"\xff\xd8\xff", 0xFFE1, 0xFFDA
_FRAMES = (0xFFC0, 0xFFC1, 0xFFC2)  # baseline, extended and progressive; the others are rare


def decode_plain_jpeg(content: bytes, grey: bool) -> "Tensor | None":
    """Pillow's pixels of a JPEG file in half its time, a uint8 (1 or 3, h, w) tensor that lies in memory as (h, w, C).

    None where Pillow must look itself: another format, CMYK, a picture that Exif or XMP may turn, colours that become
    grey, more pixels than `Image.MAX_IMAGE_PIXELS`, anything that libjpeg finds wrong (it reads on; strict does not).
    """
    try:
        if not _is_plain(content, grey):
            return None
        pixels = simplejpeg.decode_jpeg(content, "GRAY" if grey else "RGB", strict=True)
    except Exception:  # of a damaged file, about which Pillow says more
        return None
    import torch  # as in pixels_of

    return torch.from_numpy(pixels.transpose(2, 0, 1))


def _is_plain(content: bytes, grey: bool) -> bool:
    """What the markers before the first scan say."""
    if not content.startswith(_START):
        return False
    place, plain = 2, False
    while (found := unpack_from(">HH", content, place))[0] != _SCAN:
        marker, length = found
        if marker == _EXIF_OR_XMP and _may_turn(content[place + 4 : place + 2 + length]):
            return False
        if marker in _FRAMES:
            bits, height, width, components = unpack_from(">BHHB", content, place + 4)
            largest = Image.MAX_IMAGE_PIXELS or height * width
            plain = bits == 8 and height * width <= largest and components in ((1,) if grey else (1, 3))
        place += 2 + length
    return plain


def _may_turn(segment: bytes) -> bool:
    if not segment.startswith(b"Exif\0\0"):
        return b"Orientation" in segment
    exif = Image.Exif()
    exif.load(segment)
    return bool(exif.get(ORIENTATION, 1) != 1)
