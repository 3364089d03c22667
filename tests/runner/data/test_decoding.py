"""Files that tests/test_one_reading_images.py lacks, damaged ones, and what simplejpeg decodes."""

import io
import random
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext._shared.images import decode
from pml_ext.runner.data.datasets.decoding import decode_image, decode_jpeg, require_decodable


def file(image, kind="PNG", **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


RAMP = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
RAMP_IN_8_BITS = torch.from_numpy((RAMP / 257).round().astype(np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "TIFF of the other byte order", "PPM"])
def test_16_bits_become_8(kind):
    native, swapped = Image.fromarray(RAMP), Image.frombytes("I;16B", (8, 8), RAMP.astype(">u2").tobytes())
    content = file(swapped if "other" in kind else native, kind.split()[0])
    for grey in (True, False):
        pixels = decode_image(content, "x", grey)
        assert pixels.shape == (1 if grey else 3, 8, 8)
        assert all(torch.equal(channel, RAMP_IN_8_BITS) for channel in pixels)


def test_a_jpeg_of_four_inks_becomes_rgb():
    image = Image.new("RGB", (16, 16), (250, 30, 60))
    pixels = decode_image(file(image.convert("CMYK"), "JPEG", quality=95), "x", False)[:, 5, 5]
    assert (pixels.int() - torch.tensor([250, 30, 60])).abs().max() <= 4


def test_pixels_of_no_known_range_are_refused():
    content = file(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF")
    with pytest.raises(UserError, match=r"image a\.tif has pixels without a known range .*mode F\): pass"):
        decode_image(content, "a.tif", False)


def refusal(read, *arguments):
    """The UserError's message, or nothing."""
    try:
        read(*arguments)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_check_refuses_what_the_decoder_refuses(kind):
    noise = np.random.default_rng(0).integers(0, 255, (40, 24, 3), dtype=np.uint8)
    whole = file(Image.fromarray(noise), kind)
    refused = 0
    for end in [0, 1, *range(2, len(whole), max(1, len(whole) // 40)), len(whole)]:
        decoded, checked = refusal(decode_image, whole[:end], "a", False), refusal(require_decodable, whole[:end], "a")
        assert bool(decoded) == bool(checked), f"only one of the two refuses {end} of {len(whole)} bytes"
        assert "BytesIO" not in decoded + checked
        refused += bool(decoded)
    assert refused > 20 and not decoded, "cut off it is refused, whole it is not"


# --- JPEG without Pillow: what simplejpeg reads has Pillow's pixels; what it must not read, Pillow reads ---

NOISE = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
IMAGE = Image.fromarray(NOISE).resize((37, 51), Image.Resampling.BICUBIC)
PLAIN = {
    "baseline": {},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0},
    "restarts": {"restart_marker_blocks": 1},
    "RGB": {"keep_rgb": True},
    "comment": {"comment": b"\xff\xc0\xff\xda" * 9},
    "upright": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x01\0\0\0\0\0\0"},
    "turned": {"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"},
    "XMP": {"xmp": b"<x:xmpmeta/>"},
}


def jpeg(image=IMAGE, **options):
    return file(image, "JPEG", **options)


def by_pillow(content, grey):
    """None where Pillow refuses."""
    try:
        return decode(content, "x", grey=grey)
    except UserError:
        return None


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("grey", [False, True])
def test_pixels_are_pillows_bit_for_bit(kind, grey):
    grey_file = kind != "RGB"  # a grey file too, which has no colours to keep
    for image in [IMAGE, IMAGE.convert("L")] if grey_file else [IMAGE]:
        content = jpeg(image, **PLAIN[kind])
        expected = by_pillow(content, grey)
        assert torch.equal(decode_image(content, "x", grey), expected)
        fast = decode_jpeg(content, grey)
        if grey and image.mode == "RGB":
            assert fast is None, "Pillow makes grey of RGB, libjpeg would take Y"
        else:
            assert torch.equal(fast, expected)
            assert fast.permute(1, 2, 0).is_contiguous()


def test_other_colours_and_formats_are_left_to_pillow():
    for content in (b"", file(IMAGE), jpeg(IMAGE.convert("CMYK")), b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0\0" * 5):
        assert decode_jpeg(content, False) is None


def test_a_small_file_of_too_many_pixels_is_refused_before_memory_is_taken():
    content = bytearray(jpeg())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"  # 65,500 × 65,500
    assert decode_jpeg(bytes(content), False) is None
    with pytest.raises(UserError, match=r"^image x is too large for Pillow .*MAX_IMAGE_PIXELS"):
        decode_image(bytes(content), "x", False)


def test_an_image_above_pillows_limit_is_named(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    content = io.BytesIO()
    Image.new("L", (40, 30)).save(content, "PNG")
    with (
        pytest.warns(UserWarning, match="^image x is above Pillow's limit: 40×30 pixels"),
        pytest.warns(Image.DecompressionBombWarning),
    ):
        assert decode_image(content.getvalue(), "x", False).shape == (3, 30, 40)


@pytest.mark.parametrize("kind", ["baseline", "progressive"])
def test_nothing_is_read_that_pillow_refuses_or_reads_otherwise(kind):
    """Files cut off, cut out of, closed too early, and with wrong bytes."""
    whole, chance = jpeg(**PLAIN[kind]), random.Random(0)
    places = partial(chance.randrange, 2, len(whole))
    damaged = [whole[: places()] for _ in range(60)] + [whole[:-1], whole[:-2]]
    damaged += [whole[: places()] + b"\xff\xd9" for _ in range(60)]
    for _ in range(60):
        place = places()
        damaged.append(whole[:place] + whole[place + 3 :])
    for _ in range(200):
        wrong = bytearray(whole)
        wrong[places()] = chance.randrange(256)
        damaged.append(bytes(wrong))
    read = 0
    for content in damaged:
        fast = decode_jpeg(content, False)
        if fast is not None:
            read += 1
            expected = by_pillow(content, False)
            assert expected is not None and torch.equal(fast, expected)
    assert 0 < read < len(damaged)
