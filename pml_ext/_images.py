"""Images as upright 8-bit pixels on white, from Pillow images and arrays; `datasets/image_files.py` opens files."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from struct import error as StructError
from struct import unpack_from
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

from pml_ext._errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

IMAGE_SUFFIXES = [".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"]
if find_spec("PIL._avif"):  # most builds of Pillow 11.3 and later
    IMAGE_SUFFIXES.append(".avif")
if find_spec("pillow_heif"):  # an optional plug-in
    import_module("pillow_heif").register_heif_opener()
    IMAGE_SUFFIXES += [".heic", ".heif"]

ORIENTATION = 0x0112  # Exif tag; 1 is upright
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
_INTEGERS = {1: "B", 3: "H", 4: "I"}  # Exif's types
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
    with _readable(what, bool(content)):
        shown, exif = _hide_exif(content)
        with Image.open(io.BytesIO(shown)) as image:
            if exif:
                image.info["exif"] = exif
            _require_known_range(image, what)
            yield image


def _hide_exif(content: bytes) -> tuple[bytes, bytes]:
    """Returns a JPEG, PNG or AVIF file without its Exif data, and the data: Pillow warns of damaged ones, or fails.

    The data of AVIF are dropped. They do not turn the image: other parts of the file do.
    """
    if content.startswith(b"\x89PNG"):
        return _cut_out_png_exif(content)
    place = content.find(b"Exif", 0, 2**16)
    is_jpeg = content.startswith(b"\xff\xd8") and content[place - 4 : place - 2] == b"\xff\xe1"
    is_avif = content[4:8] == b"ftyp" and content[place - 12 : place - 8] == b"infe"
    if place < 0 or not (is_jpeg or is_avif):
        return content, b""
    length = int.from_bytes(content[place - 2 : place], "big") - 2
    exif = content[place : place + length] if is_jpeg else b""
    return content[:place] + b"none" + content[place + 4 :], exif


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
    except Exception as error:
        raise UserError(f"{what} cannot be decoded ({error}): is the file truncated or not an image?") from error


def _cut_out_png_exif(content: bytes) -> tuple[bytes, bytes]:
    """Returns a PNG file without an eXIf chunk before its pixels, and the chunk's data."""
    start = 8
    while (kind := content[start + 4 : start + 8]) not in (b"IDAT", b""):
        data = start + 8
        end = data + int.from_bytes(content[start : start + 4], "big")
        if kind == b"eXIf":
            return content[:start] + content[end + 4 :], content[data:end]
        start = end + 4
    return content, b""


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

    Turned upright as its Exif or XMP data say; damaged data count as upright. Transparent pixels become white. 16-bit
    grey values are divided by 257. CMYK, palettes and other colours become RGB, colours become grey if `grey`.
    Raises UserError for damaged images, and for pixels without a known range (floating-point, 32-bit integers).
    """
    import torch  # imported late: checking the names and files of a set does not need it

    if 0 in image.size:
        raise UserError(f"{what} is empty, {image.height}×{image.width}: is the box outside of the frame?")
    with _readable(what):
        image.load()
        _require_known_range(image, what)
        pixels = _on_white(image, grey)
        upright = turned(pixels.reshape(*pixels.shape[:2], -1), _orientation_of(image))
    return torch.from_numpy(upright).permute(2, 0, 1)


def _on_white(image: Image.Image, grey: bool) -> np.ndarray:
    """Returns (h, w) or (h, w, 3) uint8."""
    key = image.info.get("transparency")
    is_clear: np.ndarray | None = None
    if key is not None and image.mode != "P" and not image.mode.endswith(("A", "a")):  # one colour is transparent
        image = image.copy()
        del image.info["transparency"]
        if image.mode == "1":
            image, key = image.convert("L"), 255 * bool(key)
        is_clear = np.asarray(image) == key
    if image.mode.startswith("I"):
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode == "La":  # Pillow converts it to LA only
        image = image.convert("LA")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "LAB":  # Pillow converts it to colours only
        image = image.convert("RGB")
    mode = "L" if grey else "RGB"
    pixels = np.array(image if image.mode == mode else image.convert(mode))  # convert() always copies
    if is_clear is not None:
        pixels[is_clear if is_clear.ndim == 2 else is_clear.all(axis=2)] = 255
    return pixels


# --- orientation ---


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turns pixels (h, w, C) of an Exif orientation from 1 to 8 upright."""
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    down, right = _STEPS[(orientation - 1) % 4]
    return np.ascontiguousarray(pixels[::down, ::right])


def _orientation_of(image: Image.Image) -> int:
    """Returns 1 (upright) to 8, after the image has been loaded."""
    exif = image.info.get("exif")
    if exif is None:  # Exif data in other places, or none
        try:
            orientation = image.getexif().get(ORIENTATION, 1)
        except Exception:  # as in _readable
            return 1
        return int(orientation) if orientation in range(1, 9) else 1
    xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
    in_xmp = _XMP_ORIENTATION.search(xmp.encode() if isinstance(xmp, str) else xmp)
    return exif_orientation(exif) or (int(in_xmp[1]) if in_xmp else 1)


def exif_orientation(exif: bytes) -> int | None:
    """Returns the orientation in Exif data, 1 (upright) to 8; None if there is none, or if the data are damaged.

    Pillow warns of damaged data or raises various errors, and needs ten times as long.
    """
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    try:
        order = _BYTE_ORDERS[exif[start : start + 2]]
        place = start + unpack_from(f"{order}I", exif, start + 4)[0]
        for entry in range(unpack_from(f"{order}H", exif, place)[0]):
            tag, kind = unpack_from(f"{order}HH", exif, place + 2 + 12 * entry)
            if tag == ORIENTATION:
                (orientation,) = unpack_from(f"{order}{_INTEGERS[kind]}", exif, place + 10 + 12 * entry)
                return orientation if 1 <= orientation <= 8 else None
    except (KeyError, StructError):
        pass
    return None


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
