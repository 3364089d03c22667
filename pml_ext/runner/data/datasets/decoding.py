"""Decodes image files to 8-bit pixels, in upright orientation; common JPEG files without Pillow, in half the time."""

from struct import unpack_from
from typing import TYPE_CHECKING

import simplejpeg
from PIL import Image

from pml_ext._images import decode, exif_orientation, opened, turned

if TYPE_CHECKING:
    from torch import Tensor

_START, _EXIF_OR_XMP, _SCAN = b"\xff\xd8\xff", 0xFFE1, 0xFFDA
_FRAMES = (0xFFC0, 0xFFC1, 0xFFC2)  # baseline, extended and progressive; the others are rare


def decode_image(content: bytes, name: str, grey: bool) -> "Tensor":
    """Decodes an image file to uint8 (1 or 3, h, w) as `pml_ext._images.pixels_of` describes.

    Raises UserError for damaged content, and for pixels without a known range (floating-point, 32-bit integers).
    """
    pixels = decode_plain_jpeg(content, grey)
    return decode(content, f"image {name}", grey=grey) if pixels is None else pixels


def require_decodable(content: bytes, name: str) -> None:
    """Raises a UserError if `decode_image` would.

    Reads the complete JPEG but decodes it at an eighth of its size: a crop of 128×64 takes a tenth of the time.
    """
    with opened(content, f"image {name}") as image:
        image.draft("RGB", (1, 1))
        image.load()


def decode_plain_jpeg(content: bytes, grey: bool) -> "Tensor | None":
    """Decodes a JPEG file to Pillow's pixels in half the time: uint8 (1 or 3, h, w), with memory layout (h, w, C).

    Returns None if Pillow must decode the file: another format, CMYK, a possible rotation in XMP data, colour to grey,
    more pixels than `Image.MAX_IMAGE_PIXELS`, or any libjpeg warning (strict mode makes them errors).
    """
    try:
        orientation = _plain_orientation(content, grey)
        if orientation is None:
            return None
        pixels = simplejpeg.decode_jpeg(content, "GRAY" if grey else "RGB", strict=True)
    except Exception:  # a damaged file, for which Pillow's error says more
        return None
    import torch  # imported late: checking the names and files of a set does not need it

    upright = pixels if orientation == 1 else turned(pixels, orientation)
    return torch.from_numpy(upright).permute(2, 0, 1)


def _plain_orientation(content: bytes, grey: bool) -> int | None:
    """Returns the Exif orientation of a file that `decode_plain_jpeg` supports, else None; reads to the first scan."""
    if not content.startswith(_START):
        return None
    place, is_plain, exif = 2, False, b""
    while (header := unpack_from(">HH", content, place))[0] != _SCAN:
        marker, length = header
        if marker == _EXIF_OR_XMP:
            segment = content[place + 4 : place + 2 + length]
            if segment.startswith(b"Exif\0\0"):
                exif = exif or segment
            elif b"Orientation" in segment:
                return None
        if marker in _FRAMES:
            bits, height, width, components = unpack_from(">BHHB", content, place + 4)
            largest = Image.MAX_IMAGE_PIXELS or height * width
            is_plain = bits == 8 and height * width <= largest and components in ((1,) if grey else (1, 3))
        place += 2 + length
    return (exif_orientation(exif) or 1) if is_plain else None
