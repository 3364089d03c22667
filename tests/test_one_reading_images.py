"""An odd image has the same pixels, or the same refusal, wherever it comes in.

`CASES` is a table of odd images, `WAYS` of entry points, `ENTRIES` of the pairs that are tested. The expected pixels
are built from the blocks, not read.
"""

import base64
import io
import json
import logging
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from pml_ext import Embedder
from pml_ext._shared.errors import UserError
from pml_ext._shared.images import IMAGE_SUFFIXES
from pml_ext.cli import main
from pml_ext.deploy.images import embed_folder
from pml_ext.reports.page import thumbnail
from pml_ext.runner import ImageDataset
from pml_ext.runner.data.datasets.folders import users_folder
from pml_ext.runner.data.datasets.image_dataset import data_set_of
from pml_ext.runner.data.datasets.image_files import require_image
from tests.cli.embedding_files import hits
from tests.deploy.models import exported_model, small_model

# Pillow warns of damaged Exif data.
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in ("Corrupt EXIF data", "Tag data larger")]

CHANCE = np.random.default_rng(0)


def blocks(*values):
    """Blocks of 16 × 16 pixels, 3 rows and 2 columns of them: each JPEG block has one colour."""
    return np.kron(np.array(values).reshape(3, 2, -1), np.ones((16, 16, 1), dtype=int))


COLOURS = blocks(*CHANCE.integers(40, 216, (6, 3))).astype(np.uint8)
GREY = blocks(0, 40, 90, 150, 200, 255)[:, :, 0].astype(np.uint8)
DEEP = blocks(0, 300, 9000, 30000, 50000, 65535)[:, :, 0].astype(np.uint16)
ALPHA = blocks(255, 0, 255, 128, 0, 255)[:, :, 0].astype(np.uint8)
HOLES = blocks(0, 0, 1, 0, 0, 0)[:, :, 0].astype(bool)
RGB = Image.fromarray(COLOURS)


def as_rgb(grey):
    return np.stack([grey] * 3, axis=2).astype(np.uint8)


def on_white(colours):
    share = ALPHA[:, :, None] / 255
    return np.round(colours * share + 255 * (1 - share)).astype(np.uint8)


