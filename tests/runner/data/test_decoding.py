"""Images come out as a viewer shows them, or not at all."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.decoding import decode_image, require_decodable


def file(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


RAMP = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
RAMP_IN_8_BITS = torch.from_numpy((RAMP / 257).round().astype(np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("grey", [True, False])
def test_16_bits_become_8(kind: str, grey: bool) -> None:
    pixels = decode_image(file(Image.fromarray(RAMP), kind), "x", grey)
    assert pixels.shape == (1 if grey else 3, 8, 8)
    assert all(torch.equal(channel, RAMP_IN_8_BITS) for channel in pixels)


def test_16_bits_of_the_other_byte_order() -> None:
    big_endian = Image.frombytes("I;16B", (8, 8), RAMP.astype(">u2").tobytes())
    assert torch.equal(decode_image(file(big_endian, "TIFF"), "x", True)[0], RAMP_IN_8_BITS)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image_upright(orientation: int) -> None:
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    # what a camera stores so that a viewer, turning it as told, shows it upright
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.T,
        6: np.rot90(upright), 7: np.rot90(upright, 2).T, 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = file(Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
    assert decode_image(content, "x", True)[0].tolist() == upright.tolist()


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P"])
def test_what_is_transparent_shows_white_and_the_rest_as_it_is(kind: str) -> None:
    image = Image.new("RGBA", (2, 1), (10, 10, 10, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    content = file(image.quantize() if kind == "P" else image.convert(kind))
    assert decode_image(content, "x", False)[:, 0].T.tolist() == [[10, 10, 10], [255, 255, 255]]


def test_palettes_and_cmyk_become_rgb() -> None:
    image = Image.new("RGB", (16, 16), (250, 30, 60))
    assert decode_image(file(image.quantize()), "x", False)[:, 5, 5].tolist() == [250, 30, 60]
    cmyk = decode_image(file(image.convert("CMYK"), "JPEG", quality=95), "x", False)[:, 5, 5]
    assert (cmyk.int() - torch.tensor([250, 30, 60])).abs().max() <= 4
    one_bit = Image.fromarray(np.eye(4, dtype=bool))
    assert torch.equal(decode_image(file(one_bit), "x", True)[0], 255 * torch.eye(4, dtype=torch.uint8))


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_no_known_range_are_refused(kind: type) -> None:
    content = file(Image.fromarray(np.ones((4, 4), dtype=kind)), "TIFF")
    with pytest.raises(UserError, match=r"image a\.tif cannot be decoded .*mode [FI], of no known range: save it in 8"):
        decode_image(content, "a.tif", False)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_the_check_refuses_what_the_decoder_refuses(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 24, 3), dtype=np.uint8)
    whole = file(Image.fromarray(noise), kind)
    refused = 0
    for end in [0, 1, *range(2, len(whole), max(1, len(whole) // 40)), len(whole)]:
        said: list[str] = []
        for read in (
            lambda content: decode_image(content, "a.jpg", False),
            lambda content: require_decodable(content, "a.jpg"),
        ):
            try:
                read(whole[:end])
            except UserError as error:
                said.append(str(error))
        assert len(said) != 1, f"only one of the two refuses {end} of {len(whole)} bytes: {said}"
        assert all("BytesIO" not in message for message in said)
        refused += len(said) // 2
    assert refused > 20 and not said, "cut off it is refused, whole it is not"
