"""What simplejpeg reads has Pillow's pixels; what it must not read, Pillow reads."""

import io
import random
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.decoding import decode_image, decode_plain_jpeg, pixels_of

NOISE = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
PICTURE = Image.fromarray(NOISE).resize((37, 51), Image.Resampling.BICUBIC)
PLAIN = {
    "baseline": {},
    "best": {"quality": 100},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "restarts": {"restart_marker_blocks": 1},
    "RGB": {"keep_rgb": True},
    "comment": {"comment": b"\xff\xc0\xff\xda" * 9},
    "upright": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x01\0\0\0\0\0\0"},
    "XMP": {"xmp": b"<x:xmpmeta/>"},
}


def file(image: Image.Image = PICTURE, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", **options)
    return content.getvalue()


def by_pillow(content: bytes, grey: bool) -> torch.Tensor | None:
    """Without Exif's orientation; None where Pillow refuses."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return pixels_of(image, grey)
    except Exception:
        return None


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("grey", [False, True])
def test_pixels_are_pillows_bit_for_bit(kind: str, grey: bool) -> None:
    grey_file = kind != "RGB"  # a grey file too, which has no colours to keep
    for image in [PICTURE, PICTURE.convert("L")] if grey_file else [PICTURE]:
        content = file(image, **PLAIN[kind])
        expected = by_pillow(content, grey)
        assert torch.equal(decode_image(content, "x", grey), expected)
        fast = decode_plain_jpeg(content, grey)
        if grey and image.mode == "RGB":
            assert fast is None, "Pillow makes grey of RGB, libjpeg would take Y"
        else:
            assert torch.equal(fast, expected)
            assert fast.permute(1, 2, 0).is_contiguous()


@pytest.mark.parametrize("orientation", range(2, 9))
def test_what_exif_or_xmp_turns_is_left_to_pillow(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    xmp = f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()
    for options in ({"exif": exif}, {"xmp": xmp}):
        content = file(**options)
        assert decode_plain_jpeg(content, False) is None
        sides = (37, 51) if orientation > 4 else (51, 37)
        assert decode_image(content, "x", False).shape == (3, *sides)


def test_other_colours_and_formats_are_left_to_pillow() -> None:
    png = io.BytesIO()
    PICTURE.save(png, "PNG")
    for content in (b"", png.getvalue(), file(PICTURE.convert("CMYK")), b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0\0" * 5):
        assert decode_plain_jpeg(content, False) is None


def test_a_small_file_of_too_many_pixels_is_refused_before_memory_is_taken() -> None:
    content = bytearray(file())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"  # 65,500 × 65,500
    assert decode_plain_jpeg(bytes(content), False) is None
    with pytest.raises(UserError, match="decompression bomb"):
        decode_image(bytes(content), "x", False)


@pytest.mark.parametrize("kind", ["baseline", "progressive", "restarts"])
def test_nothing_is_read_that_pillow_refuses_or_reads_otherwise(kind: str) -> None:
    """Files cut off, cut out of, closed too early, and with wrong bytes."""
    whole, chance = file(**PLAIN[kind]), random.Random(0)
    places = partial(chance.randrange, 2, len(whole))
    damaged = [whole[: places()] for _ in range(60)] + [whole[:-1], whole[:-2]]
    damaged += [whole[: places()] + b"\xff\xd9" for _ in range(60)]
    damaged += [whole[:place] + whole[place + 3 :] for place in (places() for _ in range(60))]
    for _ in range(200):
        wrong = bytearray(whole)
        wrong[places()] = chance.randrange(256)
        damaged.append(bytes(wrong))
    read = 0
    for content in damaged:
        fast = decode_plain_jpeg(content, False)
        if fast is not None:
            read += 1
            expected = by_pillow(content, False)
            assert expected is not None and torch.equal(fast, expected)
    assert 0 < read < len(damaged)


def test_a_name_in_any_script_is_read(tmp_path) -> None:
    from pml_ext.runner.data.datasets.image_files import read_image

    path = tmp_path / "行人 é.jpg"
    path.write_bytes(file())
    assert torch.equal(read_image(path, False), by_pillow(file(), False))