def file(image, kind="PNG", **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def stored(orientation):
    """What a camera stores so that a viewer, turning it as told, shows COLOURS."""
    turned = {2: COLOURS[:, ::-1], 3: np.rot90(COLOURS, 2), 4: COLOURS[::-1], 5: COLOURS.swapaxes(0, 1)}
    turned |= {6: np.rot90(COLOURS), 7: np.rot90(COLOURS, 2).swapaxes(0, 1), 8: np.rot90(COLOURS, -1)}
    return Image.fromarray(np.ascontiguousarray(turned[orientation]))


def of_mode(mode, array):
    return Image.frombytes(mode, (array.shape[1], array.shape[0]), np.ascontiguousarray(array).tobytes())


def of_palette(mode, array):
    """Entry i of the palette is grey with value i."""
    image = of_mode(mode, array)
    image.putpalette([value for value in range(256) for _ in "RGB"])
    return image


class Case(NamedTuple):
    """Expected (h, w, 3) pixels, or a pattern of the refusal; the file's content, or a Pillow image without a file."""

    expected: np.ndarray | str
    source: bytes | Image.Image
    suffix: str = ".png"
    tolerance: int = 0


EXIF = b"Exif\0\0"
NOTHING_READABLE = b"\0\x08\0\x02\x01\x12\0\x03"  # Exif data without a header
CUT = b"MM\0*\0\0\0\x08\0\x02\x01\x12\0\x03"  # ends inside of the first entry
TURN_AND_TEXT = CUT + b"\0\0\0\x01\0\x06\0\0\x01\x0f\0\x02\0\xff\0\0\x7f\0\0\0"  # the text is outside of the data
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
LEFT, RANGE = GREY == 0, "has pixels without a known range"
DAMAGED = {"headless": NOTHING_READABLE, "cut": CUT, "empty": b"", "wrong value": bytes(exif_of(9).tobytes()[6:])}
INKS = blocks(*[[i * 40, 255 - i * 40, i * 20, 0] for i in range(6)]).astype(np.uint8)
FINE = {"quality": 100, "subsampling": 0}

CASES = {
    "colours": Case(COLOURS, file(RGB)),
    "grey": Case(as_rgb(GREY), file(Image.fromarray(GREY))),
    "one bit": Case(as_rgb(HOLES * 255), file(Image.fromarray(HOLES))),
    "16 bits": Case(as_rgb(np.round(DEEP / 257)), file(Image.fromarray(DEEP))),
    "16 bits, TIFF, big endian": Case(
        as_rgb(np.round(DEEP / 257)), file(of_mode("I;16B", DEEP.astype(">u2")), "TIFF"), ".tif"
    ),
    "RGBA": Case(on_white(COLOURS), file(Image.fromarray(np.dstack([COLOURS, ALPHA]))), tolerance=1),
    "LA": Case(on_white(as_rgb(GREY)), file(Image.fromarray(np.dstack([GREY, ALPHA]))), tolerance=1),
    "RGBA, WebP": Case(
        on_white(COLOURS), file(Image.fromarray(np.dstack([COLOURS, ALPHA])), "WEBP", lossless=True), ".webp", 1
    ),
    "palette": Case(as_rgb(GREY), file(of_palette("P", GREY))),
    "palette, one entry transparent": Case(
        as_rgb(np.where(LEFT, 255, GREY)), file(of_palette("P", GREY), transparency=0)
    ),
    "palette, entries half transparent": Case(
        as_rgb(np.where(LEFT, 127, GREY)),
        file(of_palette("P", GREY), transparency=bytes([128, *[255] * 255])),
        tolerance=1,
    ),
    "GIF with transparency": Case(
        as_rgb(np.where(LEFT, 255, GREY)),
        file(of_palette("P", GREY), "GIF", transparency=0),
        ".gif",
    ),
    "transparent colour": Case(
        np.where(HOLES[:, :, None], 255, COLOURS).astype(np.uint8),
        file(RGB, transparency=tuple(COLOURS[HOLES][0].tolist())),
    ),
    "transparent grey": Case(as_rgb(np.where(LEFT, 255, GREY)), file(Image.fromarray(GREY), transparency=0)),
    "transparent bit": Case(as_rgb(np.full_like(GREY, 255)), file(Image.fromarray(HOLES), transparency=0)),
    "CMYK": Case(255 - INKS[:, :, :3], file(of_mode("CMYK", INKS), "TIFF"), ".tif"),
    "HSV": Case(as_rgb(GREY), of_mode("HSV", np.dstack([GREY * 0, GREY * 0, GREY]))),
    "YCbCr": Case(as_rgb(GREY), file(of_mode("YCbCr", np.dstack([GREY, *[GREY * 0 + 128] * 2])), "TIFF"), ".tif", 1),
    "PA": Case(on_white(as_rgb(GREY)), of_palette("PA", np.dstack([GREY, ALPHA])), tolerance=1),
    "RGBa": Case(on_white(COLOURS), Image.fromarray(np.dstack([COLOURS, ALPHA])).convert("RGBa"), tolerance=2),
    **{f"turned {i}": Case(COLOURS, file(stored(i), exif=exif_of(i))) for i in range(2, 9)},
    "turned JPEG": Case(COLOURS, file(stored(6), "JPEG", **FINE, exif=exif_of(6)), ".jpg", 3),
    "turned WebP": Case(COLOURS, file(stored(8), "WEBP", lossless=True, exif=exif_of(8)), ".webp"),
    "turned TIFF": Case(COLOURS, file(stored(6), "TIFF", compression="tiff_lzw", exif=exif_of(6)), ".tiff"),
    "turned by XMP": Case(COLOURS, file(stored(8), "JPEG", **FINE, xmp=XMP), ".jpg", 3),
    "turned, the rest damaged": Case(COLOURS, file(stored(6), exif=EXIF + TURN_AND_TEXT)),
    "turned JPEG, the rest damaged": Case(
        COLOURS, file(stored(6), "JPEG", **FINE, exif=EXIF + TURN_AND_TEXT), ".jpg", 3
    ),
    **{
        f"Exif data {name}, {kind}": Case(COLOURS, file(RGB, kind, exif=EXIF + data, **options), f".{kind}", tolerance)
        for name, data in DAMAGED.items()
        for kind, options, tolerance in (("png", {}, 0), ("webp", {"lossless": True}, 0), ("jpeg", FINE, 3))
    },
    "32-bit integers": Case(RANGE, file(Image.fromarray(GREY.astype(np.int32)), "TIFF"), ".tif"),
    "floating point": Case(RANGE, file(Image.fromarray(GREY.astype(np.float32)), "TIFF"), ".tif"),
    "cut off": Case(
        "cannot be decoded", file(Image.fromarray(CHANCE.integers(0, 255, (48, 32, 3), dtype=np.uint8)))[:900]
    ),
    "JPEG cut off": Case("cannot be decoded", file(RGB, "JPEG")[:-20], ".jpg"),
}
if ".avif" in IMAGE_SUFFIXES:
    CASES["AVIF"] = Case(COLOURS, file(RGB, "AVIF", quality=100, subsampling="4:4:4"), ".avif", 3)
    turned = file(stored(6), "AVIF", quality=100, subsampling="4:4:4", exif=exif_of(6))
    CASES["turned AVIF"] = Case(COLOURS, turned, ".avif", 3)
if find_spec("pillow_heif"):
    CASES["HEIC"] = Case(COLOURS, file(RGB, "HEIF", quality=-1, chroma=444), ".heic", 3)


class Pixels(torch.nn.Module):
    """The pixels, and a constant that says their scale."""

    def forward(self, images):
        return torch.nn.functional.pad(images.flatten(1), (0, 1), value=255.0)


@pytest.fixture(scope="module")
def embedder():
    return Embedder(Pixels(), size=(48, 32), mean=(0.0,) * 3, std=(1.0,) * 3, device="cpu")


def pixels_in(embedding):
    """(h, w, 3) of an embedding of `Pixels`."""
    row = np.asarray(embedding, dtype=np.float64).reshape(-1)
    return np.round(row[:-1] / row[-1] * 255).reshape(3, 48, 32).transpose(1, 2, 0)


def pillow(case):
    if isinstance(case.source, Image.Image):
        return case.source.copy()
    return Image.open(io.BytesIO(case.source))


def written(case, folder):
    path = folder / "fruit" / f"image{case.suffix}"
    path.parent.mkdir()
    path.write_bytes(case.source)
    return path


def in_a_data_set(source):
    class Set(ImageDataset):
        def __init__(self, root):
            super().__init__([(source, "a", 0)], [(source, "b", 0)], [])

    return data_set_of(Set).read(None, False).train.images[0]


def by_embed(embedder, case, folder):
    path = written(case, folder)
    try:
        gallery = embed_folder(embedder, path.parent, folder / "gallery")
    except UserError:
        raise UserError((folder / "gallery" / "unreadable.txt").read_text()) from None
    return pixels_in(next(gallery.vectors())[1])


def by_training(embedder, case, folder):
    path = written(case, folder)
    return users_folder(path.parent.parent, False, 1).train.images[0]


def by_check(embedder, case, folder):
    path = written(case, folder)
    require_image(path)
    return in_a_data_set(path)


def as_array(case):
    return np.asarray(pillow(case))


def tensor_of(array):
    array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array[None].copy() if array.ndim == 2 else np.moveaxis(array, 2, 0).copy())


