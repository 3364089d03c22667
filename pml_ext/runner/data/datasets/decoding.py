"""Image files as 8-bit pixels, turned upright."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from struct import unpack_from
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from pml_ext._errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

ORIENTATION = 0x0112  # of Exif; 1 is upright
_START, _EXIF_OR_XMP, _SCAN = b"\xff\xd8\xff", 0xFFE1, 0xFFDA
_FRAMES = (0xFFC0, 0xFFC1, 0xFFC2)  # baseline, extended and progressive; the others are rare


def decode_image(content: bytes, name: str, grey: bool) -> "Tensor":
    """Bytes of an image file as a uint8 (1 or 3, h, w) tensor, turned as its Exif orientation says, as in FastReID.

    16 bits are divided by 257; what is transparent shows white; CMYK and palettes become RGB. A UserError: damaged
    content, or pixels of no known range (floating-point, 32-bit integers).
    """
    pixels = decode_plain_jpeg(content, grey)
    if pixels is not None:
        return pixels
    with _opened(content, name) as image:
        upright = ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
        return pixels_of(upright, grey)


def require_decodable(content: bytes, name: str) -> None:
    """Raises the UserError that `decode_image` raises.

    A JPEG is read whole, but decoded at an eighth of its sides only: a crop of 128×64 takes a tenth of the time.
    """
    with _opened(content, name) as image:
        image.getexif()
        image.draft("RGB", (1, 1))
        image.load()


@contextmanager
def _opened(content: bytes, name: str) -> Iterator[Image.Image]:
    """Whatever Pillow finds wrong with a file, now or while its pixels are read, becomes a UserError."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
                raise ValueError(f"its pixels are of Pillow's mode {image.mode}, of no known range: save it in 8 bits")
            yield image
    except UnidentifiedImageError as error:
        reason = "none of the formats that Pillow reads" if content else "the file is empty"
        raise UserError(f"image {name} cannot be decoded ({reason})") from error
    except Exception as error:  # what Pillow raises on damaged input is not documented
        raise UserError(f"image {name} cannot be decoded ({error}): is the file truncated or not an image?") from error


def pixels_of(image: Image.Image, grey: bool) -> "Tensor":
    """An image that stands upright as a uint8 (1 or 3, h, w) tensor, its colours as in `decode_image`."""
    import torch  # only where images are read: the names and files of a set are checked without it

    pixels = np.array(_in_8_bits(image).convert("L" if grey else "RGB"))
    return torch.from_numpy(pixels[None] if grey else pixels.transpose(2, 0, 1).copy())


def _in_8_bits(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel and nothing transparent."""
    if image.mode.startswith("I"):
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


# --- JPEG files as most data sets have them, read by libjpeg-turbo without Pillow ---


def decode_plain_jpeg(content: bytes, grey: bool) -> "Tensor | None":
    """Pillow's pixels of a JPEG file in half its time, a uint8 (1 or 3, h, w) tensor that lies in memory as (h, w, C).

    None where Pillow must look itself: another format, CMYK, an image that Exif or XMP may turn, colours that become
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
