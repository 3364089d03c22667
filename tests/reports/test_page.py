import base64
import io
import os

import torch
from PIL import Image

from pml_ext.reports.page import thumbnail


def decoded(source):
    assert source is not None and source.startswith("data:image/jpeg;base64,")
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))


def test_an_image_becomes_small_and_upright(tmp_path):
    wide = Image.new("RGB", (400, 200), (200, 30, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    wide.save(tmp_path / "turned.jpg", exif=exif)
    wide.save(tmp_path / "wide.png")
    assert decoded(thumbnail(str(tmp_path / "wide.png"))).size == (112, 56)
    assert decoded(thumbnail(str(tmp_path / "turned.jpg"))).size == (56, 112)
    assert decoded(thumbnail(str(tmp_path / "wide.png"))).getpixel((5, 5))[0] > 150
    assert decoded(thumbnail(torch.full((1, 200, 400), 90, dtype=torch.uint8))).getpixel((0, 0)) == (90, 90, 90)


def test_what_is_no_image_is_none(tmp_path):
    (tmp_path / "text.png").write_text("no image")
    os.mkfifo(tmp_path / "fifo.png")
    for name in ("text.png", "fifo.png", "none.png", "."):
        assert thumbnail(str(tmp_path / name)) is None


def test_a_bomb_is_not_decoded(tmp_path, monkeypatch):
    Image.new("L", (400, 400)).save(tmp_path / "big.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert thumbnail(str(tmp_path / "big.png")) is None