WAYS = {
    "training": by_training,
    "image check": by_check,
    "embed": by_embed,
    "data set of bytes": lambda embedder, case, folder: in_a_data_set(case.source),
    "data set of functions": lambda embedder, case, folder: in_a_data_set(lambda: pillow(case)),
    "Embedder of a path": lambda embedder, case, folder: pixels_in(embedder(written(case, folder))),
    "Embedder of text": lambda embedder, case, folder: pixels_in(embedder([str(written(case, folder))])),
    "Embedder of bytes": lambda embedder, case, folder: pixels_in(embedder(case.source)),
    "Embedder of Pillow": lambda embedder, case, folder: pixels_in(embedder(pillow(case))),
    "Embedder of an array": lambda embedder, case, folder: pixels_in(embedder(as_array(case))),
    "Embedder of a tensor": lambda embedder, case, folder: pixels_in(embedder(tensor_of(as_array(case)))),
}
SOME = ["grey", "16 bits", "RGBA", "palette, one entry transparent", "CMYK", "turned 8", "turned JPEG"]
SOME += ["Exif data cut, jpeg", "floating point", "JPEG cut off"]
ARRAYS = ["grey", "one bit", "16 bits", "16 bits, TIFF, big endian", "LA", "RGBA", "32-bit integers", "floating point"]
"""What NumPy makes of a Pillow image; palettes and Exif data have no counterpart."""

