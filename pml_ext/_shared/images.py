"""Images as upright 8-bit pixels on white, from Pillow images and arrays; `datasets/image_files.py` opens files."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

from pml_ext._shared.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

IMAGE_SUFFIXES = [".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"]
if find_spec("PIL._avif"):  # most builds of Pillow 11.3 and later
    IMAGE_SUFFIXES.append(".avif")
if find_spec("pillow_heif"):  # an optional plug-in
    import_module("pillow_heif").register_heif_opener()
    IMAGE_SUFFIXES += [".heic", ".heif"]

_ORIENTATION = 0x0112  # Exif tag
# Steps along rows and columns that turn an image upright, for orientations 1 to 4. 5 to 8 swap both axes before.
_STEPS = ((1, 1), (1, -1), (-1, -1), (-1, 1))


def decode(content: bytes, what: str, *, grey: bool = False, least_side: int | None = None) -> "Tensor":
    """Decodes the content of an image file with Pillow: the same pixels as `pixels_of`.

    least_side: decode a JPEG at an eighth to a half of its size if no side gets shorter than this. Raises UserError for
    a file that Pillow cannot read, with `what` at the start of the message.
    """
    with opened(content, what) as image:
        if least_side is not None:
            image.draft("RGB", (least_side, least_side))
        return pixels_of(image, what, grey=grey)


@contextmanager
def opened(content: bytes, what: str) -> Iterator[Image.Image]:
    """Opens an image file with Pillow; converts errors on opening it and on reading its pixels to UserError."""
    with _readable(what, bool(content)), Image.open(io.BytesIO(content)) as image:
        if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
            # Pillow warns as well, but without the name.
            warnings.warn(f"{what} is above Pillow's limit: {image.width}×{image.height} pixels", stacklevel=2)
        _require_known_range(image, what)
        yield image


@contextmanager
def _readable(what: str, has_content: bool = True) -> Iterator[None]:
    """Converts what Pillow raises on damaged input, which is not documented, to UserError."""
    try:
        yield
    except UserError:
        raise
    except UnidentifiedImageError as error:
        reason = "not a format that Pillow reads" if has_content else "the file is empty"
        raise UserError(f"{what} cannot be decoded ({reason})") from error
    except Image.DecompressionBombError as error:
        advice = "make the image smaller, or set PIL.Image.MAX_IMAGE_PIXELS in a module that --import names"
        raise UserError(f"{what} is too large for Pillow ({error}): {advice}") from error
    except Exception as error:
        raise UserError(f"{what} cannot be decoded ({error}): is the file truncated or not an image?") from error


def _require_known_range(image: Image.Image, what: str) -> None:
    is_16_bit = image.mode == "I" and image.format in ("PNG", "PPM")
    if image.mode in ("F", "I") and not is_16_bit:
        raise _unknown_range(what, f"Pillow's mode {image.mode}")


def _unknown_range(what: str, kind: str) -> UserError:
    return UserError(
        f"{what} has pixels without a known range ({kind}): pass 8 bits (uint8, 0 to 255) or 16-bit grey (uint16, 0 to "
        "65535)"
    )


def pixels_of(image: Image.Image, what: str, *, grey: bool) -> "Tensor":
    """Converts an image to uint8 (1 or 3, h, w), with memory layout (h, w, C).

    Turned upright as Pillow reads its Exif data; damaged ones count as upright. Transparent pixels become white.
    16-bit grey values are divided by 257, and a transparent one is not white. CMYK, palettes and other colours become
    RGB, colours become grey if `grey`. Raises UserError for damaged images, and for pixels without a known range
    (floating-point, 32-bit integers).
    """
    import torch  # imported late: checking the names and files of a set does not need it

    if 0 in image.size:
        raise UserError(f"{what} is empty, {image.height}×{image.width}: is the box outside of the frame?")
    with _readable(what):
        image.load()  # turns a TIFF, and reads Exif data that follow the pixels
        _require_known_range(image, what)
        pixels = _on_white(image, grey)
        upright = turned(pixels.reshape(*pixels.shape[:2], -1), orientation_of(image))
    return torch.from_numpy(upright).permute(2, 0, 1)


def _on_white(image: Image.Image, grey: bool) -> np.ndarray:
    """Returns (h, w) or (h, w, 3) uint8."""
    if image.mode.startswith("I"):
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if grey else "RGB"
    return np.array(image if image.mode == mode else image.convert(mode))  # convert() always copies


# --- orientation ---


def orientation_of(image: Image.Image) -> int:
    """Returns the Exif orientation, 1 (upright) to 8; 1 if there is none, or if the data are damaged."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # as in _readable
        return 1
    return int(orientation) if orientation in range(1, 9) else 1


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turns pixels (h, w, C) of an Exif orientation from 1 to 8 upright."""
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    down, right = _STEPS[(orientation - 1) % 4]
    return np.ascontiguousarray(pixels[::down, ::right])


# --- arrays ---


def image_of(array: "np.ndarray | Tensor", what: str, order: str) -> Image.Image:
    """Converts an array (h, w) or (h, w, C), or a tensor (C, h, w), to a Pillow image.

    C is 1 (grey), 2 (grey, alpha), 3 (colours) or 4 (colours, alpha). Values are uint8, uint16 or bool. Of 16-bit
    colours only the high bytes are used, as Pillow does with files. order: of the colours, RGB or BGR.
    """
    kind = getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))
    if kind not in ("bool", "uint8", "uint16"):
        raise _unknown_range(what, kind)
    if isinstance(array, np.ndarray):
        expected = "an array of shape (h, w) or (h, w, C), with C from 1 to 4"
        pixels = array[:, :, None] if array.ndim == 2 else array
    else:
        expected = "a tensor of shape (C, h, w), with C from 1 to 4"
        pixels = array.detach().cpu().movedim(0, -1).numpy()
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 2, 3, 4):
        raise UserError(f"{what} must be {expected}; got {tuple(array.shape)}")
    if order == "BGR" and pixels.shape[2] > 2:
        pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
    if kind == "bool":
        pixels = pixels.astype(np.uint8) * 255
    if pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    elif kind == "uint16":
        pixels = (pixels >> 8).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels))