WITHOUT_FILE = [name for name, case in CASES.items() if isinstance(case.source, Image.Image)]
ENTRIES = [(name, "Embedder of bytes") for name in CASES if name not in WITHOUT_FILE]
ENTRIES += [(name, way) for way in ("Embedder of Pillow", "data set of functions") for name in (*WITHOUT_FILE, *SOME)]
ENTRIES += [(name, way) for way in ("Embedder of an array", "Embedder of a tensor") for name in ARRAYS]
ENTRIES += [(name, way) for way in WAYS if way not in {way for _, way in ENTRIES} for name in SOME]
"""All images through one entry, some through each."""


@pytest.mark.parametrize(("name", "way"), ENTRIES)
def test_every_way_in_has_the_same_pixels(name, way, embedder, tmp_path, caplog):
    case = CASES[name]
    if isinstance(case.expected, str):
        with pytest.raises(UserError, match=case.expected) as refusal:
            WAYS[way](embedder, case, tmp_path)
        assert "pass 8 bits (uint8, 0 to 255)" in str(refusal.value) or case.expected != RANGE
        return
    pixels = WAYS[way](embedder, case, tmp_path)
    if isinstance(pixels, torch.Tensor):
        pixels = pixels.permute(1, 2, 0).numpy()
    assert pixels.shape == case.expected.shape
    assert np.abs(pixels.astype(int) - case.expected.astype(int)).max() <= case.tolerance
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("name", SOME)
def test_a_page_of_hits_shows_the_same(name, tmp_path):
    case = CASES[name]
    shown = thumbnail(written(case, tmp_path))
    if isinstance(case.expected, str):
        assert shown is None
        return
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.partition(",")[2]))))
    assert pixels.shape == (48, 32, 3)
    centres = slice(8, None, 16), slice(8, None, 16)  # JPEG blurs the edges of the blocks
    assert np.abs(pixels[centres].astype(int) - case.expected[centres].astype(int)).max() <= 8 + case.tolerance


def test_a_search_finds_each_image_with_itself(tmp_path, monkeypatch, capsys):
    """Through both commands; the refused images are counted."""
    monkeypatch.chdir(tmp_path)
    files = {name: case for name, case in CASES.items() if isinstance(case.source, bytes)}
    for place, case in enumerate(files.values()):
        (tmp_path / "odd" / f"{place}").mkdir(parents=True)
        (tmp_path / "odd" / f"{place}" / f"image{case.suffix}").write_bytes(case.source)
    config, weights = small_model(tmp_path / "model")
    refused = sum(isinstance(case.expected, str) for case in files.values())
    words = ["--model", str(config), "MODEL.WEIGHTS", str(weights), "MODEL.DEVICE", "cpu"]
    assert main(["embed", "odd", *words, "--output", "gallery"]) == 0
    assert f"{refused} of {len(files)} images could not be embedded" in capsys.readouterr().err
    assert main(["search", "odd", "--gallery", "gallery", "-k", "1", "MODEL.DEVICE", "cpu"]) == 0
    shown = capsys.readouterr()
    assert f"{refused} of {len(files)} query images cannot be used" in shown.err
    scores = [score for score, _, _ in hits(shown.out)]
    assert len(scores) == len(files) - refused and min(scores) > 0.99999


@pytest.mark.parametrize("name", ["turned 6", "turned JPEG", "turned TIFF", "turned by XMP"])
def test_an_image_is_turned_once(name, embedder):
    case = CASES[name]
    for image in (ImageOps.exif_transpose(pillow(case)), pillow(case).convert("RGB"), pillow(case).copy()):
        difference = pixels_in(embedder(image)) - case.expected
        assert np.abs(difference).max() <= case.tolerance
    of_a_grey_network = Embedder(Pixels(), size=(48, 32), mean=(0.0,), std=(1.0,), device="cpu")
    difference = of_a_grey_network([case.source, pillow(case), Image.fromarray(case.expected)]).diff(dim=0)
    assert difference.abs().max() < 1e-3


def test_a_turn_in_memory_counts(embedder):
    image = stored(6)
    image.getexif()[0x0112] = 6
    assert (pixels_in(embedder(image)) == COLOURS).all()


def test_arrays_have_the_channels_of_opencv(embedder):
    cv2 = pytest.importorskip("cv2")
    deep = COLOURS.astype(np.uint16) * 257 - 100
    content = cv2.imencode(".png", deep[:, :, ::-1])[1].tobytes()
    read = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    assert read.dtype == np.uint16
    assert (pixels_in(embedder(read, order="BGR")) == pixels_in(embedder(content))).all()
    with_alpha = cv2.imdecode(np.frombuffer(CASES["RGBA"].source, np.uint8), cv2.IMREAD_UNCHANGED)
    assert (pixels_in(embedder(with_alpha, order="BGR")) == pixels_in(embedder(CASES["RGBA"].source))).all()


def test_other_suffixes_are_counted_in_one_line(embedder, tmp_path, tmp_path_factory, caplog):
    written(CASES["colours"], tmp_path)
    for name in ("a.CR2", "b.cr2", "c.heif.txt"):
        (tmp_path / "fruit" / name).touch()
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        embed_folder(embedder, tmp_path / "fruit", tmp_path_factory.mktemp("embedded") / "gallery")
        users_folder(tmp_path, False, 1)
    lines = [text for text in caplog.messages if "left out" in text]
    assert len(lines) == 2 and all("2 .cr2, 1 .txt" in text for text in lines)


def test_an_embedding_of_zeros_is_listed_and_not_stored(tmp_path, caplog):
    class Dead(torch.nn.Module):
        def forward(self, images):
            return torch.relu(torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1))

    dark = Embedder(Dead(), size=(8, 8), mean=(100.0,) * 3, std=(50.0,) * 3, device="cpu", batch_size=2)
    (tmp_path / "images").mkdir()
    for place, value in enumerate((20, 150, 20, 200, 220)):
        Image.new("RGB", (9, 9), (value, value, 100)).save(tmp_path / "images" / f"{place}.png")
    gallery = embed_folder(dark, tmp_path / "images", tmp_path / "gallery")
    assert gallery.rows == 3 and "2 of 5 images could not be embedded" in caplog.text
    listed = (tmp_path / "gallery" / "unreadable.txt").read_text()
    assert listed.count("its embedding is zero") == 2 and "0.png" in listed and "2.png" in listed
    np.testing.assert_allclose(np.linalg.norm(next(gallery.vectors())[1], axis=1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="1 images cannot be embedded: the embedding of image 1 is zero"):
        dark([tmp_path / "images" / "1.png", tmp_path / "images" / "2.png"])


ORDINARY = [
    "colours",
    "grey",
    "16 bits",
    "RGBA",
    "LA",
    "palette, one entry transparent",
    "CMYK",
    "turned JPEG",
    "turned 8",
]


def test_the_guides_lines_for_onnx_agree(tmp_path, made_once):
    """Block "ONNX without this package" of USING_A_MODEL.md, and the words in the file."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
    page = (Path(__file__).parents[1] / "examples" / "guides" / "USING_A_MODEL.md").read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "def embed" in code]
    guide = {}
    exec(block, guide)
    folder = made_once("exported model", exported_model)
    file = folder / "model.onnx"
    session = onnxruntime.InferenceSession(str(file))
    embedder = Embedder.from_config(folder / "config.yml", folder / "last.ckpt", device="cpu", flip=True)
    for place, name in enumerate(ORDINARY):
        path = tmp_path / f"{place}{CASES[name].suffix}"
        path.write_bytes(CASES[name].source)
        np.testing.assert_allclose(guide["embed"](session, str(path)), embedder(path)[0].numpy(), atol=1e-3)
    record = json.loads({entry.key: entry.value for entry in onnx.load(file).metadata_props}["pml_ext"])
    for words in ("Exif", "transparent pixels white", "height 12 and width 8 with bicubic", "RGB", "0 to 255"):
        assert words in record["preprocessing"]
